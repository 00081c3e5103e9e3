"""Pictures of a population over the generations, from what a run logged of it (`volvox.train(..., log=True)`).

report.cloud("runs/maze", "cloud.png", background=report.maze_walls)
report.descent("runs/maze", "descent.png")
"""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from volvox.envs import maze
from volvox.report.plots import finished
from volvox.report.rows import read_log

if TYPE_CHECKING:  # matplotlib is imported where something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREY, _VERMILLION = "#999999", "#D55E00"


def cloud(
    run_dir: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    panels: int = 6,
    background: "Callable[[Axes], None] | None" = None,
    title: str = "",
) -> "Figure":
    """Draws where in behaviour space the members of some generations ended, and how well.

    Each panel is a generation, evenly spaced from the first to the last. Colour is fitness, on one scale; circles are
    members that became parents, a star is the elite if it is of that generation. Behaviours of more than two numbers
    are projected on the two directions in which all of them vary most.

    Args:
      run_dir: Directory of a run with a log.
      path: Where to write a PNG, if anywhere.
      panels: Generations to show, at most.
      background: Draws on each panel before the members, for example `volvox.report.maze_walls`.
      title: The figure's title.

    Returns:
      The figure.

    Raises:
      FileNotFoundError: Nothing was logged.
      ValueError: No behaviours were recorded, or `panels` is not positive.
    """
    from matplotlib.figure import Figure

    if panels < 1:
        raise ValueError(f"panels={panels}: show at least one generation.")
    logged = read_log(Path(run_dir) / "log")
    behaviors = np.concatenate([arrays["behavior"] for arrays in logged.values()])
    size = behaviors.shape[1]
    if size == 0:
        raise ValueError(f"{os.fspath(run_dir)}: no behaviours were recorded; give evolve a behavior.")
    shown = np.array(list(logged))[np.unique(np.linspace(0, len(logged) - 1, panels).round().astype(int))].tolist()
    project = _projection(behaviors)
    fitness = np.ma.masked_invalid(np.concatenate([logged[number]["fitness"] for number in shown]))
    low, high = (fitness.min(), fitness.max()) if fitness.count() else (0.0, 1.0)
    columns, rows = min(len(shown), 3), -(-len(shown) // 3)
    figure = Figure(figsize=(3.4 * columns + 0.8, 3.3 * rows + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    points: Any = None
    for axes, number in zip(grid.flat, shown, strict=False):
        arrays = logged[number]
        place = project(arrays["behavior"])
        if background is not None:
            background(axes)
        shade = {"c": arrays["fitness"], "vmin": low, "vmax": high, "cmap": "viridis"}
        points = axes.scatter(*place.T, s=9, linewidths=0, label="member", **shade)
        selected, elite = _selected(arrays)
        ring = {"facecolors": "none", "edgecolors": "black", "linewidths": 0.8, "label": "became a parent"}
        axes.scatter(*place[selected].T, s=40, **ring)
        star = {"color": _VERMILLION, "edgecolors": "black", "linewidths": 0.6, "label": "elite"}
        axes.scatter(*place[elite].T, s=130, marker="*", **star)
        axes.set_title(f"generation {number}", fontsize=10)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    label = "behaviour, {} number" if size <= 2 else "behaviour, {} principal direction"
    figure.supxlabel(label.format("first"))
    figure.supylabel(label.format("second"))
    figure.colorbar(points, ax=grid, label="training fitness")
    if any("base_seed" in logged[number] for number in shown):
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles[-3:], labels[-3:], loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    figure.suptitle(title)
    return finished(figure, path)


def descent(
    run_dir: str | os.PathLike[str], path: str | os.PathLike[str] | None = None, *, title: str = ""
) -> "Figure":
    """Draws the tree of descent: fitness of all members by generation, lines from each parent to its parent.

    The ancestors of the final elite are highlighted.

        vx.report.descent("runs/frostbite", "descent.png")
        figure = vx.report.descent(run.run_dir, title="Frostbite")

    Args:
      run_dir: Directory of a run with a log and a strategy that keeps lineages.
      path: Where to write a PNG, if anywhere.
      title: The figure's title.

    Returns:
      The figure.

    Raises:
      FileNotFoundError: Nothing was logged.
      ValueError: The strategy keeps no lineages, or the elite is older than the log.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    logged = read_log(Path(run_dir) / "log")
    if "base_seed" not in next(iter(logged.values())):
        raise ValueError(f"{os.fspath(run_dir)}: this strategy keeps no lineages, so there is no descent to draw.")
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, arrays in logged.items():
        axes.plot(np.full(arrays["fitness"].shape, number), arrays["fitness"], ".", color=_GREY, ms=2, alpha=0.4)
    last = max(logged)
    elite = logged[last]["base_seed"].shape[0] - 1
    segments = [segment for base in range(elite) for segment in itertools.pairwise(ancestors(logged, base))]
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


def ancestors(logged: dict[int, dict[str, np.ndarray]], base: int) -> list[tuple[int, float]]:
    """A base of the last logged generation and those it descends from, newest first, as far back as the log goes.

    Args:
      logged: Arrays by generation, as `read_log` reads them.
      base: Its index.

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


def maze_walls(axes: "Axes") -> None:
    """Draws the walls, the start and the goal of the hard maze; a `background` for `cloud`."""
    from matplotlib.collections import LineCollection

    walls = maze.WALLS.reshape(-1, 2, 2)
    axes.add_collection(LineCollection(list(walls), colors="black", linewidths=1.2))
    axes.plot(*maze.START, "o", color="black", ms=4)
    axes.plot(*maze.GOAL, "x", color=_VERMILLION, ms=8, mew=2)
    axes.set_xlim(-5, 210)
    axes.set_ylim(210, -5)
    axes.set_aspect("equal")


def _selected(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the members that became bases, and those of the elite."""
    if "base_seed" not in arrays:
        return np.zeros(0, int), np.zeros(0, int)
    born = (arrays["base_scale"] != 0) | arrays["base_initial"]
    seeds = np.where(born, arrays["base_seed"], -1)
    return np.flatnonzero(np.isin(arrays["seed"], seeds[:-1])), np.flatnonzero(arrays["seed"] == seeds[-1])


def _projection(behaviors: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Returns what takes behaviours `[N, D]` to places `[N, 2]`."""
    size = behaviors.shape[1]
    if size <= 2:
        return lambda x: np.pad(x, ((0, 0), (0, 2 - size)))
    clean = behaviors[np.isfinite(behaviors).all(axis=1)]
    center = clean.mean(axis=0)
    # Of few thousands, drawn evenly: the directions hardly change, and the decomposition takes a moment.
    some = clean[:: max(1, len(clean) // 2_000)] - center
    directions = np.linalg.svd(some, full_matrices=False)[2][:2]
    return lambda x: (x - center) @ directions.T
