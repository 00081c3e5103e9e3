"""Pictures of one run: its learning curve, and its population over the generations.

They are drawn without a display and without pyplot's global state.
"""

import io
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from volvox.data.metrics import EACH
from volvox.envs import maze
from volvox.report.files import LOG, read_log
from volvox.report.metrics import columns

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_VERMILLION = "#D55E00"
_COLORS = (_VERMILLION, "#0072B2", "#009E73", "#56B4E9", "#CC79A7", "#E69F00")
"""Colours that colour-blind readers can distinguish (Okabe and Ito)."""
STYLES: list[dict[str, Any]] = [{"color": c, "linestyle": s} for s in ("-", "--", ":") for c in _COLORS]
_MAX_PANELS = 9
_SCORE = re.compile(r"(?!pbt_).*(return|score|reward)(?!_weight)|(evaluation|test|training|validation)_(best|mean)$")
_SPREADS = {"_standard_error": "± std. error", "_std": "± std. deviation"}
_COUNTERS = re.compile(r"(.*_)?(frames|timesteps|seconds|episodes)|generation|iteration|update|updates|step")


def learning_curve(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    random: float | None = None,
) -> "Figure":
    """Draws scores against frames and against wall-clock time, and other metrics that vary.

        vx.report.learning_curve(vx.report.read_metrics("runs/pong/metrics.jsonl"), "curve.png", title="Pong")
        vx.report.learning_curve(run.metrics, random=-20.7).savefig("curve.svg")

    Scores are metrics whose names contain "return", "score" or "reward", and the best and mean of "training",
    "evaluation", "test" and "validation". A metric `x_std` or `x_standard_error` is drawn as a band around `x_score`,
    `x_mean` or `x`. For several learners, the band of a score is from the worst to the best of them. The figure has at
    most nine panels; counters and constants have none.

    Args:
      rows: Metrics, one mapping a step, in order. Without `frames`, scores are drawn against steps. Lines
        connect the values that are there.
      path: File to write, such as a PNG; None writes none.
      title: Title of the figure.
      random: Score of random play, drawn as a line.
    """
    data = columns(rows)
    spreads = {_spread(data, name) for name in data}
    names = [name for name in data if name not in spreads and not _COUNTERS.fullmatch(name)]
    scores = [name for name in names if _SCORE.match(name)]
    ranges = {name: _range(rows, name) for name in scores if any(name + EACH in row for row in rows)}
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
        for name, style in zip(scores, itertools.cycle(STYLES), strict=False):
            _draw(axes, x, data, name, style, ranges.get(name))
        if scores and random is not None:
            axes.axhline(random, color="0.4", linestyle="--", linewidth=1, label="random play (published)")
    by_frames.set(xlabel="frames" if "frames" in data else "steps", ylabel="score")
    set_count_format(by_frames)
    by_time.set_xlabel(f"wall-clock time ({unit})")
    if scores:
        by_frames.legend(frameon=False, fontsize="x-small")
    for i, name in enumerate(others):
        axes = figure.add_subplot(grid[2 + i // 4, i % 4])
        _draw(axes, data.get("frames", steps), data, name, {"color": "0.3"})
        axes.set_title(name.replace("_", " "), fontsize="small")
        axes.locator_params(nbins=4)
        axes.tick_params(labelsize="x-small", labelbottom=False)
    figure.suptitle(title)
    return finish(figure, path)


def cloud(
    run_dir: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    panels: int = 6,
    background: "Callable[[Axes], None] | None" = None,
    title: str = "",
) -> "Figure":
    """Draws the behaviours of the members of some generations, coloured by fitness.

        vx.report.cloud("runs/maze", "cloud.png", background=vx.report.plots.maze_walls)

    The panels show generations that are evenly spaced from the first to the last. Circles mark members that became
    parents, and a star marks the elite if it is of that generation. Behaviours of more than two numbers are drawn by
    their first two.

    Args:
      run_dir: Directory of a run with a log (`volvox.runs.log_arrays`).
      path: PNG file to write; None writes none.
      panels: Largest number of generations to show.
      background: Draws on each panel before the members, for example `volvox.report.plots.maze_walls`.
      title: Title of the figure.

    Raises:
      FileNotFoundError: The run has no log.
      ValueError: No behaviours of at least two numbers were recorded.
    """
    logged = read_log(Path(run_dir) / LOG)
    steps = list(logged)
    members: Any = None
    if logged[steps[0]]["behavior"].shape[1] < 2:
        raise ValueError(f"{run_dir}: no behaviours of two numbers were recorded; give volvox.evolve a behavior")
    shown = {steps[i]: logged[steps[i]] for i in np.linspace(0, len(steps) - 1, panels).round().astype(int)}
    fitness = np.ma.masked_invalid(np.concatenate([arrays["fitness"] for arrays in shown.values()]))
    low, high = (fitness.min(), fitness.max()) if fitness.count() else (0.0, 1.0)
    num_columns, num_rows = min(len(shown), 3), -(-len(shown) // 3)
    figure = new_figure(figsize=(3.4 * num_columns + 0.8, 3.3 * num_rows + 0.3), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True)
    for axes, (step, arrays) in zip(grid.flat, shown.items(), strict=False):
        places = arrays["behavior"][:, :2]
        if background is not None:
            background(axes)
        members = axes.scatter(*places.T, c=arrays["fitness"], s=9, vmin=low, vmax=high, cmap="viridis", label="member")
        if "base_seed" in arrays:
            born = (arrays["base_scale"] != 0) | arrays["base_initial"]
            *parents, elite = np.where(born, arrays["base_seed"], -1)
            selected = places[np.isin(arrays["seed"], parents)]
            axes.scatter(*selected.T, s=40, facecolors="none", edgecolors="black", label="became a parent")
            axes.scatter(*places[arrays["seed"] == elite].T, s=130, marker="*", color=_VERMILLION, label="elite")
        axes.set_title(f"generation {step}", fontsize=10)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    figure.supxlabel("behaviour, first number")
    figure.supylabel("behaviour, second number")
    figure.colorbar(members, ax=grid, label="training fitness")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles[-3:], labels[-3:], loc="outside upper right", ncols=3, frameon=False, fontsize="small")
    figure.suptitle(title)
    return finish(figure, path)


def settings_and_scores(
    settings: Sequence[Mapping[str, Any]],
    scores: Sequence[float],
    path: str | os.PathLike[str] | None = None,
    *,
    metric: str = "score",
) -> "Figure":
    """Draws the scores of trials against each setting, and below all settings of each trial as a line.

    Args:
      settings: Settings of each trial by name; of at least one.
      scores: Score of each trial.
      path: PNG file to write; None writes none.
      metric: Name of the score.
    """
    from matplotlib import colormaps

    names = list(dict.fromkeys(name for one in settings for name in one))
    colors = colormaps["viridis_r"](np.argsort(np.argsort(scores)) / max(len(scores) - 1, 1))
    figure = new_figure(figsize=(max(2.4 * len(names), 5.0) + 0.8, 5.6), layout="constrained")
    grid, lines, labels = figure.add_gridspec(2, len(names)), [], []
    for place, name in enumerate([*names, metric]):
        column = [one.get(name) for one in settings] if place < len(names) else list(scores)
        numeric, texts = all(type(x) in (int, float) for x in column), sorted(set(map(str, column)))
        values = np.array(column if numeric else [texts.index(str(x)) for x in column], float)
        low, high, label = values.min(), values.max(), name.replace("_", " ")
        is_log = numeric and place < len(names) and 0 < 20 * low < high
        scaled = np.log(values) if is_log else values
        lines.append((scaled - scaled.min()) / (np.ptp(scaled) or 1.0))
        labels.append("\n".join([label, f"{low:.3g} to {high:.3g}" if numeric else f"{texts[0]} to {texts[-1]}"]))
        if place == len(names):
            break
        axes = figure.add_subplot(grid[0, place], xlabel=label, xscale="log" if is_log else "linear")
        axes.scatter(values, scores, c=colors, s=18)
        axes.set_ylabel(metric.replace("_", " ") if place == 0 else "")
        if is_log:
            ticks = [low, (low * high) ** 0.5, high]
            axes.set_xticks(ticks, [f"{x:.1g}" for x in ticks])
            axes.set_xticks([], minor=True)
        elif not numeric:
            axes.set_xticks(range(len(texts)), texts)
    axes = figure.add_subplot(grid[1, :])
    for i in np.argsort(scores):  # good trials are drawn last
        axes.plot([line[i] for line in lines], color=colors[i], linewidth=1.2)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks([])
    return finish(figure, path)


def lineage(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str] | None = None) -> "Figure":
    """Draws the settings of learners that copy each other (`volvox.PBT`) against their timesteps.

        vx.report.lineage(run.metrics, "lineage.png")

    A colour shows the learner of the beginning from which the weights descend; descendants that died out are grey. A
    copy is a thin line from the copied learner to the new settings.

    Args:
      rows: Metrics, one mapping a step, in order.
      path: PNG file to write; None writes none.

    Raises:
      ValueError: The rows have no lineage.
    """
    rows = [row for row in rows if "pbt_parent" + EACH in row]
    if not rows:
        raise ValueError("these rows have no lineage; train with vx.learn(..., pbt=vx.PBT(...))")
    parents = [np.array(row["pbt_parent" + EACH]) for row in rows]
    founders = [np.arange(len(parents[0]))]
    for parent in parents:
        founders.append(founders[-1][parent])
    alive = list(dict.fromkeys(founders[-1].tolist()))
    colors = {founder: STYLES[i % len(_COLORS)]["color"] for i, founder in enumerate(alive)}
    timesteps = [0, *(row["timesteps"] for row in rows)]
    names = [name for name in rows[0] if re.fullmatch(f"pbt_.*(?<!pbt_parent){EACH}", name)]
    figure = new_figure(figsize=(8, 2.6 * len(names) + 0.4), layout="constrained")
    for axes, name in zip(figure.subplots(len(names), squeeze=False).flat, names, strict=True):
        values = [np.array(row[name]) for row in rows]
        for step, (founder, value) in enumerate(zip(founders, values, strict=False)):
            shades = [colors.get(int(x), "0.8") for x in founder]
            axes.hlines(value, timesteps[step], timesteps[step + 1], colors=shades, linewidth=1.5)
            copies = np.flatnonzero(parents[step] != np.arange(len(founder))) if step + 1 < len(rows) else []
            for i in copies:
                ends = value[parents[step][i]], values[step + 1][i]
                axes.plot([timesteps[step + 1]] * 2, ends, color=shades[parents[step][i]], linewidth=0.5)
        low, high = np.min(values), np.max(values)
        title = name.removeprefix("pbt_").removesuffix(EACH).replace("_", " ")
        axes.set(ylabel=title, yscale="log" if 0 < 20 * low < high else "linear", xlabel="timesteps of each learner")
        set_count_format(axes)
    return finish(figure, path)


def maze_walls(axes: "Axes") -> None:
    """Draws walls, start and goal of the hard maze; a `background` for `cloud`."""
    axes.plot(*maze.WALLS.reshape(-1, 2, 2).T, color="black", linewidth=1.2)
    axes.plot(*maze.START, "o", color="black", ms=4)
    axes.plot(*maze.GOAL, "x", color=_VERMILLION, ms=8, mew=2)
    axes.set(xlim=(-5, 210), ylim=(210, -5), aspect="equal")


def new_figure(**options: Any) -> "Figure":
    """Makes a figure that notebooks show, although pyplot does not know it."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=120)
            return file.getvalue()

    return NotebookFigure(**options)


def set_count_format(axes: "Axes") -> None:
    """Writes large numbers of the x axis as 250 k or 10 M."""
    from matplotlib.ticker import EngFormatter

    axes.xaxis.set_major_formatter(EngFormatter(sep="\N{THIN SPACE}"))


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


def _spread(data: Mapping[str, np.ndarray], name: str) -> str | None:
    """Returns the name of a metric's standard deviation or error, if the data have one."""
    stem = re.sub("_(mean|score)$", "", name)
    return next((stem + suffix for suffix in _SPREADS if stem + suffix in data), None)


def _range(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lowest and the highest number of several learners in each row."""
    each = [np.array(row.get(name + EACH, [np.nan]), float) for row in rows]
    return np.array([x.min() for x in each]), np.array([x.max() for x in each])


def _draw(
    axes: "Axes",
    x: np.ndarray,
    data: Mapping[str, np.ndarray],
    name: str,
    style: Mapping[str, Any],
    learners: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    label, spread, shown = name.replace("_", " "), _spread(data, name), np.isfinite(data[name])
    x, y = x[shown], data[name][shown]
    if learners is not None:
        label += f" ({'best' if name == 'training_best' else 'mean'} and range of learners)"
        low, high = (bound[shown] for bound in learners)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
    elif spread is not None:
        label += f" ({next(text for suffix, text in _SPREADS.items() if spread.endswith(suffix))})"
        band = np.nan_to_num(data[spread][shown])
        axes.fill_between(x, y - band, y + band, color=style["color"], alpha=0.15, linewidth=0)
    axes.plot(x, y, label=label, marker="o" if len(x) <= 30 else "", markersize=3, linewidth=1.5, **style)
