"""The progress display of a run: a line for each finished step, and in terminals and notebooks a bar below them."""

import contextlib
import math
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from tqdm import tqdm

from volvox.report.files import numbers
from volvox.report.metrics import format_duration, format_number

_WIDTH = 79
_COUNTERS = re.compile(r"(.*_)?(frames|timesteps|seconds|episodes)")
_NAMES = {"elite_score": "elite", "training_best": "best", "training_mean": "mean", "evaluation_mean": "evaluation"}
_ORDER = ("new_elite|elite_score", "validation_mean", "evaluation_|test_", "training_best", "training_mean")
_ORDER += ("frames_per_second", ".*loss")
"""Patterns of the metrics that a line shows first."""


def summarize(row: Mapping[str, Any], *, step_name: str = "", width: int = _WIDTH, frame_skip: int = 1) -> str:
    """Returns the most important metrics of a step, as many as fit into `width` characters.

    Args:
      row: Metrics of the step.
      step_name: Metric that counts the steps, which is left out.
      width: Largest length of the result.
      frame_skip: Emulator frames of a timestep.
    """
    shown = {name: x for name, x in numbers(row).items() if not _COUNTERS.fullmatch(name) and name != step_name}
    if row.get("elite_is_new") and "validation_mean" in shown:  # its `elite_score` is not known yet
        shown["new_elite"] = shown.pop("validation_mean")
    elif "elite_score" in shown:
        shown.pop("validation_mean", None)
    order = {name: [re.match(pattern, name) is None for pattern in _ORDER] for name in shown}
    texts: list[str] = []
    for name in sorted(shown, key=lambda name: (name.endswith(("_std", "_error")), *order[name])):
        text = f"{_NAMES.get(name, name.replace('_', ' '))} {format_number(shown[name])}"
        if name == "frames_per_second":
            text = f"{shown[name] / frame_skip:,.0f} timesteps/s"
        elif name.endswith("_per_second"):
            continue
        if len(", ".join([*texts, text])) > width:
            break
        texts.append(text)
    return ", ".join(texts)


class Progress:
    """Shows the progress of a run. Every method returns at once.

    Args:
      total: Number of steps of the whole run; None if another limit ends it.
      done: Steps done before this process.
      frames: Emulator frames of these.
      step_name: What a step is called.
      enabled: False shows nothing.
      stop_after: Seconds after which no further step begins.
      max_frames: Emulator frames of the whole run, after which no further step begins.
      frame_skip: Emulator frames of a timestep.
      stream: Where to write; None is the standard error stream.
    """

    def __init__(
        self,
        total: int | None,
        *,
        done: int = 0,
        frames: int = 0,
        step_name: str = "generation",
        enabled: bool = True,
        stop_after: float | None = None,
        max_frames: float | None = None,
        frame_skip: int = 1,
        stream: TextIO | None = None,
    ):
        self._total, self._stop_after, self._max_frames = total, stop_after, max_frames
        self._step_name, self._frame_skip = step_name, frame_skip
        self._start = self._now = (float(done), float(frames))  # steps, with a fraction of the current one; frames
        self._began, self._announced = time.monotonic(), False
        stream = sys.stderr if stream is None else stream
        self._enabled = enabled and stream is not None and not getattr(stream, "closed", False)
        self._stream, self._bar = _Stream(stream), None
        if self._enabled and (self._stream.isatty() or "ipykernel" in sys.modules):
            layout = {"bar_format": "{percentage:3.0f}%|{bar:20}| {desc}", "leave": False, "dynamic_ncols": True}
            self._bar = tqdm(total=1.0, file=self._stream, **layout)

    def inside(self, figures: Mapping[str, Any]) -> None:
        """Shows the progress within a step.

        Args:
          figures: What a step passes to its monitor: `phase`, `done` and `total` of the phase, `step_done` and
            `step_total` of the step if it has several phases, `frames_per_second`, `actors`, and a `note` to print.
        """
        number = math.floor(self._now[0]) + 1
        done, total = (figures.get(f"step_{name}", figures.get(name)) for name in ("done", "total"))
        self._now = (number - 1 + (min(done / total, 0.999) if done is not None and total else 0.0), self._now[1])
        phase = figures.get("phase", "working")
        if "note" in figures:
            self.note(str(figures["note"]))
        if phase == "compiling" and self._bar is None and not self._announced:
            self.note(f"{self._step_name} {number}: compiling first, which takes some 5 to 30 seconds")
            self._announced = True
        if self._bar is not None:
            counts = [format_number(figures[name]) for name in ("done", "total") if figures.get(name) is not None]
            rate = summarize({"frames_per_second": figures.get("frames_per_second")}, frame_skip=self._frame_skip)
            actors = f"{figures['actors']} actors" if "actors" in figures else ""
            fraction, left = self._limit()
            texts = [f"{self._step_name} {number}: {phase} {'/'.join(counts)}".strip(), rate, actors, left]
            self._bar.n = fraction
            self._bar.set_description_str(", ".join(filter(None, texts)))

    def step(self, done: int, row: Mapping[str, Any]) -> None:
        """Shows that a step is done: the number of steps done in all, its metrics, and the time left."""
        self._now = (float(done), float(row.get("frames") or self._now[1]))
        name = f"{self._step_name} {done}" + ("" if self._total is None else f"/{self._total}")
        times = ", ".join(filter(None, [format_duration(time.monotonic() - self._began), self._limit()[1]]))
        room = _WIDTH - len(name) - len(times) - 4
        line = summarize(row, step_name=self._step_name, width=room, frame_skip=self._frame_skip)
        self.note("  ".join(filter(None, (name, line, times))))

    def note(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        elif self._enabled:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()

    def _limit(self) -> tuple[float, str]:
        """Returns the fraction of the run that is done and a text of the time left, by the limit that ends it first."""
        elapsed = max(time.monotonic() - self._began, 1e-9)
        limits = [] if self._stop_after is None else [(self._stop_after - elapsed, elapsed / self._stop_after)]
        for now, start, end in zip(self._now, self._start, (self._total, self._max_frames), strict=True):
            if end is not None:
                pace = elapsed / (now - start) if now > start else math.inf
                limits.append((pace * (end - now) if now < end else 0.0, now / end))
        left, fraction = min(limits)
        return min(fraction, 1.0), f"{format_duration(left)} left" if 0 < left < math.inf else ""


class _Stream:
    """A stream whose errors are ignored: a lost connection must not end the run."""

    def __init__(self, stream: TextIO | None):
        self._stream: Any = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()
