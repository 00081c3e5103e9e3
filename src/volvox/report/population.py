"""Pictures of a population over the generations, from what a run logged of it (`volvox.train(..., log=True)`)."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from volvox.envs import maze as hard_maze
from volvox.report import log
from volvox.report.plots import finished

_GREY, _VERMILLION = "#999999", "#D55E00"

Logged = dict[int, dict[str, np.ndarray]]
"""Arrays by generation; see `volvox.evolution.evolve`."""


def cloud(
    run_dir: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    panels: int = 6,
    background: Callable[[Axes], None] | None = None,
    title: str = "",
) -> Figure:
    """Draws where in behaviour space the members of some generations ended, and how well.

    Each panel is a generation, evenly spaced from the first to the last. Colour is fitness, on one scale; circles are
    members that became parents, a star is the elite if it is of that generation. Behaviours of more than two numbers
    are projected on the two directions in which all of them vary most.

    Args:
        run_dir: of a run with a log.
        path: where to write a PNG, if anywhere.
        panels: generations to show, at most.
        background: draws on each panel before the members, for example `volvox.report.population.maze`.
        title: the figure's title.

    Returns:
        The figure.

    Raises:
        FileNotFoundError: nothing was logged.
        ValueError: no behaviours were recorded, or `panels` is not positive.
    """
    if panels < 1:
        raise ValueError(f"panels={panels}: show at least one generation.")
    logged = log.read(Path(run_dir) / "log")
    if next(iter(logged.values()))["behavior"].shape[1] == 0:
        raise ValueError(f"{os.fspath(run_dir)}: no behaviours were recorded; give evolve a behavior, or a strategy.")
    numbers = list(logged)
    shown = [numbers[i] for i in np.unique(np.linspace(0, len(numbers) - 1, panels).round().astype(int))]
    project = _projection(np.concatenate([logged[number]["behavior"] for number in numbers]))
    fitness = np.concatenate([logged[number]["fitness"] for number in shown])
    finite = fitness[np.isfinite(fitness)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    columns = min(len(shown), 3)
    figure = Figure(figsize=(3.4 * columns + 0.8, 3.3 * -(-len(shown) // columns) + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(-(-len(shown) // columns), columns, squeeze=False, sharex=True, sharey=True)
    points: Any = None
    for axes, number in zip(grid.flat, shown, strict=False):
        arrays = logged[number]
        place = project(arrays["behavior"])
        if background is not None:
            background(axes)
        points = axes.scatter(*place.T, c=arrays["fitness"], s=9, vmin=low, vmax=high, cmap="viridis", linewidths=0)
        selected, elite = _selected(arrays)
        axes.scatter(*place[selected].T, s=40, facecolors="none", edgecolors="black", linewidths=0.8)
        axes.scatter(*place[elite].T, s=130, marker="*", color=_VERMILLION, edgecolors="black", linewidths=0.6)
        axes.set_title(f"generation {number}", fontsize=10)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    size = next(iter(logged.values()))["behavior"].shape[1]
    for place, label in (("first", figure.supxlabel), ("second", figure.supylabel)):
        label(f"behaviour, {place} number" if size <= 2 else f"behaviour, {place} principal direction")
    figure.colorbar(points, ax=grid, label="training fitness")
    if any(rows.size for number in shown for rows in _selected(logged[number])):
        figure.legend(handles=_marks(), loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    figure.suptitle(title)
    return finished(figure, path)


def descent(run_dir: str | os.PathLike[str], path: str | os.PathLike[str] | None = None, *, title: str = "") -> Figure:
    """Draws the tree of descent: fitness of all members by generation, lines from each parent to its parent.

    The line of the elite that the run ended with is drawn out.

    Args:
        run_dir: of a run with a log and a strategy that keeps lineages.
        path: where to write a PNG, if anywhere.
        title: the figure's title.

    Returns:
        The figure.

    Raises:
        FileNotFoundError: nothing was logged.
        ValueError: the strategy keeps no lineages, or the elite is older than the log.
    """
    logged = log.read(Path(run_dir) / "log")
    if "base_seed" not in next(iter(logged.values())):
        raise ValueError(f"{os.fspath(run_dir)}: this strategy keeps no lineages, so there is no descent to draw.")
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, arrays in logged.items():
        axes.plot(np.full(arrays["fitness"].shape, number), arrays["fitness"], ".", color=_GREY, ms=2, alpha=0.4)
    last = max(logged)
    elite = logged[last]["base_seed"].shape[0] - 1
    segments = [segment for base in range(elite) for segment in _segments(ancestors(logged, base))]
    axes.add_collection(LineCollection(list(dict.fromkeys(segments)), colors=_GREY, linewidths=0.8))
    line = ancestors(logged, elite)
    if not line:
        raise ValueError(
            f"{os.fspath(run_dir)}: the elite was born before generation {min(logged)}, where the log begins."
        )
    axes.plot(*zip(*line, strict=True), "o-", color=_VERMILLION, ms=4, lw=1.6, label="the elite and its ancestors")
    axes.set_xlabel("generation")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("training fitness")
    axes.legend(loc="best", frameon=False)
    axes.set_title(title)
    return finished(figure, path)


def ancestors(logged: Logged, base: int) -> list[tuple[int, float]]:
    """A base of the last logged generation and those it descends from, newest first, as far back as the log goes.

    Args:
        logged: arrays by generation.
        base: its index.

    Returns:
        (generation in which it was born, training fitness) of each.
    """
    found: list[tuple[int, float]] = []
    # Bases are numbered anew in every generation: a gap in the log ends what is known.
    for number in range(max(logged), 0, -1):
        if number not in logged:
            break
        arrays = logged[number]
        seed, parent = arrays["base_seed"][base], arrays["base_parent"][base]
        initial = bool(arrays["base_initial"][base])
        if initial or arrays["base_scale"][base] != 0:  # born in this generation, not carried over
            rows = np.flatnonzero((arrays["seed"] == seed) & ((arrays["parent"] == parent) | arrays["initial"]))
            if rows.size:
                found.append((number, float(arrays["fitness"][rows[0]])))
        if initial:
            break
        base = int(parent)
    return found


def maze(axes: Axes) -> None:
    """Draws the walls, the start and the goal of the hard maze; a `background` for `cloud`."""
    walls = hard_maze.WALLS.reshape(-1, 2, 2)
    axes.add_collection(LineCollection(list(walls), colors="black", linewidths=1.2))
    axes.plot(*hard_maze.START, "o", color="black", ms=4)
    axes.plot(*hard_maze.GOAL, "x", color=_VERMILLION, ms=8, mew=2)
    axes.set_xlim(-5, 210)
    axes.set_ylim(210, -5)
    axes.set_aspect("equal")


def _segments(line: list[tuple[int, float]]) -> list[tuple[tuple[int, float], tuple[int, float]]]:
    return list(itertools.pairwise(line))


def _selected(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the members that became bases, the elite apart."""
    if "base_seed" not in arrays:
        return np.zeros(0, int), np.zeros(0, int)
    born = (arrays["base_scale"] != 0) | arrays["base_initial"]
    seeds = np.where(born, arrays["base_seed"], -1)
    return np.flatnonzero(np.isin(arrays["seed"], seeds[:-1])), np.flatnonzero(arrays["seed"] == seeds[-1])


def _marks() -> list[Line2D]:
    """What the legend of a cloud shows."""
    plain: dict[str, Any] = {"linestyle": "none", "color": "black"}
    return [
        Line2D([], [], marker=".", label="member", **plain),
        Line2D([], [], marker="o", markersize=6, fillstyle="none", label="became a parent", **plain),
        Line2D([], [], marker="*", markersize=11, linestyle="none", color=_VERMILLION, label="elite"),
    ]


def _projection(behaviors: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """What takes behaviours `[N, D]` to places `[N, 2]`."""
    size = behaviors.shape[1]
    if size <= 2:
        return lambda x: np.pad(x, ((0, 0), (0, 2 - size)))
    clean = behaviors[np.isfinite(behaviors).all(axis=1)]
    center = clean.mean(axis=0)
    # Of few thousands, drawn evenly: the directions hardly change, and the decomposition takes a moment.
    some = clean[:: max(1, len(clean) // 2_000)] - center
    directions = np.linalg.svd(some, full_matrices=False)[2][:2]
    return lambda x: (x - center) @ directions.T
