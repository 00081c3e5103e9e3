"""Everything that needs a GPU, in one command of some minutes: tests, loops, whole networks, kernels and peers.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --dry-run --out dry.json

Every part is a process of its own with a time limit; the most valuable come first, and one that fails stops no other.
The result is written after each: `benchmarks/results/gpu_<device>.json`, of which `gpu_report.py` makes tables. With
`--only` the other parts of that file are kept. It needs no network. `--dry-run` goes through all parts at small sizes
on any device; ignore its figures.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import tyro

from volvox.report.files import METRICS, read_metrics

Flag = tyro.conf.arg
HERE = Path(__file__).parent
ROLLOUT = "population_rollout.py --json --no-memory --naive-batches 0 --cutoff 100 --num-envs"
PARTS = {
    # name: (time limit in seconds, command)
    "tests": (120, "-m pytest -m gpu -q -p no:cacheprovider ../tests/ops"),
    "rollout_low_rank_1024": (100, f"{ROLLOUT} 1024 --population 3072 --noise low-rank"),
    "rollout_256": (120, f"{ROLLOUT} 256 --population 768 --naive-batches 1 --peers"),
    "jax_envs": (60, "jax_envs.py --json --suite cartpole --turns 2 --seconds 5"),
    "forward": (100, "population_forward.py --json --num-networks 1024"),
    "td3": (160, "td3.py --json --peers --learners 8 64 --iterations 3"),
    "ppo": (140, "ppo.py --json --peers --seconds 8 --turns 2"),
    "a3c": (140, "actor_critic.py --json --peers --seconds 8"),
    "kernels": (120, "kernels.py --json"),
    "rollout_1024": (120, f"{ROLLOUT} 1024 --population 3072"),
    "rollout_one_group_1024": (100, f"{ROLLOUT} 1024 --population 3072 --groups 1"),
    "rollout_2048": (120, f"{ROLLOUT} 2048 --population 6144"),
    "rollout_host_1024": (120, f"{ROLLOUT} 1024 --population 3072 --host"),
    "atari_ga": (300, "../experiments/atari_ga.py gpu --no-video --minutes 4"),
    "atari_es": (300, "../experiments/atari_es.py gpu --no-video --minutes 4"),
}
SMALL = "--network small --num-envs 4 --population-size 12 --max-episode-steps 20 --num-validation-episodes 1"
DRY = {
    "rollout": "--num-envs 4 --population 12 --network small --cutoff 20 --naive-batches 0",
    "forward": "--num-networks 4 --size small --repeats 2",
    "kernels": "--tiny --seconds 0.05",
    "ppo": "--seconds 0.3 --turns 1 --num-envs 2",
    "td3": "--iterations 1 --learners 2 --width 32 --batch-size 32",
    "a3c": "--seconds 0.3 --num-envs 4",
    "jax_envs": "--seconds 0.1 --turns 1 --num-envs 8",
    "atari_ga": f"{SMALL} --num-parents 4 --noise table --minutes 0.1",
    "atari_es": f"{SMALL} --noise table --minutes 0.1",
}
"""Flags of the same parts in a dry run; the last of a flag holds."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The GPU benchmark."""

    minutes: Annotated[float, Flag(help="time limit of all parts in minutes")] = 8.0
    only: Annotated[tuple[str, ...], Flag(help=f"names of parts: {', '.join(PARTS)}; default: all")] = ()
    out: Annotated[Path | None, Flag(help="where the result goes; default: benchmarks/results/gpu_<device>.json")] = (
        None
    )
    dry_run: bool = False


def flags(name: str, options: Options) -> list[str]:
    """The command of a part."""
    words = [sys.executable, *PARTS[name][1].split()]
    if options.dry_run:
        words += next((small.split() for part, small in DRY.items() if name.startswith(part)), [])
        if find_spec("torch") is None and "--peers" in words:
            words.remove("--peers")
    return words


def part(name: str, options: Options, left: float, environment: dict[str, str]) -> dict[str, Any]:
    """Returns the figures of one part, or the last lines of its output if it failed."""
    began, words = time.perf_counter(), flags(name, options)
    run_dir = Path(environment["JAX_COMPILATION_CACHE_DIR"], name)
    if name.startswith("atari"):
        words += ["--run-dir", str(run_dir)]
    how: Any = {"cwd": HERE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    process = subprocess.Popen(words, start_new_session=True, **how)
    try:
        output, errors = process.communicate(timeout=min(PARTS[name][0], left))
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # peers as well, which would slow down the next part
        code, (output, errors) = 124, process.communicate()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    found: dict[str, Any] = {"exit_code": code, "took_s": time.perf_counter() - began}
    if name.startswith("atari") and not code:
        return found | {
            "command": words[1:],
            "rows": read_metrics(run_dir / METRICS),
            "output": errors.splitlines()[-3:],
        }
    if name != "tests" and not code:
        return found | json.loads(output.strip().splitlines()[-1])
    print("\n".join((output + errors).splitlines()[-25:]), flush=True)
    return found | {"output": (output + errors).splitlines()[-25:]}


def main() -> int:
    options = tyro.cli(Options, description=__doc__)
    began = time.perf_counter()
    # In a process of its own, because a process that knows the GPU keeps some of its memory.
    describe = [sys.executable, "-c", "import json; from parts import machine; print(json.dumps(machine()))"]
    described = json.loads(subprocess.run(describe, cwd=HERE, check=True, capture_output=True, text=True).stdout)
    if "cpu" in described["device"].lower() and not options.dry_run:
        print("error: there is no GPU here; --dry-run tests the script without one", file=sys.stderr)
        return 2
    device = described["device"].lower().replace(" ", "_")
    out = options.out or HERE / "results" / f"{'dry' if options.dry_run else 'gpu'}_{device}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"dry_run": options.dry_run, **described, "parts": {}}
    if options.only and out.exists():
        result["parts"] = json.loads(out.read_text())["parts"]
    with tempfile.TemporaryDirectory() as programs:
        # Peers share the GPU with the process that measures them.
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": programs, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        # Parts share many small programs.
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        if options.dry_run:
            environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        for name in options.only or PARTS:
            left = 60 * options.minutes - (time.perf_counter() - began)
            if left < 10:
                result["parts"][name] = {"exit_code": None, "output": ["not begun: no time was left"]}
                continue
            found = result["parts"][name] = part(name, options, left, environment)
            out.write_text(json.dumps(result, indent=1) + "\n")
            short = {k: round(v, 3) for k, v in found.items() if isinstance(v, float)}
            print(f"{name}: exit code {found['exit_code']}, {short}", flush=True)
    failed = [name for name, found in result["parts"].items() if found["exit_code"]]
    print(f"{out}: {time.perf_counter() - began:.0f} s, failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
