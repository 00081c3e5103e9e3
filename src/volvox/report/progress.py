"""Progress: a bar in terminals and notebooks, one plain line a step elsewhere (logs, CI)."""

import importlib.util
import math
import re
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any, TextIO

from tqdm.std import tqdm

from volvox.report.rows import numbers

_INNER_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_PLACES = ("phase", "role", "done", "total", "stepped")
"""Figures from inside a step that say where it is; all others are shown as figures."""
_clock = tqdm.format_interval
_COUNT = re.compile("(.*_)?(frames|seconds)|evaluation_timesteps")
_FIRST = ("elite_score", "validation_mean", "evaluation_|test_", "training_best", "training_mean")
_FIRST += (".*_per_second", "occupancy")
"""What the names of the most important metrics begin with, in the order in which a line shows them."""


def figures(metrics: Mapping[str, Any], *, skip: Collection[str] = (), width: int = 100) -> str:
    """Writes the numbers of a step in one line, as many as there is room for.

    The score of the elite comes first, then those of evaluations and tests, the best and the mean in training, rates,
    and the occupancy. Other metrics follow in their order, and measures of spread come last. Counts of what is done
    (the step, frames, seconds) are left to the rows.

    Args:
      metrics: Metrics of a step, or figures from inside it; what is not a number is left out.
      skip: Names to leave out.
      width: Characters that the line may have; the first figure is shown however long it is.
    """
    shown = {name: value for name, value in numbers(metrics).items() if name not in skip and not _COUNT.fullmatch(name)}
    line = ""
    for name in sorted(shown, key=_rank):
        rate, value = name.endswith("_per_second"), shown[name]
        words = name.removesuffix("_per_second").replace("_", " ")
        longer = f"{line}{', ' * bool(line)}{words}{f'/s {value:,.0f}' if rate else f' {value:,.6g}'}"
        if line and len(longer) > width:
            break
        line = longer
    return line


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell"


class Progress:
    """Shows how far a run is, in the way that suits where the program runs. Every method returns at once.

    In a terminal or a notebook there is a bar of all steps, and below it one of the phase within a step. Elsewhere each
    step that is done has a plain line.
    """

    def __init__(
        self,
        total: int,
        *,
        done: int = 0,
        step_name: str = "generation",
        enabled: bool = True,
        stop_after: float | None = None,
        stream: TextIO | None = None,
    ):
        """Begins to show progress.

        Args:
          total: Steps of the whole run.
          done: Steps done before this process.
          step_name: What a step is called.
          enabled: False shows neither bar nor lines; notes are printed all the same.
          stop_after: Seconds after which no further step begins; the time left is no more than that.
          stream: Where to write; None is the standard error stream of the moment.
        """
        self._total, self._done, self._step_name, self._enabled = total, done, step_name, enabled
        self._stop_after = math.inf if stop_after is None else stop_after
        self._stream = sys.stderr if stream is None else stream
        self._began = time.monotonic()
        self._steps: Any = None
        self._phase: Any = None  # reused, since a notebook keeps every bar ever made
        if enabled and (in_notebook() or self._stream.isatty()):
            # tqdm.auto warns where ipywidgets is missing; text bars do there.
            widgets = in_notebook() and importlib.util.find_spec("ipywidgets") is not None
            self._bar = importlib.import_module("tqdm.notebook" if widgets else "tqdm.std").tqdm
            # A notebook's text output has no second line to go back from: there, phases show at the end of the one bar.
            self._one_line = in_notebook() and not widgets
            form = {"desc": step_name, "dynamic_ncols": not self._one_line, "position": 0}
            self._steps = self._bar(total=total, initial=done, file=self._stream, **form)

    def inside(self, shown: Mapping[str, Any]) -> None:
        """Shows figures from inside a step: its `phase`, how much of a `total` is `done`, and what else is given.

        Lines show nothing of them: a log would grow by a line a second.
        """
        if self._steps is None:
            return
        phase, done, total = str(shown.get("phase", "working")), shown.get("done"), shown.get("total")
        line = figures(shown, skip=[*_PLACES, self._step_name])
        if self._one_line:
            count = f" {done}/{total}" if done is not None and total is not None else ""
            self._steps.set_postfix_str(", ".join(filter(None, (phase + count, line))))
            return
        if self._phase is None:
            form = {"dynamic_ncols": True, "position": 1, "leave": False, "bar_format": _INNER_FORMAT}
            self._phase = self._bar(total=total, desc=phase, file=self._stream, **form)
        bar = self._phase
        if bar.desc != phase or (done or 0) < bar.n:  # another phase has begun
            bar.reset(total)
            bar.set_description_str(phase, refresh=False)
        bar.total, bar.n = total, done or 0
        bar.set_postfix_str(line, refresh=False)
        bar.refresh()
        self._steps.refresh()  # its clock goes on during a long step

    def step(self, done: int, metrics: Mapping[str, Any]) -> None:
        """Shows that a step is done: the steps done in all, its metrics, the time passed and the time left."""
        elapsed = time.monotonic() - self._began
        allowed = max(self._stop_after - elapsed, 0.0)
        line = figures(metrics, skip=[self._step_name])
        if self._steps is not None:  # tqdm knows the times
            stops = f", stops within {_clock(allowed)}" if allowed < math.inf else ""
            self._steps.set_postfix_str(line + stops, refresh=False)
            self._steps.update(done - self._steps.n)
        elif self._enabled:
            left = min(elapsed / max(done - self._done, 1) * (self._total - done), allowed)
            times = f"{_clock(elapsed)} elapsed" + (f", {_clock(left)} left" if done < self._total else "")
            self.note(f"{self._step_name} {done}/{self._total}  {line}  {times}")

    def note(self, text: str) -> None:
        """Prints one line without disturbing the bar."""
        if self._steps is not None:
            self._steps.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Leaves the bar as it is."""
        for bar in (self._phase, self._steps):
            if bar is not None:
                bar.close()


def _rank(name: str) -> int:
    """Place of a metric in the line of figures; metrics of one rank stay in their order."""
    if name.endswith(("_std", "_standard_error")):
        return len(_FIRST) + 1
    return next((rank for rank, pattern in enumerate(_FIRST) if re.match(pattern, name)), len(_FIRST))
