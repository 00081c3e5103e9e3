"""The learning curve of a run, drawn without a display and without pyplot's global state."""

import io
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from volvox.checkpoint import write_file
from volvox.envs.envpool_tasks import atari_game, known_scores
from volvox.report.rows import numbers

if TYPE_CHECKING:  # matplotlib is imported where something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLORS = ("#D55E00", "#0072B2", "#009E73", "#56B4E9", "#CC79A7", "#E69F00")
"""Told apart by colour-blind readers, too (Okabe and Ito)."""
RANDOM: Any = {"color": "0.4", "linestyle": "--", "linewidth": 1, "label": "random play (published)"}
STYLES = ("-", "--", ":")
_PANELS = 4
"""In a row."""
_SCORE = re.compile(
    r".*(return|score|reward)(?!_weight)|(evaluation|test|training|validation)_(best|max|mean|median|min)(_\d+)?$"
)
_SPREADS = {"standard_error": "± std. error", "std": "± std. deviation"}
_COUNTS = ("frames", "seconds", "step_seconds", "evaluation_frames", "evaluation_seconds", "evaluation_timesteps")


def score_lines(env: Any) -> dict[str, float]:
    """What is known of an Atari game's scores that a learning curve shows; nothing of other environments.

    Args:
      env: The environment's `Env.config`, or what `config.json` has in its place.
    """
    return {name: value for name, value in known_scores(atari_game(env)).items() if name in ("random", "least")}


def learning_curve(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    random: float | None = None,
    least: float | None = None,
) -> "Figure":
    """Draws scores against emulator frames and against wall-clock time, and each other metric in a small panel.

        vx.report.learning_curve(vx.report.read_metrics("runs/pong/metrics.jsonl"), "curve.png", title="Pong")
        vx.report.learning_curve(run.metrics, random=-20.7).savefig("curve.svg")

    Scores are metrics whose names hold "return", "score" or "reward", and the best and mean of "training",
    "evaluation", "test" and "validation". A metric `x_std` or `x_standard_error` is drawn as a band around `x_score`,
    `x_mean` or `x`. Values that are not numbers, and counters of steps, are left out. The values of a metric that is
    missing in every other row or more, such as those of evaluations, are connected.

    Args:
      rows: Metrics, one mapping a step, in order. `frames` and `seconds` are counted from the run's beginning; where
        `frames` is missing, steps take its place. None and missing values leave gaps.
      path: Where to write a PNG, if anywhere.
      title: The figure's title.
      random: The score of random play, drawn as a line; None draws none.
      least: The least score there can be, below which no band is drawn; None sets no limit.

    Returns:
      The figure; a notebook shows it, `figure.savefig` writes it in other formats.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    columns = _columns(rows)
    steps = np.arange(1, len(rows) + 1, dtype=float)
    spreads = _spreads(columns)
    unknown = [*_COUNTS, *spreads.values()]
    names = [name for name in columns if name not in unknown]
    scores = [name for name in names if _SCORE.match(name)]
    others = [name for name in names if name not in scores and not np.array_equal(columns[name], steps)]

    # Places are fixed, in inches from the top: matplotlib's own layout takes seconds where there are many panels.
    num_labels = len(scores) + (random is not None)
    panel_rows, legend_rows = -(-len(others) // _PANELS), max(1, -(-num_labels // _PANELS))
    top, height = 4.1 + 0.25 * legend_rows, 4.4 + 0.25 * legend_rows + 1.5 * panel_rows
    figure = Figure(figsize=(10, height))
    grid = figure.add_gridspec(1, 2, left=0.08, right=0.98, top=1 - 0.4 / height, bottom=1 - 3.6 / height, wspace=0.06)
    by_frames = figure.add_subplot(grid[0])
    by_time = figure.add_subplot(grid[1], sharey=by_frames)
    frames = columns.get("frames", steps)
    seconds = columns.get("seconds", np.full(len(rows), np.nan))
    longest = np.nanmax(seconds, initial=0.0)
    units = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
    unit, unit_name = next(((size, name) for size, name in units if longest >= 2 * size), units[-1])
    for axes, x in ((by_frames, frames), (by_time, seconds / unit)):
        for i, name in enumerate(scores):
            style = {"color": COLORS[i % len(COLORS)], "linestyle": STYLES[i // len(COLORS) % len(STYLES)]}
            _draw(axes, x, columns, name, spreads.get(name), least, **style)
        if scores and random is not None:
            axes.axhline(random, **RANDOM)
    for i, name in enumerate(others):
        down, right = divmod(i, _PANELS)
        bottom = 1 - (top + 1.5 * (down + 1) - 0.2) / height
        axes = figure.add_axes((0.08 + 0.232 * right, bottom, 0.18, 1.05 / height))
        _draw(axes, frames, columns, name, spreads.get(name), None, color="0.3")
        axes.set_title(name.replace("_", " "), fontsize="small")
        axes.locator_params(nbins=4)
        if np.nanmax(np.abs(columns[name])) >= 1000:
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.tick_params(labelsize="x-small", labelbottom=False)

    by_time.tick_params(labelleft=False)
    by_time.set_xlabel(f"wall-clock time ({unit_name})")
    by_frames.set(xlabel="emulator frames" if "frames" in columns else "steps", ylabel="score")
    if "frames" in columns:
        by_frames.xaxis.set_major_formatter(EngFormatter(sep="\N{THIN SPACE}"))
    else:
        by_frames.xaxis.set_major_locator(MaxNLocator(integer=True))
    if scores:
        shown = by_frames.get_legend_handles_labels()
        place = (0.5, 1 - 4.05 / height)
        figure.legend(*shown, loc="upper center", bbox_to_anchor=place, ncols=_PANELS, frameon=False, fontsize="small")
    else:
        for axes in (by_frames, by_time):
            axes.set(xticks=[], yticks=[])
            axes.text(0.5, 0.5, "no scores yet", transform=axes.transAxes, ha="center", va="center", color="0.4")
    figure.suptitle(title, y=1 - 0.08 / height)
    return finished(figure, path)


def check_png(path: str | os.PathLike[str] | None) -> None:
    """Raises ValueError for the name of a picture of another format."""
    if path is not None and Path(path).suffix != ".png":
        raise ValueError(f"{os.fspath(path)}: pictures are PNG files, whose names must end in .png")


def finished(figure: "Figure", path: str | os.PathLike[str] | None) -> "Figure":
    """Returns the figure, so that notebooks show it, and writes it to a PNG if there is a path."""
    check_png(path)
    # Without pyplot, nobody has told notebooks how to show a figure.
    figure._repr_png_ = lambda: _png(figure)  # pyright: ignore[reportAttributeAccessIssue]
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_file(path, _png(figure))
    return figure


def _png(figure: "Figure") -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Every metric that is ever a number, float64 `[rows]`; NaN where it is missing."""
    figures = [numbers(row) for row in rows]
    names = [name for name in dict.fromkeys(itertools.chain(*rows)) if any(name in row for row in figures)]
    return {name: np.array([row.get(name, np.nan) for row in figures], np.float64) for name in names}


def _spreads(columns: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Metric -> the metric that is its spread."""
    found = {}
    for name in columns:
        for suffix in _SPREADS:
            if not name.endswith(f"_{suffix}"):
                continue
            of = name.removesuffix(f"_{suffix}")
            owners = [owner for owner in (f"{of}_score", f"{of}_mean", of) if owner in columns and owner != name]
            if owners:
                found[owners[0]] = name
    return found


def _draw(
    axes: "Axes",
    x: np.ndarray,
    columns: Mapping[str, np.ndarray],
    name: str,
    spread: str | None,
    least: float | None,
    **style: Any,
) -> None:
    y = columns[name]
    band = np.zeros_like(y) if spread is None else columns[spread]
    shown = np.isfinite(y)
    if not (shown[1:] & shown[:-1]).any():
        x, y, band = x[shown], y[shown], band[shown]
    label = name.replace("_", " ")
    if spread is not None:
        label += f" ({next(text for suffix, text in _SPREADS.items() if spread.endswith(suffix))})"
        band = np.nan_to_num(band)
        low = y - band if least is None else np.maximum(y - band, least)
        axes.fill_between(x, low, y + band, color=style["color"], alpha=0.15, linewidth=0)
    # Where there is no line to a neighbour, a marker shows the value.
    shown = np.pad(np.isfinite(y), 1)
    alone = (shown[1:-1] & ~shown[:-2] & ~shown[2:]) | (len(x) <= 30)
    marker = "o" if alone.any() else ""
    axes.plot(x, y, label=label, marker=marker, markevery=alone, markersize=3, linewidth=1.5, **style)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
