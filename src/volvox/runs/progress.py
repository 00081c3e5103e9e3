"""The progress display of a run: a line for each finished step, and in terminals and notebooks a bar below them."""

import contextlib
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from volvox.data.metrics import EACH
from volvox.report.files import Row, numbers
from volvox.report.metrics import SCORES, format_duration, format_number
from volvox.types import Algorithm

_WIDTH = 79
_COUNTERS = re.compile(r"(.*_)?(frames|timesteps|seconds|episodes|per_second)")
_NOTES = {
    "compiling": "compiling, which takes about 5 to 30 seconds",
    "waiting for actors": "waiting for Ray actors to start; `ray status` shows free resources",
}
"""Phases that are announced once, in a line of their own."""


def summarize(row: Mapping[str, Any], *, step_name: str, width: int, frame_skip: int) -> str:
    """Returns the rate and the most important metrics of a step, as many as fit into `width` characters."""
    figures = numbers(row)
    shown = [name for name in figures if not _COUNTERS.fullmatch(name) and name != step_name]
    rank = {name: number for number, name in enumerate(SCORES)}
    shown.sort(key=lambda name: (name.endswith(("_std", "_error")), rank.get(name, len(SCORES))))
    best = {name: max(row[name + EACH]) for name in SCORES if name + EACH in row}  # of several learners
    shown = [name for name in shown if not (name == "training_best" and best)]
    texts = [
        f"{name.replace('_', ' ')} {format_number(figures[name])}"
        + (f" (best {format_number(best[name])})" if name in best else "")
        for name in shown
    ]
    if "frames_per_second" in figures:
        texts.insert(1, f"{figures['frames_per_second'] / frame_skip:,.0f} timesteps/s")
    line = ""
    for text in texts:
        longer = f"{line}, {text}" if line else text
        line = longer if len(longer) <= width else line
    return line


class Progress:
    """Shows the progress of a run on the standard error stream. A lost connection does not end the run.

    Args:
      algorithm: The algorithm.
      rows: Rows of the steps before this process.
      shown: Whether anything is shown.
      steps: Number of steps of the whole run; None if another limit ends it.
      stop_after: Seconds after which the run ends.
      limits: Values of the metrics `frames` and `timesteps` at which the run ends.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        rows: Sequence[Row],
        shown: bool,
        steps: int | None,
        stop_after: float | None,
        limits: Mapping[str, float],
    ):
        self._shown, self._steps, self._stop_after, self._limits = shown, steps, stop_after, limits
        self._step_name, self._frame_skip = algorithm.step_name, algorithm.env.spec.frame_skip
        # Steps, with a fraction of the current one, and the metrics that have limits.
        self._start = self._now = self._counts(float(len(rows)), rows[-1] if rows else {})
        self._began, self._announced = time.monotonic(), set[str]()
        is_interactive = sys.stderr.isatty() or "ipykernel" in sys.modules
        layout = {"bar_format": "{percentage:3.0f}%|{bar:20}| {desc}", "leave": False, "dynamic_ncols": True}
        self._bar = tqdm(total=1.0, **layout) if shown and is_interactive else None

    def inside(self, figures: Mapping[str, Any]) -> None:
        """Shows the progress within a step.

        Args:
          figures: Argument of the monitor: `phase`, `done` and `total` of the phase, `step_done` and
            `step_total` of the step if it has several phases, `frames_per_second`, and `actors`.
        """
        number = math.floor(self._now[0]) + 1
        done, total = (figures.get(f"step_{name}", figures.get(name)) for name in ("done", "total"))
        self._now = (number - 1 + (min(done / total, 0.999) if done is not None and total else 0.0), *self._now[1:])
        phase = figures.get("phase", "working")
        if phase in _NOTES and phase not in self._announced:
            self.note(f"{self._step_name} {number}: {_NOTES[phase]}")
            self._announced.add(phase)
        if self._bar is None:
            return
        counts = "/".join(format_number(figures[name]) for name in ("done", "total") if name in figures)
        rate, actors = figures.get("frames_per_second"), figures.get("actors")
        fraction, left = self._limit()
        texts = [f"{self._step_name} {number}: {phase} {counts}".strip()]
        texts += [f"{rate / self._frame_skip:,.0f} timesteps/s"] if rate else []
        texts += [f"{actors} actors"] if actors else []
        self._bar.n = fraction
        with _lost_connections():
            self._bar.set_description_str(", ".join([*texts, left] if left else texts))

    def step(self, done: int, row: Mapping[str, Any]) -> None:
        """Shows that a step is done: the number of steps done in all, its metrics, and the time left."""
        self._now = self._counts(float(done), row)
        name = f"{self._step_name} {done}" + ("" if self._steps is None else f"/{self._steps}")
        times = ", ".join(filter(None, [format_duration(time.monotonic() - self._began), self._limit()[1]]))
        room = _WIDTH - len(name) - len(times) - 4
        line = summarize(row, step_name=self._step_name, width=room, frame_skip=self._frame_skip)
        self.note("  ".join(filter(None, (name, line, times))))

    def _counts(self, steps: float, row: Mapping[str, Any]) -> tuple[float, ...]:
        return (steps, *(numbers(row).get(name, 0.0) for name in self._limits))

    def note(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        with _lost_connections():
            if self._shown:
                tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        """Removes the bar."""
        with _lost_connections():
            if self._bar is not None:
                self._bar.close()

    def _limit(self) -> tuple[float, str]:
        """Returns the fraction of the run that is done and a text of the time left, by the limit that ends it first."""
        elapsed = max(time.monotonic() - self._began, 1e-9)
        limits = [] if self._stop_after is None else [(self._stop_after - elapsed, elapsed / self._stop_after)]
        for now, start, end in zip(self._now, self._start, (self._steps, *self._limits.values()), strict=True):
            if end is not None:
                pace = elapsed / (now - start) if now > start else math.inf
                limits.append((pace * (end - now) if now < end else 0.0, now / end))
        left, fraction = min(limits)
        # A timedelta cannot hold times that are much longer than 1e10 seconds.
        return min(fraction, 1.0), f"{format_duration(left)} left" if 0 < left < 1e10 else ""


def _lost_connections() -> contextlib.suppress:
    """Ignores errors of a stream whose terminal is gone, or that is closed (ValueError)."""
    return contextlib.suppress(OSError, ValueError)
