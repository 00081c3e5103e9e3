"""Progress: a bar in terminals and notebooks, one plain line a step elsewhere (logs, CI)."""

import importlib.util
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any, TextIO

import tqdm.std

_INNER_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_PLACES = ("phase", "role", "done", "total", "stepped")
"""Figures from inside a step that say where it is; all others are shown as figures."""


def progress_display(
    total: int,
    *,
    done: int = 0,
    step_name: str = "generation",
    enabled: bool = True,
    stop_after: float | None = None,
    stream: TextIO | None = None,
) -> "ProgressBar | ProgressLines":
    """Makes the progress display that suits where the program runs.

    Args:
      total: steps of the whole run.
      done: steps done before this process.
      step_name: what a step is called.
      enabled: False shows neither bar nor lines; notes are printed all the same.
      stop_after: seconds after which no further step begins; the time left is no more than that.
      stream: where to write; None is the standard error stream of the moment.
    """
    output = sys.stderr if stream is None else stream
    if enabled and (in_notebook() or output.isatty()):
        return ProgressBar(total, done, step_name, stop_after, output)
    return ProgressLines(total, done, step_name, stop_after, output, enabled=enabled)


def figures(metrics: Mapping[str, Any], *, skip: Collection[str] = (), separator: str = "  ", width: int = 100) -> str:
    """Writes the numbers of a step in one line, as many as there is room for.

    The scores come first: names that begin with "elite", then "evaluation" and "test", then "training". Frames per
    second and occupancy are next. Others follow in their order, then lengths and measures of spread, and other rates
    last. Counts of what is done (the step, frames, seconds) are left to the rows.

    Args:
      metrics: of a step, or from inside it; whatever is no number is left out.
      skip: names to leave out.
      separator: between two figures.
      width: characters that the line may have; the first figure is shown however long it is.
    """
    names = [name for name, value in metrics.items() if _is_number(value) and name not in skip and not _is_count(name)]
    line = ""
    for name in sorted(names, key=_rank):
        longer = f"{line}{separator * bool(line)}{_figure(name, metrics[name])}"
        if line and len(longer) > width:
            break
        line = longer
    return line


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell"


class ProgressLines:
    """One plain line for each step that is done; the methods are those of `ProgressBar`."""

    def __init__(
        self, total: int, done: int, step_name: str, stop_after: float | None, stream: TextIO, *, enabled: bool = True
    ):
        self._total, self._done, self._step_name, self._stop_after = total, done, step_name, stop_after
        self._stream, self._enabled, self._began = stream, enabled, time.monotonic()

    def inside(self, shown: Mapping[str, Any]) -> None:
        """Shows nothing: a log would grow by a line a second."""

    def step(self, done: int, metrics: Mapping[str, Any]) -> None:
        """Prints that a step is done, its figures, the time passed and the time left."""
        if not self._enabled:
            return
        elapsed = time.monotonic() - self._began
        left = elapsed / max(done - self._done, 1) * (self._total - done)
        if self._stop_after is not None:
            left = min(left, max(self._stop_after - elapsed, 0.0))
        times = f"{_duration(elapsed)} elapsed" + (f", {_duration(left)} left" if done < self._total else "")
        self.note(f"{self._step_name} {done}/{self._total}  {figures(metrics, skip=[self._step_name])}  {times}")

    def note(self, text: str) -> None:
        """Prints one line."""
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Does nothing: what was printed stays."""


class ProgressBar:
    """A bar of all steps, and below it one of the phase within a step. Every method returns at once."""

    def __init__(self, total: int, done: int, step_name: str, stop_after: float | None, stream: TextIO):
        self._step_name, self._stop_after, self._stream = step_name, stop_after, stream
        self._began = time.monotonic()
        self._bar = _bar_type()
        # A notebook's text output has no second line to go back from: there, phases show at the end of the one bar.
        self._one_line = in_notebook() and self._bar is tqdm.std.tqdm
        self._steps = self._bar(
            total=total, initial=done, desc=step_name, file=stream, dynamic_ncols=not self._one_line, position=0
        )
        self._phase: Any = None  # reused, since a notebook keeps every bar ever made

    def inside(self, shown: Mapping[str, Any]) -> None:
        """Shows figures from inside a step: its `phase`, how much of a `total` is `done`, and what else is given."""
        phase, done, total = str(shown.get("phase", "working")), shown.get("done"), shown.get("total")
        numbers = figures(shown, skip=[*_PLACES, self._step_name], separator=", ")
        if self._one_line:
            count = f" {done}/{total}" if done is not None and total is not None else ""
            self._steps.set_postfix_str(", ".join(filter(None, (phase + count, numbers))))
            return
        if self._phase is None:
            form = {"dynamic_ncols": True, "position": 1, "leave": False, "bar_format": _INNER_FORMAT}
            self._phase = self._bar(total=total, desc=phase, file=self._stream, **form)
        bar = self._phase
        if bar.desc != phase or (done or 0) < bar.n:  # another phase has begun
            bar.reset(total)
            bar.set_description_str(phase, refresh=False)
        bar.total, bar.n = total, done or 0
        bar.set_postfix_str(numbers, refresh=False)
        bar.refresh()
        self._steps.refresh()  # its clock goes on during a long step

    def step(self, done: int, metrics: Mapping[str, Any]) -> None:
        """Shows that a step is done: the steps done in all, and its metrics."""
        shown = figures(metrics, skip=[self._step_name], separator=", ")
        if self._stop_after is not None:
            left = max(self._stop_after - (time.monotonic() - self._began), 0.0)
            shown += f", stops within {_duration(left)}"
        self._steps.set_postfix_str(shown, refresh=False)
        self._steps.update(done - self._steps.n)

    def note(self, text: str) -> None:
        """Prints one line without disturbing the bar."""
        self._steps.write(text, file=self._stream)

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._phase is not None:
            self._phase.close()
        self._steps.close()


def _rank(name: str) -> int:
    """Of a metric in the line of figures; the order of equals is that of the metrics."""
    if name in ("frames_per_second", "occupancy"):
        return 3
    if name.endswith("_per_second"):
        return 6
    if name.endswith(("_std", "_standard_error")) or "length" in name:
        return 5
    beginnings = (("elite",), ("evaluation", "test"), ("training",))
    return next((rank for rank, words in enumerate(beginnings) if name.startswith(words)), 4)


def _figure(name: str, value: float) -> str:
    if name.endswith("_per_second"):
        return f"{name.removesuffix('_per_second').replace('_', ' ')}/s {value:,.0f}"
    return f"{name.replace('_', ' ')} {value:,.6g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(name: str) -> bool:
    return name in ("frames", "seconds") or name.endswith(("_frames", "_seconds"))


def _bar_type() -> Any:
    # tqdm.auto warns where ipywidgets is missing; text bars do there.
    if in_notebook() and importlib.util.find_spec("ipywidgets") is not None:
        return importlib.import_module("tqdm.notebook").tqdm
    return tqdm.std.tqdm


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
