"""How long a newcomer waits: importing, the first row of `make train` and of the README's lines, and a warm start.

Each is a process of its own, with a new folder for compiled programs (cold) or that of the process before (warm).

    python benchmarks/first_row.py --json --repeats 3
"""

import dataclasses
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
_IMPORTS = 10
"""Imports that are timed; each is a process, after one that only reads the files."""
IMPORT = "import time; t = time.perf_counter(); import volvox; print(time.perf_counter() - t)"
PURE_JAX = """
import sys
import volvox as vx
env = vx.envs.cartpole(num_envs=32, groups=2)
strategy = vx.GA(population_size=32)
algorithm = vx.evolve(strategy, vx.networks.MLP(2, (16,)), env, max_episode_steps=100)
vx.train(algorithm, steps=1, run_dir=sys.argv[1])
"""


@dataclasses.dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
      repeats: Measurements of each; the median is shown, and all are kept.
      json: Print one JSON object.
    """

    repeats: int = 1
    json: bool = False


def readme_lines() -> str:
    """The README's ten lines, with a run directory that the command names."""
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
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    python = sys.executable
    commands = {
        "make_train": [python, "experiments/atari_ga.py", "quick", "--run-dir"],
        "readme": [python, "-c", readme_lines()],
        "pure_jax": [python, "-c", PURE_JAX],
    }
    figures = {"import_seconds": [importing() for _ in range(_IMPORTS + 1)][1:]}
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
