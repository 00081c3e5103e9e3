"""Compares learners by several seeds of each: their curves, and means over seeds with 95% intervals.

    python experiments/compare_seeds.py --run-dir runs/cartpole

Reads what other scripts wrote there, one file a learner. Writes `comparison.json`, and `comparison.png` of each learner
at its best rate by the mean over all of training. To choose it that way flatters every learner alike.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib.figure import Figure
from scipy import stats


def write(run_dir: str, name: str, settings: Any, curves: list[list[float]]) -> None:
    """Writes the curves of one learner, one a seed."""
    folder = Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"name": name, "settings": settings, "curves": curves})
    (folder / f"{name.replace(', ', '_').replace(' ', '_')}.json").write_text(text + "\n")
    print(name, interval(np.mean(curves, axis=1)), interval(np.array(curves)[:, -1]), flush=True)


def interval(values: np.ndarray) -> list[float]:
    """Mean over seeds, and the ends of its 95% interval by Student's t."""
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return [round(float(x), 1) for x in (values.mean(), values.mean() - half, values.mean() + half)]


def compare(run_dir: str) -> None:
    """Compares what is in a directory; raises FileNotFoundError where there are no results."""
    folder, best, table = Path(run_dir), {}, {}
    found = sorted(folder.glob("*_rate_*.json"))
    if not found:
        raise FileNotFoundError(f"{folder} holds no results (*_rate_*.json)")
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for path in found:
        one = json.loads(path.read_text())
        curves, learner = np.array(one["curves"]), one["name"].rsplit(", rate", 1)[0]
        table[one["name"]] = {"mean over training": interval(curves.mean(axis=1)), "end": interval(curves[:, -1])}
        if learner not in best or curves.mean() > best[learner][0].mean():
            best[learner] = (curves, one)
    for curves, one in best.values():
        every = one["settings"]["learner"]["timesteps_per_iteration"]
        x, (mean, low, high) = every * np.arange(1, curves.shape[1] + 1), np.array([*map(interval, curves.T)]).T
        axes.plot(x, mean, label=one["name"])
        axes.fill_between(x, low, high, alpha=0.15, linewidth=0)
    axes.set(xlabel="timesteps", ylabel="return, latest 100 episodes: mean of seeds, 95% interval")
    axes.legend(frameon=False)
    figure.savefig(folder / "comparison.png", dpi=100)
    (folder / "comparison.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    tyro.cli(compare)
