"""Progress: a bar in terminals and notebooks, one plain line a step elsewhere (logs, CI)."""

import importlib.util
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TextIO

import tqdm.std

_Format = Callable[[float], str]

_STEP_FIGURES: tuple[tuple[str, str, _Format], ...] = (
    ("training_best", "best", lambda x: f"{x:,.6g}"),
    ("training_mean", "mean", lambda x: f"{x:,.6g}"),
    ("elite_score", "elite", lambda x: f"{x:,.6g}"),
    ("frames_per_second", "frames/s", lambda x: f"{x:,.0f}"),
    ("occupancy", "occupancy", lambda x: f"{x:.0%}"),
)
"""(metric, its name in the line, its format): what the line of a step shows of the metrics that there are."""


_INNER_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


class Progress(NamedTuple):
    """Shows how far a run is. Every function returns at once.

    Attributes:
      inside: Figures from inside a step: `phase`, `done` and `total`; `frames_per_second` and `occupancy` if there are.
      step: (steps done in all, metrics): a step is done.
      note: Prints one line without disturbing the bar.
      close: Leaves the bar as it is.
    """

    inside: Callable[[Mapping[str, Any]], None]
    step: Callable[[int, Mapping[str, Any]], None]
    note: Callable[[str], None]
    close: Callable[[], None]


def progress(
    total: int,
    *,
    done: int = 0,
    step_name: str = "generation",
    enabled: bool = True,
    stop_after: float | None = None,
    stream: TextIO | None = None,
) -> Progress:
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
        return _bar(total, done, step_name, stop_after, output)
    lines = _lines(total, done, step_name, stop_after, output)
    return lines if enabled else lines._replace(step=lambda *_: None)


def figures(metrics: Mapping[str, Any], *, separator: str = "  ") -> str:
    """The figures of a step worth a line: best, mean and elite score, frames per second, occupancy.

    Of an algorithm that has none of these, its first three numbers.
    """
    parts = [f"{name} {form(metrics[key])}" for key, name, form in _STEP_FIGURES if _is_number(metrics.get(key))]
    if not parts:
        parts = [f"{key} {value:,.6g}" for key, value in metrics.items() if _is_number(value)][:3]
    return separator.join(parts)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _lines(total: int, done: int, step_name: str, stop_after: float | None, stream: TextIO) -> Progress:
    began, done_before = time.monotonic(), done

    def step(now: int, metrics: Mapping[str, Any]) -> None:
        elapsed = time.monotonic() - began
        left = elapsed / max(now - done_before, 1) * (total - now)
        if stop_after is not None:
            left = min(left, max(stop_after - elapsed, 0.0))
        times = f"{_duration(elapsed)} elapsed" + (f", {_duration(left)} left" if now < total else "")
        note(f"{step_name} {now}/{total}  {figures(metrics)}  {times}")

    def note(text: str) -> None:
        print(text, file=stream, flush=True)

    return Progress(lambda _: None, step, note, lambda: None)


def _bar(total: int, done: int, step_name: str, stop_after: float | None, stream: TextIO) -> Progress:
    began = time.monotonic()
    bar = _bar_type()
    # A notebook's text output has no second line to go back from: there, phases show at the end of the one bar.
    one_line = in_notebook() and bar is tqdm.std.tqdm
    outer = bar(total=total, initial=done, desc=step_name, file=stream, dynamic_ncols=not one_line, position=0)
    inner: list[Any] = []  # at most one: the bar of the phase; reused, since a notebook keeps every bar ever made

    def inside(shown: Mapping[str, Any]) -> None:
        phase = str(shown.get("phase", "working"))
        numbers = {key: shown[key] for key in ("frames_per_second", "occupancy") if key in shown}
        shown_numbers = figures(numbers, separator=", ") if numbers else ""
        if one_line:
            count = f" {shown['done']}/{shown['total']}" if "done" in shown and "total" in shown else ""
            outer.set_postfix_str(", ".join(filter(None, (phase + count, shown_numbers))))
            return
        if not inner:
            form = {"dynamic_ncols": True, "position": 1, "leave": False, "bar_format": _INNER_FORMAT}
            inner.append(bar(total=shown.get("total"), desc=phase, file=stream, **form))
        if inner[0].desc != phase or shown.get("done", 0) < inner[0].n:  # another phase has begun
            inner[0].reset(shown.get("total"))
            inner[0].set_description_str(phase, refresh=False)
        inner[0].total = shown.get("total")
        inner[0].n = shown.get("done", 0)
        inner[0].set_postfix_str(shown_numbers, refresh=False)
        inner[0].refresh()
        outer.refresh()  # its clock goes on during a long step

    def step(now: int, metrics: Mapping[str, Any]) -> None:
        shown = figures(metrics, separator=", ")
        if stop_after is not None:
            shown += f", stops within {_duration(max(stop_after - (time.monotonic() - began), 0.0))}"
        outer.set_postfix_str(shown, refresh=False)
        outer.update(now - outer.n)

    def note(text: str) -> None:
        outer.write(text, file=stream)

    def close() -> None:
        for phase_bar in inner:
            phase_bar.close()
        outer.close()

    return Progress(inside, step, note, close)


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell"


def _bar_type() -> Any:
    # tqdm.auto warns where ipywidgets is missing; text bars do there.
    if in_notebook() and importlib.util.find_spec("ipywidgets") is not None:
        return importlib.import_module("tqdm.notebook").tqdm
    return tqdm.std.tqdm


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
