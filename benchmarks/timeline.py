"""When emulators and device work, with one group of environments and with two, as a picture.

    python benchmarks/timeline.py --json --picture timeline.png

A population plays in the compiled loop while another process reads, every two milliseconds, the time that each thread
of this process has run (Linux: `/proc/<pid>/task/*/schedstat`). Threads that start with the pools belong to the
emulators, all others to the device, which must be a CPU. With one group the two take turns; with two they overlap.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure
from parts import machine, show
from population_rollout import Options as RolloutOptions
from population_rollout import Setting, inference_steps_per_s

from volvox.types import Interrupted

Flag = tyro.conf.arg
BUSY = 0.5
"""Threads that have to run, on the average over an interval, for their side to count as busy in it."""


@dataclasses.dataclass(frozen=True)
class Options:
    """A population in the loop, whose threads are observed."""

    game: str = "Frostbite"
    num_envs: int = 64
    seconds: Annotated[float, Flag(help="of the loop that are looked at")] = 5.0
    window: Annotated[float, Flag(help="seconds of it that are drawn")] = 0.4
    interval: Annotated[float, Flag(help="seconds from one look to the next")] = 0.002
    picture: Annotated[Path | None, Flag(help="where to draw it, ending in .png")] = None
    json: Annotated[bool, Flag(help="print one JSON object")] = False


@contextmanager
def sampled(interval: float, path: str) -> Iterator[None]:
    """Samples this process during the block."""
    script = str(Path(__file__).with_name("thread_times.py"))
    command = [sys.executable, script, str(os.getpid()), str(interval), path]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)  # it is ready
    try:
        yield
    finally:
        process.communicate()


def threads_of_this_process() -> set[int]:
    return {int(thread) for thread in os.listdir("/proc/self/task")}


def look(options: Options, num_groups: int) -> dict[str, np.ndarray]:
    """Runs the loop; per interval: its begin in seconds, and how many threads of each side ran on the average."""
    setting = Setting(RolloutOptions(game=options.game, num_envs=options.num_envs, groups=num_groups))
    n = 4 * options.num_envs
    evaluator = setting.evaluator(n)
    population = setting.population(evaluator.encoding, n, seed=0)
    inference_steps_per_s(setting, evaluator.encoding, population, seconds=0.1)  # starts the threads of the device
    before = threads_of_this_process()
    began, ended = [], []

    def monitor(progress: dict[str, Any]) -> bool:
        if "phase" in progress:
            return False
        # The clock starts after the first chunks, which compile.
        now = time.monotonic()
        if len(began) < 4:
            began.append(now)
            return False
        ended.append(now)
        return now - began[-1] > options.seconds

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/samples.npz"
        with sampled(options.interval, path), suppress(Interrupted):
            evaluator.evaluate(population, 1, max_episode_steps=5_000, seed=0, pool_seed=0, monitor=monitor)
        emulators = threads_of_this_process() - before
        evaluator.close()
        with np.load(path) as samples:
            times, ids, ran = samples["times"], samples["threads"], samples["nanoseconds"]
    inside = (times >= began[-1]) & (times <= ended[-1])
    times, ran = times[inside], ran[inside]
    rate = np.diff(ran, axis=0) / 1e9 / np.diff(times)[:, None]
    is_emulator = np.isin(ids, list(emulators))
    return {
        "begin": times[:-1] - times[0],
        "emulators": rate[:, is_emulator].sum(1),
        "device": rate[:, ~is_emulator].sum(1),
    }


def figures_of(seen: dict[str, np.ndarray]) -> dict[str, float]:
    """Shares of the time."""
    emulators, device = seen["emulators"] > BUSY, seen["device"] > BUSY
    return {
        "emulators_busy": float(emulators.mean()),
        "device_busy": float(device.mean()),
        "both_busy": float((emulators & device).mean()),
        "device_idle": float((~device).mean()),
    }


def draw(options: Options, seen: dict[int, dict[str, np.ndarray]]) -> Figure:
    """One row of panels a number of groups."""
    figure = Figure(figsize=(9, 2.2 * len(seen)), layout="constrained")
    panels = figure.subplots(len(seen), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (num_groups, one) in zip(panels, seen.items(), strict=True):
        drawn = one["begin"] <= options.window
        for name, color in (("emulators", "#D55E00"), ("device", "#0072B2")):
            sign = 1 if name == "emulators" else -1
            axes.fill_between(
                1e3 * one["begin"][drawn], sign * one[name][drawn], step="post", color=color, lw=0, label=name
            )
        axes.axhline(0, color="0.3", lw=0.8)
        axes.set_ylabel("running threads")
        axes.set_title(f"{num_groups} group{'s' if num_groups > 1 else ''} of environments", loc="left")
        axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    panels[0].legend(loc="upper right", ncols=2)
    panels[-1].set_xlabel("milliseconds")
    return figure


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    if jax.default_backend() != "cpu":
        raise SystemExit("threads of this process are watched: the device must be a CPU (JAX_PLATFORMS=cpu)")
    if options.picture is not None and options.picture.suffix != ".png":
        raise SystemExit(f"--picture {options.picture}: give a name ending in .png")
    seen = {num_groups: look(options, num_groups) for num_groups in (1, 2)}
    if options.picture is not None:
        draw(options, seen).savefig(options.picture, dpi=100)
    figures = {"one_group": figures_of(seen[1]), "two_groups": figures_of(seen[2])}
    settings = json.loads(json.dumps(dataclasses.asdict(options), default=str))
    show(figures | {"settings": settings, **machine()}, options.json)


if __name__ == "__main__":
    main()
