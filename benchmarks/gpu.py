"""Everything that needs a GPU, in one command of some minutes: tests, loops, whole networks, kernels and peers.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --dry-run --out dry.json

Every part is a process of its own with a time limit; the most valuable come first, and one that fails stops no other.
The result is written after each: `benchmarks/results/gpu_<device>.json`. At the end it prints the tables that
`gpu_report.py` makes of this file. With `--only` the other parts of that file are kept. It needs no network.
`--dry-run` goes through all parts at small sizes on any device; ignore its figures.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import tyro
from gpu_report import report

from volvox.report.files import METRICS, read_metrics

Flag = tyro.conf.arg
HERE = Path(__file__).parent
ROLLOUT = "population_rollout.py --json --no-memory --naive-batches 0 --cutoff 100 --num-envs"
UPDATES = "td3.py --json --peers --learners 8 64 --iterations 3"
SMALL_ROLLOUT = "--num-envs 4 --population 12 --network small --cutoff 20 --naive-batches 0"
SMALL_UPDATES = "--iterations 1 --learners 2 --width 32 --batch-size 32"
SMALL_POPULATION = "--network small --num-envs 4 --population-size 12 --max-episode-steps 20 --noise table"
SMALL_POPULATION += " --num-validation-episodes 1 --minutes 0.02"
PARTS = {
    # name: (time limit in seconds, command, further flags in a dry run; the last of a flag holds)
    "tests": (120, "-m pytest -m gpu -q -p no:cacheprovider ../tests/ops", ""),
    "rollout_low_rank_1024": (100, f"{ROLLOUT} 1024 --population 3072 --noise low-rank", SMALL_ROLLOUT),
    "rollout_256": (120, f"{ROLLOUT} 256 --population 768 --naive-batches 1 --peers", SMALL_ROLLOUT),
    "jax_envs": (60, "jax_envs.py --json --suite cartpole --turns 2 --seconds 5", "--seconds 0.1 --num-envs 8"),
    "sac": (160, f"{UPDATES} --learner sac", SMALL_UPDATES),
    "ppo_bfloat16": (100, "ppo.py --json --dtype bfloat16 --seconds 5 --turns 1", "--seconds 0.3 --num-envs 2"),
    "many_learners": (100, "many_learners.py --json --parts ppo --turns 2 --rounds 10", "--ppo-learners 2 --rounds 2"),
    "forward": (100, "population_forward.py --json --num-networks 1024", "--num-networks 4 --size small --repeats 2"),
    "td3": (160, UPDATES, SMALL_UPDATES),
    "ppo": (140, "ppo.py --json --peers --seconds 8 --turns 2", "--seconds 0.3 --turns 1 --num-envs 2"),
    "a3c": (140, "actor_critic.py --json --peers --seconds 8", "--seconds 0.3 --num-envs 4"),
    "kernels": (120, "kernels.py --json", "--tiny --seconds 0.05"),
    "rollout_1024": (120, f"{ROLLOUT} 1024 --population 3072", SMALL_ROLLOUT),
    "atari_ga": (300, "../experiments/atari_ga.py gpu --no-video --minutes 4", f"{SMALL_POPULATION} --num-parents 4"),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """The GPU benchmark."""

    minutes: Annotated[float, Flag(help="time limit of all parts in minutes")] = 8.0
    only: Annotated[tuple[str, ...], Flag(help=f"names of parts: {', '.join(PARTS)}; default: all")] = ()
    out: Annotated[Path | None, Flag(help="where the result goes; default: benchmarks/results/gpu_<device>.json")] = (
        None
    )
    dry_run: bool = False


def part(name: str, options: Options, left: float, environment: dict[str, str]) -> dict[str, Any]:
    """Returns the figures of one part, or the last lines of its output if it failed."""
    began, (limit, command, small) = time.perf_counter(), PARTS[name]
    words = [sys.executable, *command.split(), *(small.split() if options.dry_run else [])]
    if find_spec("torch") is None and "--peers" in words:
        words.remove("--peers")
    run_dir = Path(environment["JAX_COMPILATION_CACHE_DIR"], name)
    if name == "atari_ga":
        words += ["--run-dir", str(run_dir)]
    how: Any = {"cwd": HERE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    process = subprocess.Popen(words, start_new_session=True, **how)
    try:
        output, errors = process.communicate(timeout=min(limit, left))
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # peers as well, which would slow down the next part
        code, (output, errors) = 124, process.communicate()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    found: dict[str, Any] = {"exit_code": code, "took_s": time.perf_counter() - began}
    lines = (output + errors).splitlines()
    try:
        if not code and name == "atari_ga":
            return found | {"command": words[1:], "rows": read_metrics(run_dir / METRICS), "output": lines[-3:]}
        if not code and name != "tests":
            return found | json.loads(output.splitlines()[-1])
    except (IndexError, OSError, ValueError) as error:
        found["exit_code"] = f"no figures: {error}"
    print("\n".join(lines[-25:]), flush=True)
    return found | {"output": lines[-25:]}


def main() -> int:
    options = tyro.cli(Options, description=__doc__)
    began = time.perf_counter()
    # In a process of its own, because a process that knows the GPU keeps some of its memory.
    describe = [sys.executable, "-c", "import json; from parts import machine; print(json.dumps(machine()))"]
    described = json.loads(subprocess.run(describe, cwd=HERE, check=True, capture_output=True, text=True).stdout)
    described["made"]["command"] = sys.argv
    if "cpu" in described["device"].lower() and not options.dry_run:
        print("error: there is no GPU here; --dry-run tests the script without one", file=sys.stderr)
        return 2
    device = described["device"].lower().replace(" ", "_")
    out = options.out or HERE / "results" / f"{'dry' if options.dry_run else 'gpu'}_{device}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"dry_run": options.dry_run, **described, "parts": {}}
    if options.only and out.exists():
        old = json.loads(out.read_text())
        before = old["made"] if isinstance(old["made"], list) else [old["made"]]
        result |= {"parts": old["parts"], "made": [*before, result["made"]]}
    with tempfile.TemporaryDirectory() as programs:
        # Peers share the GPU with the process that measures them.
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": programs, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        # Parts share many small programs.
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        if options.dry_run:
            # Two parts run at once; threads of PyTorch that wait actively would take each other's processors.
            environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "OMP_WAIT_POLICY": "passive"}

        lock = threading.Lock()

        def run(name: str) -> None:
            left = 60 * options.minutes - (time.perf_counter() - began)
            found: dict[str, Any] = {"exit_code": None, "output": ["not begun: no time was left"]}
            if left >= 10:
                found = part(name, options, left, environment)
            with lock:
                result["parts"] |= {name: found}
                out.write_text(json.dumps(result, indent=1) + "\n")
            short = {k: round(v, 3) for k, v in found.items() if isinstance(v, float)}
            print(f"{name}: exit code {found['exit_code']}, {short}", flush=True)

        list((ThreadPoolExecutor(2).map if options.dry_run else map)(run, options.only or PARTS))
    print("\n".join(report(result, str(out))))
    failed = [name for name, found in result["parts"].items() if found["exit_code"]]
    print(f"{out}: {time.perf_counter() - began:.0f} s, failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
