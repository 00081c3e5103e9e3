"""How long a newcomer waits for the import, and for the first row of metrics.

The first row is that of `make train`, of the README's example, and of a population in pure JAX. Each is measured in a
process of its own, with an empty folder for compiled programs (cold) or that of the process before (warm).

    python benchmarks/first_row.py --json --repeats 3
    python benchmarks/first_row.py --json --configurations 64

With `--configurations`, only PPO on CartPole is measured: a process trains that many configurations in turn, which
differ in numbers, and a second process does the same with the compiled programs of the first.
"""

import dataclasses
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tyro
from parts import machine, show

ROOT = Path(__file__).parents[1]
NUM_IMPORTS = 10
"""Imports that are timed, each in a process of its own, after one that only reads the files."""
IMPORT_SCRIPT = "import time; t = time.perf_counter(); import volvox; print(time.perf_counter() - t)"
PURE_JAX_SCRIPT = """
import sys
import volvox as vx
env = vx.envs.cartpole(num_envs=32, groups=2)
strategy = vx.GA(population_size=32)
algorithm = vx.evolve(strategy, vx.networks.MLP(2, (16,)), env, max_episode_steps=100)
vx.train(algorithm, steps=1, run_dir=sys.argv[1])
"""

CONFIGURATIONS_SCRIPT = """
import json, sys, time
import volvox as vx
seconds = []
for i in range(int(sys.argv[1])):
    began = time.perf_counter()
    numbers = {"learning_rate": 1e-3 * 0.97**i, "entropy_coefficient": 0.01 * 0.97**i, "clip": 0.2 * 0.99**i}
    settings = vx.PPO(**numbers, num_epochs=4, num_minibatches=4, lag=1, rounds_per_iteration=1)
    env = vx.envs.cartpole(num_envs=8, groups=2)
    run = vx.train(vx.learn(settings, vx.networks.CategoricalMLP(2), env), steps=1, progress=False)
    seconds.append(time.perf_counter() - began)
print(json.dumps(seconds))
"""


@dataclasses.dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
      repeats: Measurements of each; the median is shown, and all are kept.
      json: Print one JSON object.
      configurations: Number of configurations of PPO; None measures everything else.
    """

    repeats: int = 1
    configurations: int | None = None
    json: bool = False


def readme_lines() -> str:
    """The README's example up to `run.plot()`, with its run directory as the argument of the command."""
    lines = re.search(
        r"^    import volvox as vx\n(.*?)    run\.plot\(\)", (ROOT / "README.md").read_text(), re.M | re.S
    )
    assert lines is not None
    text = "import sys\nimport volvox as vx\n" + re.sub("(?m)^    ", "", lines[1])
    return text.replace('"runs/frostbite"', "sys.argv[1]")


def first_row(command: list[str], cache: Path) -> float:
    """Seconds from starting a command, whose last word is the run directory, to its first row; then it is stopped."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        began = time.perf_counter()
        cached = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        environment = {**os.environ, **cached}
        process = subprocess.Popen([*command, str(run_dir)], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        rows = run_dir / "metrics.jsonl"
        while True:
            code = process.poll()
            if rows.exists() and rows.stat().st_size:
                break
            if code is not None:
                raise RuntimeError(f"{command} ended with exit code {code} before its first row")
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        process.send_signal(signal.SIGINT)
        process.wait()
    return seconds


def importing() -> float:
    done = subprocess.run([sys.executable, "-c", IMPORT_SCRIPT], capture_output=True, text=True, check=True)
    return float(done.stdout)


def first_rows(configurations: int) -> dict[str, float]:
    """Seconds to the first row of the first, the second and all configurations, in a cold and in a warm process."""
    figures = {}
    with tempfile.TemporaryDirectory() as cache:
        cached = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        command = [sys.executable, "-c", CONFIGURATIONS_SCRIPT, str(configurations)]
        for kind in ("cold", "warm"):
            done = subprocess.run(command, env={**os.environ, **cached}, capture_output=True, text=True, check=True)
            seconds = json.loads(done.stdout.splitlines()[-1])
            names = {"first": seconds[0], "second": seconds[1], "all": sum(seconds)}
            figures |= {f"{name}_{kind}_seconds": value for name, value in names.items()}
    return figures


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    if options.configurations is not None:
        show({**first_rows(options.configurations), "settings": dataclasses.asdict(options), **machine()}, options.json)
        return
    python = sys.executable
    commands = {
        "make_train": [python, "experiments/atari_ga.py", "quick", "--run-dir"],
        "readme": [python, "-c", readme_lines()],
        "pure_jax": [python, "-c", PURE_JAX_SCRIPT],
    }
    figures = {"import_seconds": [importing() for _ in range(NUM_IMPORTS + 1)][1:]}
    for name, command in commands.items():
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as cache:
                for kind in ("cold", "warm"):
                    figures.setdefault(f"{name}_{kind}_seconds", []).append(first_row(command, Path(cache)))
    medians = {name: statistics.median(values) for name, values in figures.items()}
    all_ = {f"{name}_all": values for name, values in figures.items()}
    show({**medians, **(all_ if options.json else {}), **machine()}, options.json)


if __name__ == "__main__":
    main()
