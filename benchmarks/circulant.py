"""Block-circulant layers against dense ones: time and bytes, one layer and a population of layers.

    python benchmarks/circulant.py --json

Every figure is of one product of rows and a square layer, the forms taking turns. A population is as many different
layers, a row each.
"""

import dataclasses
import statistics
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import tyro
from parts import in_turns, machine, show

from volvox.ops.matmul import block_circulant, dense, to_dense

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class Options:
    """One square layer."""

    width: int = 1_024
    blocks: Annotated[tuple[int, ...], Flag(help="sides of the circulant blocks")] = (4, 8)
    batches: Annotated[tuple[int, ...], Flag(help="rows through one layer")] = (1, 16, 64, 256)
    population: Annotated[int, Flag(help="different layers, a row each")] = 64
    repeats: int = 25
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def measure(options: Options) -> dict[str, Any]:
    """Everything; JSON values."""
    w, p = options.width, options.population
    keys = jax.random.split(jax.random.key(0), 4)
    kernel = jax.random.normal(keys[0], (w, w))
    kernels = jax.random.normal(keys[1], (p, w, w))
    stored = {b: kernel[:, : w // b] + 0 for b in options.blocks}
    many = {b: kernels[:, :, : w // b] + 0 for b in options.blocks}
    figures: dict[str, Any] = {"dense_bytes": w * w * 4}
    of_dense = jax.jit(dense)
    of_block = {b: jax.jit(lambda x, k, b=b: block_circulant(x, k, b)) for b in options.blocks}
    calls: dict[str, Any] = {}
    for n in options.batches:
        x = jax.random.normal(keys[2], (n, w))
        calls[f"dense_batch{n}_ms"] = lambda x=x: of_dense(x, kernel)
        for b in options.blocks:
            wrong = jnp.abs(of_block[b](x, stored[b]) - x @ to_dense(stored[b], b)).max()
            if not wrong < 1e-2:
                raise SystemExit(f"block {b} differs from its dense matrix by {wrong}; no speed is reported")
            calls[f"block{b}_batch{n}_ms"] = lambda x=x, b=b: of_block[b](x, stored[b])
    rows = jax.random.normal(keys[3], (p, 1, w))
    many_dense = jax.jit(jax.vmap(dense))
    calls["dense_population_ms"] = lambda: many_dense(rows, kernels)
    for b in options.blocks:
        figures[f"block{b}_bytes"] = w * w * 4 // b
        together = jax.jit(jax.vmap(lambda x, k, b=b: block_circulant(x, k, b)))
        calls[f"block{b}_population_ms"] = lambda b=b, together=together: together(rows, many[b])
    times = in_turns(calls, options.repeats)
    figures |= {name: statistics.median(values) for name, values in times.items()}
    for b in options.blocks:
        figures[f"population_speedup_b{b}"] = figures["dense_population_ms"] / figures[f"block{b}_population_ms"]
    return figures


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    show(measure(options) | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
