"""The learning curve of a run, drawn without a display and without pyplot's global state."""

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from volvox import _files as files

# Okabe and Ito's colours: told apart by colour-blind readers, too.
_BLUE, _SKY, _VERMILLION, _GREEN = "#0072B2", "#56B4E9", "#D55E00", "#009E73"


class _Curve(NamedTuple):
    """Curve.

    Attributes:
      spread: The metric that says how far the band goes to either side.
    """

    key: str
    spread: str | None
    label: str
    color: str
    style: str


_CURVES = (
    _Curve("elite_score", "elite_standard_error", "elite, validation (± std. error)", _VERMILLION, "-"),
    _Curve("test_score", "test_standard_error", "elite, test (± std. error)", _GREEN, "-"),
    _Curve("training_best", None, "training, best", _BLUE, "--"),
    _Curve("training_mean", "training_std", "training, mean (± std. deviation)", _BLUE, "-"),
)


def learning_curve(
    rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str] | None = None, *, title: str = ""
) -> Figure:
    """Draws scores against emulator frames and against wall-clock time, side by side.

    Shown are, as far as rows have them, `training_mean` within a band of `training_std`, `training_best`, `elite_score`
    within `elite_standard_error` and `test_score` within `test_standard_error`; of rows that have none of these, every
    metric whose name holds "return", "score" or "reward".

    Args:
        rows: metrics, one mapping a step, in order. `frames` and `seconds` are counted from the run's beginning; where
            `frames` is missing, steps take its place. None and missing values leave gaps.
        path: where to write a PNG, if anywhere.
        title: the figure's title.

    Returns:
        The figure; a notebook shows it, `figure.savefig` writes it in other formats.
    """
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    by_frames, by_time = figure.subplots(1, 2, sharey=True)
    curves = [c for c in _CURVES if any(row.get(c.key) is not None for row in rows)] or _other_curves(rows)

    frames = _column(rows, "frames")
    if np.isfinite(frames).any():
        _draw(by_frames, frames, rows, curves)
        by_frames.set_xlabel("emulator frames")
        by_frames.xaxis.set_major_formatter(EngFormatter(sep="\N{THIN SPACE}"))
    else:
        _draw(by_frames, np.arange(1, len(rows) + 1, dtype=float), rows, curves)
        by_frames.set_xlabel("steps")
        by_frames.xaxis.set_major_locator(MaxNLocator(integer=True))

    seconds = _column(rows, "seconds")
    longest = np.nanmax(seconds) if np.isfinite(seconds).any() else 0.0
    unit, name = (3600.0, "hours") if longest >= 7200 else (60.0, "minutes") if longest >= 120 else (1.0, "seconds")
    _draw(by_time, seconds / unit, rows, curves)
    by_time.set_xlabel(f"wall-clock time ({name})")

    by_frames.set_ylabel("score")
    if curves:
        handles, labels = by_frames.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False, fontsize="small"
        )
    else:
        for axes in (by_frames, by_time):
            axes.set(xticks=[], yticks=[])
            axes.text(0.5, 0.5, "no scores yet", transform=axes.transAxes, ha="center", va="center", color="0.4")
    if title:
        figure.suptitle(title)
    return finished(figure, path)


def finished(figure: Figure, path: str | os.PathLike[str] | None) -> Figure:
    """The figure, so that notebooks show it, and written to a PNG if there is a path."""
    # Without pyplot, nobody has told notebooks how to show a figure.
    figure._repr_png_ = lambda: _png(figure)  # pyright: ignore[reportAttributeAccessIssue]
    if path is not None:
        files.write(path, _png(figure))
    return figure


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def _draw(axes: Axes, x: np.ndarray, rows: Sequence[Mapping[str, Any]], curves: Sequence[_Curve]) -> None:
    marker = "o" if len(rows) <= 30 else ""
    for curve in curves:
        y = _column(rows, curve.key)
        axes.plot(x, y, curve.style, color=curve.color, label=curve.label, marker=marker, markersize=3, linewidth=1.5)
        if curve.spread is not None:
            spread = np.nan_to_num(_column(rows, curve.spread))
            axes.fill_between(x, y - spread, y + spread, color=curve.color, alpha=0.15, linewidth=0)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _other_curves(rows: Sequence[Mapping[str, Any]]) -> list[_Curve]:
    names = dict.fromkeys(
        key
        for row in rows
        for key, value in row.items()
        if isinstance(value, (int, float)) and any(word in key for word in ("return", "score", "reward"))
    )
    colors = (_BLUE, _VERMILLION, _GREEN, _SKY)
    return [
        _Curve(name, None, name.replace("_", " "), colors[i % 4], ("-", "--", ":")[i // 4 % 3])
        for i, name in enumerate(names)
    ]


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """One metric of all rows, float64; NaN where it is missing."""
    values = [row.get(key) for row in rows]
    return np.array([value if isinstance(value, (int, float)) else np.nan for value in values], np.float64)
