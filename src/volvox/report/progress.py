"""Progress: one line for each finished step and, in terminals and notebooks, a status line below them."""

import io
import math
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, TextIO

from volvox.report.rows import numbers

_COLUMNS = 80
_BAR = 20
"""Characters of the bar."""
_MEASURED = 2.0
"""Seconds of a rate before it is used to say how long a step takes."""
_LONG = 30 * 86_400.0
"""Expected seconds of a whole run above which a warning is printed."""
_KEPT = 200
"""Lines that a notebook shows."""
_PLACES = ("phase", "role", "done", "total", "stepped", "step_done", "step_total")
"""Figures from inside a step that say where it is; all others are shown as figures."""
_COUNT = re.compile("(.*_)?(frames|seconds|episodes)|evaluation_timesteps")
_NAMES = {"elite_score": "elite", "training_best": "best", "training_mean": "mean", "validation_mean": "validation"}
_NAMES |= {"evaluation_mean": "evaluation", "evaluation_best": "best evaluation", "test_score": "test"}
_FIRST = ("new_elite|elite_score", "validation_mean", "evaluation_|test_", "training_best", "training_mean")
_FIRST += ("frames_per_second", ".*loss", "occupancy")
"""What the names of the most important metrics begin with, in the order in which a line shows them."""


def figures(metrics: Mapping[str, Any], *, skip: Collection[str] = (), width: int = 100, frame_skip: int = 1) -> str:
    """Writes the numbers of a step in one line, as many as there is room for.

    The score of the elite comes first: for a new elite the mean by which it was chosen, and without an elite the mean
    of validation. Scores of evaluations and tests follow, then the best and the mean of training, timesteps per
    second, losses, and the occupancy. Other metrics follow in their order, and measures of spread come last. Counts
    (the step, frames, seconds) and other rates are not shown.

    Args:
      metrics: Metrics of a step, or figures from inside it; what is not a number is left out.
      skip: Names to leave out.
      width: Characters that the line may have; the first figure is shown however long it is.
      frame_skip: Frames of a timestep.
    """
    shown = {name: value for name, value in numbers(metrics).items() if name not in skip and not _COUNT.fullmatch(name)}
    if "frames_per_second" in shown:
        shown = {name: value for name, value in shown.items() if not name.endswith("_per_second")}
        shown["frames_per_second"] = metrics["frames_per_second"] / frame_skip
    if "validation_mean" in shown and metrics.get("elite_is_new"):
        shown = {"new_elite": shown.pop("validation_mean")} | shown  # which has played nothing else yet
    elif "elite_score" in shown:  # which has the elite's validation in it
        shown.pop("validation_mean", None)
    line = ""
    for name in sorted(shown, key=_rank):
        words = _NAMES.get(name, name.removesuffix("_per_second").replace("_", " "))
        figure = f"{words} {short(shown[name])}"
        if name.endswith("_per_second"):
            figure = f"{_rounded(shown[name])} {'timesteps' if name == 'frames_per_second' else words}/s"
        longer = f"{line}, {figure}" if line else figure
        if line and len(longer) > width:
            break
        line = longer
    return line


def short(value: float) -> str:
    """Writes a number with at most 4 digits: 0.123, 1432, 57.6k, 1.25M."""
    for size, letter in ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")):
        text = f"{value / size:.4g}"
        if abs(float(text)) < (1e4 if size == 1 else 1e3):
            return text + letter
    return f"{value:.4g}"


def _rounded(rate: float) -> str:
    """Writes a rate, of which three digits mean something."""
    return short(float(f"{rate:.3g}"))


def clock(seconds: float) -> str:
    """Writes a duration: 0:07, 1:02:03, 2 d 3 h, 31 d, 1.5 years."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24 * 365:
        return f"{_rounded(hours / 24 / 365.25)} years"
    if hours >= 48:
        return f"{hours // 24} d" + (f" {hours % 24} h" if hours < 24 * 30 else "")
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel; Colab's has a class that is made of Jupyter's."""
    ipython = sys.modules.get("IPython")
    kinds = () if ipython is None else type(ipython.get_ipython()).__mro__
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in kinds)


class Progress:
    """Shows how far a run is, in the way that suits where the program runs. Every method returns at once.

    Each step that is done has a line of at most 80 columns. In a terminal or a notebook there is another line below
    them, which says where the run is now; where the terminal's width is unknown, and in logs, there is none. Before
    the first step is done, a line says what is waited for and, as soon as that was measured, how long it takes.
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
        max_frames: int | None = None,
        frame_skip: int = 1,
        stream: TextIO | None = None,
    ):
        """Begins to show progress.

        Args:
          total: Steps of the whole run; None where something else ends it.
          done: Steps done before this process.
          frames: Emulator frames of these.
          step_name: What a step is called.
          enabled: False shows nothing but notes.
          stop_after: Seconds after which no further step begins.
          max_frames: Emulator frames of the whole run, after which no further step begins.
          frame_skip: Frames of a timestep.
          stream: Where to write; None is the standard error stream of the moment.
        """
        self._total, self._step_name, self._enabled = total, step_name, enabled
        self._stop_after, self._max_frames, self._frame_skip = stop_after, max_frames, frame_skip
        self._begun = self._now = (float(done), float(frames))  # steps, with the share of the one in progress; frames
        self._began = time.monotonic()
        self._compiling = self._announced = self._warned = False
        self._measured: tuple[float, float, int] | None = None  # when the rate began to be measured; share, timesteps
        stream = sys.stderr if stream is None else stream
        self._screen = _screen(io.StringIO() if stream is None else stream, enabled)  # there may be none at all

    def inside(self, shown: Mapping[str, Any]) -> None:
        """Shows figures from inside a step.

        Args:
          shown: Its `phase`, how much of a `total` is `done` in it, the share `step_done` of `step_total` of the whole
            step where there are several phases, timesteps `stepped` in the phase, a `note` that is printed, and other
            figures.
        """
        phase, done, total = str(shown.get("phase", "working")), shown.get("done"), shown.get("total")
        number, share = math.floor(self._now[0]) + 1, _share(shown)
        self._now = (number - 1 + share, self._now[1])
        if note := shown.get("note"):
            self.note(str(note))
        if not self._enabled:
            return
        if phase == "compiling" and not self._compiling:
            self._compiling = True
            self.note(f"{self._step_name} {number}: compiling first, which takes some 5 to 30 seconds")
        elif phase != "compiling" and not self._announced:
            self._announce(number, share, int(shown.get("stepped", 0)))
        count = f" {short(done)}/{short(total)}" if done is not None and total is not None else ""
        fraction, left = self._budget()
        full = min(round(_BAR * fraction), _BAR)
        texts = [f"{self._step_name} {number}: {phase}{count}"]
        rate = {name: value for name, value in shown.items() if name == "frames_per_second"}
        texts += [figures(rate, frame_skip=self._frame_skip)] if rate else []
        texts += [f"{shown['actors']} actors"] if "actors" in shown else []
        texts += [f"{clock(left)} left"] if left < math.inf else []
        self._show(self._screen.status, f"[{'#' * full}{'.' * (_BAR - full)}] {fraction:4.0%}  {', '.join(texts)}")

    def step(self, done: int, metrics: Mapping[str, Any]) -> None:
        """Shows that a step is done: the steps done in all, its metrics, the time passed and the time left."""
        self._now, self._announced = (float(done), metrics.get("frames") or self._now[1]), True
        if not self._enabled:
            return
        _, left = self._budget()
        self._warn(left)
        times = clock(time.monotonic() - self._began)
        times += f", {clock(left)} left" if 0 < left < math.inf else ""
        limited = self._stop_after is not None or self._max_frames is not None
        name = f"{self._step_name} {done}" + ("" if limited else f"/{self._total}")
        room = _COLUMNS - 1 - len(name) - len(times) - 4
        line = figures(metrics, skip=[self._step_name], width=room, frame_skip=self._frame_skip)
        self.note("  ".join(filter(None, (name, line, times))))

    def note(self, text: str) -> None:
        """Prints one line above the one that is drawn anew."""
        self._show(self._screen.note, text)

    def close(self) -> None:
        """Leaves the lines that were printed."""
        self._show(self._screen.close)

    def _show(self, method: Callable[..., None], *text: str) -> None:
        """Shows something; a terminal or a pipe that is gone, as after a lost connection, ends no run."""
        try:
            method(*text)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._screen, self._enabled = _Nothing(), False

    def _announce(self, number: int, share: float, stepped: int) -> None:
        """Says how long the step takes, once that was measured."""
        now, nothing_yet = time.monotonic(), share == 0 and stepped == 0  # actors compile
        if self._measured is None or nothing_yet or share < self._measured[1] or stepped < self._measured[2]:
            self._measured = (now, share, stepped)
        since, begun, before = self._measured
        if now - since < _MEASURED or share <= begun:
            return
        self._announced = True
        per_second = (stepped - before) / (now - since)
        rate = f" at {_rounded(per_second)} timesteps/s" if per_second > 0 else ""
        seconds = (now - since) / (share - begun)
        self.note(f"{self._step_name} {number}: takes about {clock(seconds)}{rate}")
        left = [] if self._total is None else [seconds * (self._total - self._now[0])]
        left += [] if self._stop_after is None else [self._stop_after]
        if self._max_frames is not None and per_second > 0:
            left.append((self._max_frames - self._now[1]) / (per_second * self._frame_skip))
        self._warn(min(left, default=0.0))

    def _warn(self, left: float) -> None:
        """Says, once, that the run will take very long."""
        if _LONG < left < math.inf and not self._warned:
            self._warned = True
            self.note(f"at this rate what is left takes {clock(left)}: ask for less, or set a limit of minutes")

    def _budget(self) -> tuple[float, float]:
        """Returns the share of the run that is done, and the seconds that are left, by the limit that ends it first."""
        elapsed = max(time.monotonic() - self._began, 1e-9)
        limits = []
        if self._stop_after is not None:
            limits.append((max(self._stop_after - elapsed, 0.0), elapsed / self._stop_after))
        for now, begun, most in zip(self._now, self._begun, (self._total, self._max_frames), strict=True):
            if most is not None:
                pace = elapsed / (now - begun) if now > begun else math.inf
                limits.append((pace * (most - now) if now < most else 0.0, now / most))
        left, fraction = min(limits)
        return min(fraction, 1.0), left


class _Screen(Protocol):
    """Where lines are shown, and below them a status."""

    def note(self, text: str) -> None: ...

    def status(self, text: str) -> None: ...

    def close(self) -> None: ...


class _Nothing:
    """Shows nothing, because the stream is gone."""

    def note(self, text: str) -> None:
        del text

    status = note

    def close(self) -> None:
        pass


class _Lines:
    """A log: lines alone."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def status(self, text: str) -> None:
        del text

    def close(self) -> None:
        pass


class _Terminal:
    """A terminal, whose last line is the status."""

    def __init__(self, stream: TextIO):
        self._stream, self._shown = stream, ""

    def note(self, text: str) -> None:
        self._stream.write(f"\r\x1b[2K{text}\n{self._shown}")
        self._stream.flush()

    def status(self, text: str) -> None:
        self._shown = text[: os.get_terminal_size(self._stream.fileno()).columns - 1]
        self._stream.write(f"\r\x1b[2K{self._shown}")
        self._stream.flush()

    def close(self) -> None:
        self._stream.write("\r\x1b[2K" if self._shown else "")
        self._stream.flush()
        self._shown = ""


class _Notebook:
    """One output of plain text, which stays readable in the notebook's file."""

    def __init__(self):
        self._lines: list[str] = []
        self._output: Any = None

    def note(self, text: str) -> None:
        self._lines = [*self._lines[1 - _KEPT :], text]
        self._show(self._lines)

    def status(self, text: str) -> None:
        self._show([*self._lines, text])

    def close(self) -> None:
        if self._output is not None:
            self._show(self._lines)

    def _show(self, lines: list[str]) -> None:
        from IPython.display import display  # a notebook has it

        data = {"text/plain": "\n".join(lines)}
        if self._output is None:
            self._output = display(data, raw=True, display_id=True)
        else:
            self._output.update(data, raw=True)


def _screen(stream: TextIO, enabled: bool) -> _Screen:
    """What suits where the program runs."""
    if enabled and in_notebook():
        return _Notebook()
    return _Terminal(stream) if enabled and _has_width(stream) else _Lines(stream)


def _share(shown: Mapping[str, Any]) -> float:
    """The share of the step that is done, at most just below 1."""
    done, total = shown.get("step_done", shown.get("done")), shown.get("step_total", shown.get("total"))
    return min(done / total, 0.999) if done is not None and total else 0.0


def _has_width(stream: TextIO) -> bool:
    """Whether this is a terminal of which the width is known."""
    try:
        is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        return is_terminal and os.get_terminal_size(stream.fileno()).columns > 0
    except (OSError, ValueError):  # ValueError: it is closed
        return False


def _rank(name: str) -> int:
    """Place of a metric in the line of figures; metrics of one rank stay in their order."""
    if name.endswith(("_std", "_standard_error")):
        return len(_FIRST) + 1
    return next((rank for rank, pattern in enumerate(_FIRST) if re.match(pattern, name)), len(_FIRST))
