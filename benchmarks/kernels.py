"""Kernels of heterogeneous products and whole networks on a GPU, against what the device can do at all.

    python benchmarks/kernels.py --json

`of_copy` is the rate at which operands are read and results written, over the rate of a copy. `over_reading` is the
time of a whole network over the time that its weights take at the rate of a copy, and `difference` the largest
difference of its outputs from those in single precision, over the largest output. `--tiny` goes through everything at
small sizes on any device; its figures mean nothing.
"""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from layer_shapes import MATMULS
from parts import machine, show

import volvox as vx
from volvox.ops.matmul_mosaic import capability, matmul_mosaic, plan
from volvox.ops.matmul_xla import matmul_xla

Flag = tyro.conf.arg
KERNELS = (
    # (named shape, dtype, networks, kernels that they share; 0: each its own)
    ("deep_ga_large_hidden", "float32", 512, 0),
    ("deep_ga_large_hidden", "bfloat16", 512, 0),
    ("deep_ga_large_hidden", "float32", 512, 20),
    ("deep_ga_large_hidden", "float32", 512, 1),
    ("deep_ga_large_patches_1", "float32", 512, 20),
    ("deep_ga_small_hidden", "float32", 512, 0),
    ("deep_ga_small_hidden", "bfloat16", 512, 0),
    ("deep_ga_large_patches_0", "bfloat16", 2048, 0),
    ("deep_ga_large_patches_1", "bfloat16", 2048, 0),
    ("deep_ga_large_patches_2", "bfloat16", 2048, 0),
    ("deep_ga_large_patches_0", "float32", 2048, 0),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """The benchmark of kernels."""

    networks: Annotated[int, Flag(help="large networks that act at once")] = 1024
    seconds: Annotated[float, Flag(help="that each operation is timed")] = 0.5
    tiny: Annotated[bool, Flag(help="small sizes, on any device")] = False
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def seconds_of(f: Callable[..., Any], *operands: Any, budget: float) -> tuple[float, float]:
    """(median, spread as half the interquartile range) of one call, of calls enqueued one behind the other."""
    out = jax.block_until_ready(f(*operands))
    began = time.perf_counter()
    jax.block_until_ready(f(*operands))
    calls = max(1, int(budget / 5 / max(time.perf_counter() - began, 1e-6)))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(calls):
            out = f(*operands)  # those before are freed as they are done
        jax.block_until_ready(out)  # the last is enough: a device works through them in order
        times.append((time.perf_counter() - began) / calls)
    low, high = np.percentile(times, [25, 75])
    return float(np.median(times)), float((high - low) / 2)


def timed(f: Callable[..., Any], *operands: Any, budget: float) -> dict[str, Any]:
    """Milliseconds of one call, or the error, after which the rest is still measured."""
    try:
        median, spread = seconds_of(f, *operands, budget=budget)
    except Exception as error:  # of a compiler or a device that nobody has seen yet: any may come
        return {"error": f"{type(error).__name__}: {error}"[:2_000]}
    return {"ms": 1e3 * median, "spread_ms": 1e3 * spread}


def ceilings(options: Options) -> dict[str, float]:
    """What the device can do at all: bytes a second of a copy, read and written; FLOP/s of a large product."""
    # Calls run ahead of the device: so many outputs of this size must fit.
    size = 2**20 if options.tiny else 2**28
    x = jnp.ones(size, jnp.float32)
    # One rounding away from a copy, which would be elided.
    copy, _ = seconds_of(jax.jit(lambda x: x * 1.0000001), x, budget=options.seconds)
    n = 512 if options.tiny else 8192
    a = jnp.ones((n, n), jnp.bfloat16)
    product, _ = seconds_of(jax.jit(jnp.matmul), a, a, budget=options.seconds)
    return {"copy_bytes_per_s": 8 * size / copy, "bf16_flop_per_s": 2 * n**3 / product}


def ragged(x: jax.Array, w: jax.Array) -> jax.Array:
    """The same product by JAX's own operation for rows that are sorted by kernel."""
    b, m, k = x.shape
    return jax.lax.ragged_dot(x.reshape(b * m, k), w, jnp.full(b, m, jnp.int32)).reshape(b, m, -1)


def kernel_table(options: Options, ceiling: dict[str, float]) -> list[dict[str, Any]]:
    """Every kernel at the sizes of real networks, by every implementation that serves it."""
    rows = []
    for name, dtype, networks, shared in KERNELS:
        shape = MATMULS[name]
        b = 4 if options.tiny else networks
        p = min(shared, b) or b
        keys = jax.random.split(jax.random.key(0), 3)
        x = jax.random.normal(keys[0], (b, shape.rows, shape.k), dtype)
        w = jax.random.normal(keys[1], (p, shape.k, shape.n), dtype)
        index = jax.random.randint(keys[2], (b,), 0, p, jnp.int32) if shared else None
        moved = sum(a.size * a.dtype.itemsize for a in (x, w)) + b * shape.rows * shape.n * x.dtype.itemsize
        flops = 2 * b * shape.rows * shape.k * shape.n
        row: dict[str, Any] = {"shape": name, "dtype": dtype, "networks": b, "kernels": p, "bytes": moved}
        calls = {"xla": jax.jit(partial(matmul_xla, index=index))}
        if index is None:
            calls["ragged_dot"] = jax.jit(ragged)
        elif tiles := plan(x, w, index, compute_capability=capability()):
            calls["mosaic"] = jax.jit(partial(matmul_mosaic, index=index, tiles=tiles))
        for implementation, f in calls.items():
            found = row[implementation] = timed(f, x, w, budget=options.seconds)
            if "ms" in found:
                found["of_copy"] = 1e3 * moved / found["ms"] / ceiling["copy_bytes_per_s"]
                found["of_product"] = 1e3 * flops / found["ms"] / ceiling["bf16_flop_per_s"]
        rows.append(row)
    return rows


def whole_network(options: Options, ceiling: dict[str, float]) -> list[dict[str, Any]]:
    """The large network of the deep GA, every row through another one, against reading all weights once."""
    b, rows = 4 if options.tiny else options.networks, []
    spec = vx.EnvSpec("Atari", (84, 84, 4), np.dtype(np.uint8), 18, None, None, None, 1, 4)
    observation = jax.random.randint(jax.random.key(1), (b, 1, 84, 84, 4), 0, 256).astype(jnp.uint8)
    single = None
    # Of weights, and in which hidden layers compute: without the latter, convolutions would be in single precision.
    for dtype, computed in (("float32", None), ("bfloat16", None), ("bfloat16", jnp.bfloat16)):
        net = vx.networks.genotype(vx.networks.DeepGA(18, dtype=computed), spec)

        def init(key, net=net, dtype=dtype):
            return jax.tree.map(lambda x: x.astype(dtype), net.prepare(net.policy.init(key)))

        # One after the other: the temporary arrays of all at once would not fit into memory.
        variables = jax.jit(lambda keys, init=init: jax.lax.map(init, keys))(jax.random.split(jax.random.key(0), b))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(variables))
        f = jax.jit(jax.vmap(lambda v, o, net=net: net.policy.apply(v, o, ())[0]))
        row: dict[str, Any] = {"dtype": dtype, "computed_in": str(jnp.dtype(computed or jnp.float32)), "networks": b}
        row |= timed(f, variables, observation, budget=options.seconds)
        if "ms" in row:  # at the rate of a copy, which reads and writes
            row["over_reading"] = row["ms"] / (1e3 * size / ceiling["copy_bytes_per_s"])
            output = f(variables, observation).astype(jnp.float32)
            single = output if single is None else single  # the first
            row["difference"] = float(jnp.abs(output - single).max() / jnp.abs(single).max())
        rows.append(row)
    return rows


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    ceiling = ceilings(options)
    found = {
        "ceilings": ceiling,
        "kernels": kernel_table(options, ceiling),
        "whole_network": whole_network(options, ceiling),
    }
    show(found | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
