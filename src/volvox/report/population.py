"""Pictures of a population over the generations, from the log of a run (`volvox.runs.log_arrays`).

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
from volvox.report import plots
from volvox.report.files import LOG, read_log

if TYPE_CHECKING:  # matplotlib is slow to import
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
    """Draws the behaviours of the members of some generations, coloured by fitness.

    The panels show generations that are evenly spaced from the first to the last. Circles mark members that became
    parents, and a star marks the elite if it is of that generation. Behaviours of more than two numbers are projected
    on their two principal directions.

    Args:
      run_dir: Directory of a run with a log.
      path: PNG file to write; None writes none.
      panels: Largest number of generations to show.
      background: Draws on each panel before the members, for example `volvox.report.maze_walls`.
      title: Title of the figure.

    Raises:
      FileNotFoundError: The run has no log.
      ValueError: No behaviours were recorded.
    """
    logged = read_log(Path(run_dir) / LOG)
    behaviors = np.concatenate([arrays["behavior"] for arrays in logged.values()])
    size = behaviors.shape[1]
    if size == 0:
        raise ValueError(f"{os.fspath(run_dir)}: no behaviours were recorded; give volvox.evolve a behavior")
    center, directions = np.zeros(size), np.eye(size, 2)
    if size > 2:
        clean = behaviors[np.isfinite(behaviors).all(axis=1)]
        center = clean.mean(axis=0)
        # A few thousand members determine the directions well enough.
        few = clean[:: max(1, len(clean) // 2_000)] - center
        directions = np.linalg.svd(few, full_matrices=False)[2][:2].T
    numbers = np.array(list(logged))
    shown = numbers[np.unique(np.linspace(0, len(numbers) - 1, panels).round().astype(int))].tolist()
    fitness = np.ma.masked_invalid(np.concatenate([logged[number]["fitness"] for number in shown]))
    low, high = (fitness.min(), fitness.max()) if fitness.count() else (0.0, 1.0)
    num_columns, num_rows = min(len(shown), 3), -(-len(shown) // 3)
    figure = plots.new_figure(figsize=(3.4 * num_columns + 0.8, 3.3 * num_rows + 0.3), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True)
    points: Any = None
    for axes, number in zip(grid.flat, shown, strict=False):
        arrays = logged[number]
        places = (arrays["behavior"] - center) @ directions
        if background is not None:
            background(axes)
        color = {"c": arrays["fitness"], "vmin": low, "vmax": high, "cmap": "viridis"}
        points = axes.scatter(*places.T, s=9, linewidths=0, label="member", **color)
        if "base_seed" in arrays:
            born = (arrays["base_scale"] != 0) | arrays["base_initial"]
            *parents, elite = np.where(born, arrays["base_seed"], -1)
            selected = places[np.isin(arrays["seed"], parents)]
            axes.scatter(*selected.T, s=40, facecolors="none", edgecolors="black", label="became a parent")
            axes.scatter(*places[arrays["seed"] == elite].T, s=130, marker="*", color=_VERMILLION, label="elite")
        axes.set_title(f"generation {number}", fontsize=10)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    kind = "number" if size <= 2 else "principal direction"
    figure.supxlabel(f"behaviour, first {kind}")
    figure.supylabel(f"behaviour, second {kind}")
    figure.colorbar(points, ax=grid, label="training fitness")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles[-3:], labels[-3:], loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    figure.suptitle(title)
    return plots.finish(figure, path)


def descent(
    run_dir: str | os.PathLike[str], path: str | os.PathLike[str] | None = None, *, title: str = ""
) -> "Figure":
    """Draws the fitness of all members by generation, with lines from each base of the last generation to its parents.

    The elite and its ancestors are highlighted.

        vx.report.descent("runs/frostbite", "descent.png")

    Args:
      run_dir: Directory of a run with a log and a strategy that keeps lineages.
      path: PNG file to write; None writes none.
      title: Title of the figure.

    Raises:
      FileNotFoundError: The run has no log.
      ValueError: The strategy keeps no lineages.
    """
    from matplotlib.collections import LineCollection

    logged = read_log(Path(run_dir) / LOG)
    last = logged[max(logged)]
    if "base_seed" not in last:
        raise ValueError(f"{os.fspath(run_dir)}: the strategy keeps no lineages, so there is no descent to draw")
    figure = plots.new_figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, arrays in logged.items():
        axes.plot(np.full(arrays["fitness"].shape, number), arrays["fitness"], ".", color=_GREY, ms=2, alpha=0.4)
    *others, elite = [ancestors(logged, base) for base in range(len(last["base_seed"]))]
    segments = dict.fromkeys(segment for line in others for segment in itertools.pairwise(line))
    axes.add_collection(LineCollection(list(segments), colors=_GREY, linewidths=0.8))
    axes.plot(*np.array(elite).reshape(-1, 2).T, "o-", color=_VERMILLION, ms=4, label="the elite and its ancestors")
    axes.set(xlabel="generation", ylabel="training fitness", title=title)
    axes.locator_params(axis="x", integer=True)
    axes.legend(loc="best", frameon=False)
    return plots.finish(figure, path)


def ancestors(logged: dict[int, dict[str, np.ndarray]], base: int) -> list[tuple[int, float]]:
    """Returns generation of birth and training fitness of a base of the last generation and of its ancestors.

    Args:
      logged: Arrays by generation, see `read_log`.
      base: Index of the base.

    Returns:
      The base first, then its parent, and so on, as far back as the log goes without a gap.
    """
    found: list[tuple[int, float]] = []
    for number in itertools.takewhile(logged.__contains__, range(max(logged), 0, -1)):
        arrays = logged[number]
        seed, parent, initial = (arrays[f"base_{name}"][base] for name in ("seed", "parent", "initial"))
        if initial or arrays["base_scale"][base] != 0:  # born in this generation, not carried over
            members = np.flatnonzero((arrays["seed"] == seed) & ((arrays["parent"] == parent) | arrays["initial"]))
            found += [(number, float(arrays["fitness"][row])) for row in members[:1]]
        if initial:
            break
        base = int(parent)
    return found


def maze_walls(axes: "Axes") -> None:
    """Draws walls, start and goal of the hard maze; a `background` for `cloud`."""
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(list(maze.WALLS.reshape(-1, 2, 2)), colors="black", linewidths=1.2))
    axes.plot(*maze.START, "o", color="black", ms=4)
    axes.plot(*maze.GOAL, "x", color=_VERMILLION, ms=8, mew=2)
    axes.set(xlim=(-5, 210), ylim=(210, -5), aspect="equal")
