"""Everything that needs a GPU, in one command of some minutes: tests, kernels, whole networks, rollouts.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --dry-run --out dry.json

Writes `benchmarks/results/<device>.json` and a picture beside it; needs no network. Without envpool the rollouts are
left out, and the result says so. `--dry-run` goes through everything at small sizes on whatever device is here, without
tests, to see that it works; its figures mean nothing.
"""

import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from layer_shapes import MATMULS
from matplotlib.figure import Figure
from parts import machine

import volvox as vx
from volvox.ops.matmul import implementations, matmul

Flag = tyro.conf.arg
HERE = Path(__file__).parent
_LONGEST = 180
"""Seconds that the device's own part, and that the tests, may take; a kernel that hangs ends nothing else."""
KERNELS = (
    # (named shape, dtype, networks, kernels that they share; 0: each its own)
    ("deep_ga_large_hidden", "float32", 512, 0),
    ("deep_ga_large_hidden", "bfloat16", 512, 0),
    ("deep_ga_large_hidden", "float32", 512, 20),
    ("deep_ga_large_hidden", "float32", 512, 1),
    ("deep_ga_small_hidden", "float32", 512, 0),
    ("deep_ga_small_hidden", "bfloat16", 512, 0),
    ("deep_ga_large_patches_0", "bfloat16", 2048, 0),
    ("deep_ga_large_patches_1", "bfloat16", 2048, 0),
    ("deep_ga_large_patches_2", "bfloat16", 2048, 0),
    ("deep_ga_large_patches_0", "float32", 2048, 0),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """The GPU benchmark."""

    slots: Annotated[tuple[int, ...], Flag(help="environments of the rollouts")] = (64, 128, 256, 512, 1024)
    game: str = "Frostbite"
    minutes: Annotated[float, Flag(help="begin no further rollout after so many")] = 8.0
    seconds: Annotated[float, Flag(help="that each operation is timed")] = 0.5
    out: Annotated[Path | None, Flag(help="where the result goes; default: benchmarks/results/<device>.json")] = None
    dry_run: bool = False
    device_part: Annotated[bool, Flag(help="of this script itself: only print what is measured on the device")] = False


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
    """Milliseconds of one call, or the error: it is told and makes the exit code 1, and the rest is still measured."""
    try:
        median, spread = seconds_of(f, *operands, budget=budget)
    except Exception as error:  # of a compiler or a device that nobody has seen yet: any may come
        return {"error": f"{type(error).__name__}: {error}"[:2_000]}
    return {"ms": 1e3 * median, "spread_ms": 1e3 * spread}


def ceilings(options: Options) -> dict[str, float]:
    """What the device can do at all: bytes a second of a copy, read and written; FLOP/s of a large product."""
    # Calls run ahead of the device: so many outputs of this size must fit.
    size = 2**20 if options.dry_run else 2**28
    x = jnp.ones(size, jnp.float32)
    # One rounding away from a copy, which would be elided.
    copy, _ = seconds_of(jax.jit(lambda x: x * 1.0000001), x, budget=options.seconds)
    n = 512 if options.dry_run else 8192
    a = jnp.ones((n, n), jnp.bfloat16)
    product, _ = seconds_of(jax.jit(jnp.matmul), a, a, budget=options.seconds)
    return {"copy_bytes_per_s": 8 * size / copy, "bf16_flop_per_s": 2 * n**3 / product}


def kernel_table(options: Options, ceiling: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Every kernel at the sizes of real networks, by every implementation that serves it."""
    for name, dtype, networks, shared in KERNELS:
        shape = MATMULS[name]
        b = 4 if options.dry_run else networks
        p = min(shared, b) or b
        keys = jax.random.split(jax.random.key(0), 3)
        x = jax.random.normal(keys[0], (b, shape.rows, shape.k), dtype)
        w = jax.random.normal(keys[1], (p, shape.k, shape.n), dtype)
        index = jax.random.randint(keys[2], (b,), 0, p, jnp.int32) if shared else None
        moved = sum(a.size * a.dtype.itemsize for a in (x, w)) + b * shape.rows * shape.n * x.dtype.itemsize
        flops = 2 * b * shape.rows * shape.k * shape.n
        row: dict[str, Any] = {"shape": name, "dtype": dtype, "networks": b, "kernels": p, "bytes": moved}
        for implementation in implementations(x, w, index):
            f = jax.jit(lambda x, w, index, i=implementation: matmul(x, w, index, implementation=i))
            found = row[implementation] = timed(f, x, w, index, budget=options.seconds)
            said = f"{name} {dtype} x{b} through {p}: {implementation}"
            if "error" in found:
                print(f"{said}: {found['error'][:200]}", flush=True)
                continue
            per_s = 1e3 / found["ms"]
            found["bytes_per_s"], found["flop_per_s"] = moved * per_s, flops * per_s
            found["of_copy"] = found["bytes_per_s"] / ceiling["copy_bytes_per_s"]
            found["of_product"] = found["flop_per_s"] / ceiling["bf16_flop_per_s"]
            print(f"{said} {found['ms']:.3f} ms ({found['of_copy']:.0%} of copy)", flush=True)
        if all("ms" in row.get(name, {}) for name in ("mosaic", "xla")):
            row["mosaic_over_xla"] = row["xla"]["ms"] / row["mosaic"]["ms"]
        yield row


def whole_network(options: Options, ceiling: dict[str, float]) -> Iterator[dict[str, Any]]:
    """The large network of the deep GA, every row through another one, against reading all weights once."""
    b = 4 if options.dry_run else 512
    spec = vx.EnvSpec("Atari", (84, 84, 4), np.dtype(np.uint8), 18, None, None, None, 1, 4)
    observation = jnp.zeros((b, 1, 84, 84, 4), jnp.uint8)
    # Of weights, and in which hidden layers compute: without the latter, convolutions would be in single precision.
    for dtype, computed in (("float32", None), ("bfloat16", None), ("bfloat16", jnp.bfloat16)):
        net = vx.networks.genotype(vx.networks.DeepGA(18, dtype=computed), spec)

        def init(key, net=net, dtype=dtype):
            return jax.tree.map(lambda x: x.astype(dtype), net.prepare(net.policy.init(key)))

        variables = jax.jit(jax.vmap(init))(jax.random.split(jax.random.key(0), b))
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(variables))
        f = jax.jit(jax.vmap(lambda v, o, net=net: net.policy.apply(v, o, ())[0]))
        row: dict[str, Any] = {"dtype": dtype, "computed_in": str(jnp.dtype(computed or jnp.float32)), "networks": b}
        row |= timed(f, variables, observation, budget=options.seconds)
        said = f"large network, {dtype}, computed in {row['computed_in']} x{b}"
        if "error" in row:
            print(f"{said}: {row['error'][:200]}", flush=True)
        else:
            # At the rate of a copy, which reads and writes.
            row["over_reading"] = row["ms"] / (1e3 * size / ceiling["copy_bytes_per_s"])
            print(f"{said}: {row['ms']:.2f} ms, {row['over_reading']:.2f} of reading once", flush=True)
        yield row


def gpu_tests() -> dict[str, Any]:
    """The tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "tests"]
    try:
        done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=_LONGEST)
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        return {"exit_code": 124, "said": [*said.splitlines()[-40:], f"did not end within {_LONGEST} s"]}
    print(done.stdout[-3_000:], flush=True)
    return {"exit_code": done.returncode, "said": done.stdout.splitlines()[-40:]}


def rollout(options: Options, slots: int, host: bool, left: float) -> dict[str, Any]:
    """A population in the loop, in a process of its own."""
    size = ["--network", "small", "--cutoff", "20"] if options.dry_run else ["--cutoff", "200"]
    command = [sys.executable, str(HERE / "population_rollout.py"), "--json", "--no-memory", "--naive-batches", "0"]
    command += ["--game", options.game, "--num-envs", str(slots), "--population", str(max(2 * slots, 32)), *size]
    command += ["--host"] if host else []
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=max(left, 30))
    except subprocess.TimeoutExpired:
        return {"slots": slots, "host": host, "error": "took too long"}
    if done.returncode:
        print(f"{slots} slots failed:\n{done.stderr[-2_000:]}", flush=True)
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return {"slots": slots, "host": host, "error": f"exit code {done.returncode}: {last}"}
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    kept = ("env_steps_per_s", "inference_steps_per_s", "stepped_per_s", "occupancy", "fraction_of_bound")
    row = {"slots": slots, "host": host, **{name: figures[name] for name in kept}}
    row["of_emulators_alone"] = row["stepped_per_s"] / row["env_steps_per_s"]
    print(
        f"{slots} slots{', driven from Python' if host else ''}: {row['of_emulators_alone']:.2f} of envpool alone",
        flush=True,
    )
    return row


def rollouts(options: Options, began: float) -> list[dict[str, Any]] | str:
    """All numbers of slots in the compiled loop, and the middle one driven from Python."""
    if find_spec("envpool") is None:
        return "not measured: envpool is not installed"
    slots = (4,) if options.dry_run else options.slots
    found = []
    for host, number in [(False, slots[len(slots) // 2]), (True, slots[len(slots) // 2]), *((False, n) for n in slots)]:
        if any(row["slots"] == number and row["host"] == host for row in found):
            continue
        left = 60 * options.minutes - (time.perf_counter() - began)
        if left < 30:
            found.append({"slots": number, "host": host, "error": "not measured: no time was left"})
            continue
        found.append(rollout(options, number, host, left))
    return sorted(found, key=lambda row: (row["host"], row["slots"]))


def draw(result: dict[str, Any]) -> Figure:
    """Bandwidth of the kernels, and rollouts against emulators alone."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    kernels, played = figure.subplots(1, 2)
    table = result["kernels"]
    for offset, name, color in ((0.2, "mosaic", "#0072B2"), (-0.2, "xla", "#999999")):
        places = [i + offset for i, row in enumerate(table) if name in row]
        kernels.barh(
            places,
            [100 * row[name].get("of_copy", 0.0) for row in table if name in row],
            0.38,
            color=color,
            label=name,
        )
    kernels.set_yticks(
        range(len(table)), [f"{row['shape']}\n{row['dtype']}, {row['kernels']}" for row in table], fontsize=7
    )
    kernels.set_xlabel("bytes a second (% of a copy)")
    kernels.legend(frameon=False)
    rows = [row for row in result["rollouts"] if "error" not in row] if isinstance(result["rollouts"], list) else []
    for host, name, color in ((False, "compiled loop", "#0072B2"), (True, "driven from Python", "#D55E00")):
        some = [row for row in rows if row["host"] == host]
        played.plot(
            [row["slots"] for row in some], [row["stepped_per_s"] for row in some], "o-", color=color, label=name
        )
    some = [row for row in rows if not row["host"]]
    played.plot(
        [row["slots"] for row in some],
        [row["env_steps_per_s"] for row in some],
        "--",
        color="0.5",
        label="envpool alone",
    )
    played.set_xscale("log", base=2)
    played.set_xlabel("slots")
    played.set_ylabel("steps a second")
    played.legend(frameon=False)
    figure.suptitle(result["machine"]["device"])
    return figure


def on_device(options: Options) -> Iterator[dict[str, Any]]:
    """What is measured on the device alone, so far."""
    result: dict[str, Any] = {
        "machine": machine(),
        "precision": str(getattr(jax.config, "jax_default_matmul_precision", None)),
    }
    result["ceilings"] = ceilings(options)
    for name, rows_of in (("kernels", kernel_table), ("whole_network", whole_network)):
        result[name] = []
        for row in rows_of(options, result["ceilings"]):
            result[name].append(row)
            yield result


def device_in_child(options: Options) -> dict[str, Any]:
    """The same in a process of its own, whose memory is free again for what follows; all it told before it ended."""
    command = [sys.executable, __file__, "--device-part", "--seconds", str(options.seconds)]
    command += ["--dry-run"] if options.dry_run else []
    process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    timer = threading.Timer(_LONGEST, process.kill)
    timer.start()
    told: dict[str, Any] = {}
    for line in process.stdout:
        if line.startswith("{"):
            told = json.loads(line)
        else:
            print(line, end="", flush=True)
    code = process.wait()
    timer.cancel()
    if not told:
        raise SystemExit(code or 1)
    return told | ({"device_part": f"ended early, exit code {code}"} if code else {})


def main() -> int:
    options = tyro.cli(Options, description=__doc__)
    if options.device_part:
        if jax.default_backend() != "gpu" and not options.dry_run:
            print("error: there is no GPU here; --dry-run only sees that everything works", file=sys.stderr)
            return 2
        for so_far in on_device(options):
            print(json.dumps(so_far), flush=True)
        return 0
    began = time.perf_counter()
    result: dict[str, Any] = {"dry_run": options.dry_run, **device_in_child(options)}
    device = result["machine"]["device"].lower().replace(" ", "_")
    out = options.out or HERE / "results" / f"{'dry_' if options.dry_run else ''}{device}.json"

    def write() -> None:
        # After each part: what has been measured stays, whatever comes.
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({**result, "seconds": time.perf_counter() - began}, indent=1) + "\n")

    write()
    tested = {"exit_code": 0, "said": "not run"} if options.dry_run else gpu_tests()
    result["tests"] = tested
    write()
    result["rollouts"] = rollouts(options, began)
    write()
    draw(result).savefig(out.with_suffix(".png"), dpi=100)
    print(f"{out}: {time.perf_counter() - began:.0f} s")
    failed = isinstance(result["rollouts"], list) and any("error" in row for row in result["rollouts"])
    failed |= "device_part" in result or '"error"' in json.dumps([result["kernels"], result.get("whole_network")])
    return 1 if tested["exit_code"] or failed else 0


if __name__ == "__main__":
    sys.exit(main())
