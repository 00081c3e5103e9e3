"""Whether groups and micro-batches would have to change while a run is under way, as GA3C's processes do.

    python benchmarks/retuning.py --out retuning.json

GA3C (Babaeizadeh et al. 2017, arXiv 1611.06256, section 4.1) adjusts its numbers of predictors, trainers and agents
while it runs. Here `vx.tune` chooses groups, threads and the micro-batch before. This tunes A3C on Pong on the idle
machine, and again while other processes keep `--busy` cores busy; then it runs both choices under both loads, in turn,
`--repeats` times. What adjusting could gain is the rate of the choice that was made for a load over that of the choice
which was made for the other load.
"""

import dataclasses
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tyro
from scipy import stats

import volvox as vx
from volvox.report.files import write_file
from volvox.runs.provenance import provenance


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """A comparison.

    Attributes:
      busy: Processes that only compute, as the other load.
      seconds: Seconds of a trial.
      repeats: Trials of each choice under each load, at least 6.
      tuned: File of earlier results whose choices are taken instead of tuning again.
      out: File of the results.
    """

    busy: int = 1
    seconds: float = 10.0
    repeats: int = 10
    tuned: Path | None = None
    out: Path = Path("retuning.json")


def make(groups: int, threads: int, micro_batch: int) -> vx.Algorithm:
    env = vx.envs.atari("Pong", num_envs=48, groups=groups, threads=threads)
    network = vx.networks.ActorCritic(env.spec.num_actions or 0, vx.networks.SmallTorso())
    return vx.learn(vx.A3C(segment_length=5, micro_batch=micro_batch), network, env)


CHOICES = {"groups": [2, 3, 4], "threads": [2, 1], "micro_batch": [4, 8, 2]}


@contextmanager
def loaded(processes: int) -> Iterator[None]:
    """Keeps so many cores busy."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    if settings.repeats < 6:
        raise ValueError(f"--repeats {settings.repeats}: an interval of 95% takes 6 pairs or more.")
    loads, rates = {"idle": 0, "busy": settings.busy}, {}
    tuned = json.loads(settings.tuned.read_text())["tuned"] if settings.tuned else {}
    if settings.tuned and set(tuned) != set(loads):
        raise ValueError(f"--tuned {settings.tuned} has choices for {sorted(tuned)}; give one with {sorted(loads)}.")
    for load, processes in loads.items():
        if load not in tuned:
            with loaded(processes):
                tuned[load] = vx.tune(make, CHOICES, seconds=settings.seconds, cache=None).settings
        print(f"tuned for {load}: {tuned[load]}", flush=True)
    cells = list(itertools.product(loads, tuned))
    for load, choice in (cell for i in range(settings.repeats) for cell in cells[:: -1 if i % 2 else 1]):
        with loaded(loads[load]):
            only = {setting: [value] for setting, value in tuned[choice].items()}
            trial = vx.tune(make, only, seconds=settings.seconds, cache=None)
        rates.setdefault((load, choice), []).append(trial.timesteps_per_second)
    gains: dict[str, Any] = {}
    for load, other in (("idle", "busy"), ("busy", "idle")):
        pairs = [a / b - 1 for a, b in zip(rates[load, load], rates[load, other], strict=True)]
        # The median, with an interval by order statistics: now and then a shared machine spoils a trial.
        low, high = stats.quantile_test(pairs).confidence_interval(0.95)
        gains[load] = {
            "median": round(statistics.median(pairs), 4),
            "interval_95": [round(float(x), 4) for x in (low, high)],
        }
        print(f"{load}: retuned {gains[load]['median']:+.1%} [{low:+.1%}, {high:+.1%}]", flush=True)
    trials = {f"{load}, tuned for {choice}": [round(x) for x in found] for (load, choice), found in rates.items()}
    result = {**provenance(), "tuned": tuned, "timesteps_per_second": trials, "gain_of_retuning": gains}
    write_file(settings.out, json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
