"""The learning curve of a run, drawn without a display and without pyplot's global state."""

import io
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from volvox.report.metrics import columns

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANDOM_LINE: dict[str, Any] = {"color": "0.4", "linestyle": "--", "linewidth": 1, "label": "random play (published)"}
_COLORS = ("#D55E00", "#0072B2", "#009E73", "#56B4E9", "#CC79A7", "#E69F00")
"""Colours that colour-blind readers can distinguish (Okabe and Ito)."""
_MAX_PANELS = 9
_SCORE = re.compile(r".*(return|score|reward)(?!_weight)|(evaluation|test|training|validation)_(best|mean)(_\d+)?$")
_SPREADS = {"_standard_error": "± std. error", "_std": "± std. deviation"}
_COUNTERS = re.compile(r"(.*_)?(frames|timesteps|seconds|episodes)|generation|iteration|update|updates|step")


def styles() -> Iterator[dict[str, Any]]:
    """Yields line styles that can be told apart."""
    for linestyle, color in itertools.cycle(itertools.product(("-", "--", ":"), _COLORS)):
        yield {"color": color, "linestyle": linestyle}


def learning_curve(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    random: float | None = None,
) -> "Figure":
    """Draws scores against emulator frames and against wall-clock time, and other metrics that vary.

        vx.report.learning_curve(vx.report.read_metrics("runs/pong/metrics.jsonl"), "curve.png", title="Pong")
        vx.report.learning_curve(run.metrics, random=-20.7).savefig("curve.svg")

    Scores are metrics whose names contain "return", "score" or "reward", and the best and mean of "training",
    "evaluation", "test" and "validation". A metric `x_std` or `x_standard_error` is drawn as a band around `x_score`,
    `x_mean` or `x`. The figure has at most nine panels; counters and constants have none.

    Args:
      rows: Metrics, one mapping a step, in order. Without `frames`, scores are drawn against steps. Lines
        connect the values that are there.
      path: File to write, such as a PNG; None writes none.
      title: Title of the figure.
      random: Score of random play, drawn as a line.
    """
    from matplotlib.ticker import EngFormatter

    data = columns(rows)
    spreads = _spreads(data)
    names = [name for name in data if name not in spreads.values() and not _COUNTERS.fullmatch(name)]
    scores = [name for name in names if _SCORE.match(name)]
    others = [name for name in names if name not in scores and np.nanmin(data[name]) < np.nanmax(data[name])]
    others = others[: _MAX_PANELS - 2]
    num_rows = 2 + -(-len(others) // 4)
    figure = new_figure(figsize=(10, 2.1 * num_rows + 0.6))
    # A fixed grid: matplotlib's constrained layout takes seconds, and training draws this figure every minute.
    grid = figure.add_gridspec(num_rows, 4, left=0.07, right=0.98, bottom=0.06, top=0.94, hspace=0.75, wspace=0.35)
    steps, seconds = np.arange(1.0, len(rows) + 1), data.get("seconds", np.full(len(rows), np.nan))
    longest = np.nanmax(seconds, initial=0.0)
    size, unit = next(((n, u) for n, u in ((3600, "hours"), (60, "minutes")) if longest >= 2 * n), (1, "seconds"))
    by_frames = figure.add_subplot(grid[:2, :2])
    by_time = figure.add_subplot(grid[:2, 2:], sharey=by_frames)
    for axes, x in ((by_frames, data.get("frames", steps)), (by_time, seconds / size)):
        for name, style in zip(scores, styles(), strict=False):
            _draw(axes, x, data, name, spreads.get(name), style)
        if scores and random is not None:
            axes.axhline(random, **RANDOM_LINE)
    by_frames.set(xlabel="emulator frames" if "frames" in data else "steps", ylabel="score")
    by_frames.xaxis.set_major_formatter(EngFormatter(sep="\N{THIN SPACE}"))
    by_time.set_xlabel(f"wall-clock time ({unit})")
    if scores:
        by_frames.legend(frameon=False, fontsize="x-small")
    for i, name in enumerate(others):
        axes = figure.add_subplot(grid[2 + i // 4, i % 4])
        _draw(axes, data.get("frames", steps), data, name, spreads.get(name), {"color": "0.3"})
        axes.set_title(name.replace("_", " "), fontsize="small")
        axes.locator_params(nbins=4)
        axes.tick_params(labelsize="x-small", labelbottom=False)
    figure.suptitle(title)
    return finish(figure, path)


def new_figure(**options: Any) -> "Figure":
    """Makes a figure that notebooks show, although pyplot does not know it."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=120)
            return file.getvalue()

    return NotebookFigure(**options)


def finish(figure: "Figure", path: str | os.PathLike[str] | None) -> "Figure":
    """Styles all axes, and writes the figure to a file if there is a path."""
    for axes in figure.axes:
        axes.grid(color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    return figure


def _spreads(data: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Returns the metric that is the spread of another one, by the name of the latter."""
    found = {}
    for name, suffix in itertools.product(data, _SPREADS):
        of = name.removesuffix(suffix)
        owners = [owner for owner in (f"{of}_score", f"{of}_mean", of) if owner in data and owner != name]
        if of != name and owners:
            found[owners[0]] = name
    return found


def _draw(
    axes: "Axes",
    x: np.ndarray,
    data: Mapping[str, np.ndarray],
    name: str,
    spread: str | None,
    style: Mapping[str, Any],
) -> None:
    label, shown = name.replace("_", " "), np.isfinite(data[name])
    x, y = x[shown], data[name][shown]
    if spread is not None:
        label += f" ({next(text for suffix, text in _SPREADS.items() if spread.endswith(suffix))})"
        band = np.nan_to_num(data[spread][shown])
        axes.fill_between(x, y - band, y + band, color=style["color"], alpha=0.15, linewidth=0)
    axes.plot(x, y, label=label, marker="o" if len(x) <= 30 else "", markersize=3, linewidth=1.5, **style)
