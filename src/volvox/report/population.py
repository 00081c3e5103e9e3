"""Pictures of a population over the generations, from the log of a run (`volvox.runs.log_arrays`).

report.cloud("runs/maze", "cloud.png", background=report.maze_walls)
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from volvox.envs import maze
from volvox.report import plots
from volvox.report.files import LOG, read_log

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_VERMILLION = "#D55E00"


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
    center, directions, kind = np.zeros(size), np.eye(size, 2), "number"
    if size > 2:
        finite = behaviors[np.isfinite(behaviors).all(axis=1)]
        center, kind = finite.mean(axis=0), "principal direction"
        directions = np.linalg.svd(finite[:2_000] - center, full_matrices=False)[2][:2].T
    numbers = list(logged)
    shown = [numbers[i] for i in np.unique(np.linspace(0, len(numbers) - 1, panels).round().astype(int))]
    fitness = np.ma.masked_invalid(np.concatenate([logged[number]["fitness"] for number in shown]))
    low, high = (fitness.min(), fitness.max()) if fitness.count() else (0.0, 1.0)
    num_columns, num_rows = min(len(shown), 3), -(-len(shown) // 3)
    figure = plots.new_figure(figsize=(3.4 * num_columns + 0.8, 3.3 * num_rows + 0.3), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True)
    for axes, number in zip(grid.flat, shown, strict=False):
        arrays = logged[number]
        places = (arrays["behavior"] - center) @ directions
        if background is not None:
            background(axes)
        axes.scatter(*places.T, c=arrays["fitness"], s=9, vmin=low, vmax=high, cmap="viridis", label="member")
        if "base_seed" in arrays:
            born = (arrays["base_scale"] != 0) | arrays["base_initial"]
            *parents, elite = np.where(born, arrays["base_seed"], -1)
            selected = places[np.isin(arrays["seed"], parents)]
            axes.scatter(*selected.T, s=40, facecolors="none", edgecolors="black", label="became a parent")
            axes.scatter(*places[arrays["seed"] == elite].T, s=130, marker="*", color=_VERMILLION, label="elite")
        axes.set_title(f"generation {number}", fontsize=10)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    figure.supxlabel(f"behaviour, first {kind}")
    figure.supylabel(f"behaviour, second {kind}")
    members = next(points for points in grid[0, 0].collections if points.get_label() == "member")
    figure.colorbar(members, ax=grid, label="training fitness")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles[-3:], labels[-3:], loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    figure.suptitle(title)
    return plots.finish(figure, path)


def maze_walls(axes: "Axes") -> None:
    """Draws walls, start and goal of the hard maze; a `background` for `cloud`."""
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(list(maze.WALLS.reshape(-1, 2, 2)), colors="black", linewidths=1.2))
    axes.plot(*maze.START, "o", color="black", ms=4)
    axes.plot(*maze.GOAL, "x", color=_VERMILLION, ms=8, mew=2)
    axes.set(xlim=(-5, 210), ylim=(210, -5), aspect="equal")
