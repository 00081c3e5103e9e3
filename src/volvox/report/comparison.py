"""Comparison of methods by several runs of each: means with intervals, probabilities of improvement, and a plot.

comparison = compare({"ga": "runs/ga", "es": ["runs/es/seed-0", "runs/es/seed-1", "runs/es/seed-2"]})
print(comparison)
comparison.plot("comparison.png")
"""

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from volvox._arguments import said
from volvox.report import runs as runs_
from volvox.report.plots import COLORS, RANDOM, STYLES, finished, score_lines
from volvox.report.progress import clock
from volvox.report.runs import SCORES, Recorded, Runs, listed, number_text, words
from volvox.report.statistics import Estimate, interquartile_mean, last_before, probability_of_improvement

if TYPE_CHECKING:  # matplotlib is imported where something is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Methods compared at equal expense; `print` shows the table, `plot` draws the curves.

    Attributes:
      metric: Name of the metric that is compared.
      x: Name of the metric that counts the expense, such as "frames".
      budget: The x at which methods are compared: where the shortest of all runs ends.
      tasks: Names of the tasks, of which every method has runs.
      normalized: Scores are (score - low) / (high - low), with the two scores of each task that `compare` was given, or
        of random play and of a human tester.
      rows: One mapping for each method: its name as `method`, the number of `runs` (of all tasks together), the
        interquartile mean `score` with `low` and `high` (None where no interval can be given), and `seconds`, the mean
        wall-clock time of a run up to the budget (None where it was not recorded).
      pairs: One mapping for each pair of methods: their names as `method` and `other`, and the `probability` that a run
        of the first scores higher, with `low` and `high`, likewise.
      points: float64 `[P]`: x of the curves.
      curves: Interquartile mean at each point with its interval, by method: an `Estimate` of arrays `[P]`.
      notes: Caveats, such as too few runs or settings that differ.
      random: The score of random play; None if it is not known, there are several tasks, or scores are normalised.
    """

    metric: str
    x: str
    budget: float
    tasks: tuple[str, ...]
    normalized: bool
    rows: tuple[dict[str, Any], ...]
    pairs: tuple[dict[str, Any], ...]
    points: np.ndarray = dataclasses.field(repr=False)
    curves: Mapping[str, Estimate] = dataclasses.field(repr=False)
    notes: tuple[str, ...] = ()
    random: float | None = None

    def __str__(self) -> str:
        tables = [_aligned(table) for table in self._tables()]
        notes = [f"Note: {note}." for note in self.notes]
        return "\n\n".join([self._about(), *tables, *(["\n".join(notes)] if notes else [])])

    def markdown(self) -> str:
        """Returns the same as `print` shows, in Markdown."""
        tables = [_markdown(table) for table in self._tables()]
        notes = [f"- {note}." for note in self.notes]
        return "\n\n".join([self._about(), *tables, *(["\n".join(notes)] if notes else [])]) + "\n"

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws the curves with their bands, random play where it is known, and the probabilities of improvement.

        Args:
          path: Where to write a PNG, if anywhere.

        Returns:
          The figure.
        """
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter

        figure = Figure(figsize=(10 if self.pairs else 6.5, 4.2), layout="constrained")
        panels = figure.subplots(1, 2 if self.pairs else 1, squeeze=False, width_ratios=(2, 1)[: 1 + bool(self.pairs)])
        by_x = panels[0, 0]
        looks = itertools.cycle(itertools.product(STYLES, COLORS))
        for (name, curve), row, (style, color) in zip(self.curves.items(), self.rows, looks, strict=False):
            runs = f"{name} ({row['runs']} run{'s' * (row['runs'] > 1)})"
            by_x.step(self.points, curve.value, where="post", color=color, linestyle=style, label=runs)
            if curve.low is not None:
                by_x.fill_between(self.points, curve.low, curve.high, step="post", color=color, alpha=0.2, linewidth=0)
        if self.random is not None and self.metric in SCORES:
            by_x.axhline(self.random, **RANDOM)
        by_x.set(xlabel=words(self.x), ylabel=self._score_name())
        by_x.xaxis.set_major_formatter(EngFormatter(sep="\N{THIN SPACE}"))
        by_x.legend(frameon=False, fontsize="small")
        if self.pairs:
            _draw_pairs(panels[0, 1], self.pairs)
        for axes in panels[0]:
            axes.grid(color="0.9", linewidth=0.8)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(listed(self.tasks), fontsize="medium")
        return finished(figure, path)

    def _score_name(self) -> str:
        return f"{'normalised ' if self.normalized else ''}{words(self.metric)}"

    def _about(self) -> str:
        return (
            f"{listed(self.tasks)}: {self._score_name()} at {number_text(self.budget)} {words(self.x)}, the "
            "interquartile mean over runs with its 95% bootstrap interval."
        )

    def _tables(self) -> list[list[list[str]]]:
        scores = [["method", "runs", words(self.metric), "95% interval", "time of a run"]]
        for row in self.rows:
            time = "-" if row["seconds"] is None else clock(row["seconds"])
            scores.append([row["method"], str(row["runs"]), number_text(row["score"]), _interval(row), time])
        chances = [["a run of", "scores higher than one of", "with probability", "95% interval"]]
        chances += [[p["method"], p["other"], f"{p['probability']:.2f}", _interval(p)] for p in self.pairs]
        return [scores, chances] if self.pairs else [scores]


def compare(
    methods: Mapping[str, Runs],
    *,
    metric: str | None = None,
    x: str = "frames",
    normalize: Mapping[str, tuple[float, float]] | None = None,
) -> Comparison:
    """Compares methods by several runs of each, as Agarwal et al. 2021 (arXiv 2108.13264) recommend.

        comparison = vx.compare({"ga": "runs/ga", "es": "runs/es"})     # each with seed-0, seed-1, ... in it
        print(comparison)
        comparison.plot("comparison.png")

    Methods are compared at equal expense: at the x at which the shortest of all runs ends. Between two rows of metrics
    a run has the value of the earlier one, so that nothing is taken from later than it was known. The score of a method
    is the interquartile mean over its runs (`volvox.report.interquartile_mean`), and pairs of methods are compared by
    the probability of improvement (`volvox.report.probability_of_improvement`). Runs of several tasks are resampled
    within their task, and every method must have the same tasks.

    Args:
      methods: The runs of each method, by its name: run directories, or directories that hold runs as `seed-0`,
        `seed-1` and so on, of which all are taken but those that are marked as diverged (`experiments/launch.py` marks
        them), which a note names.
      metric: Name of the metric that is compared, of which more is better; None takes the first of
        `volvox.report.SCORES` that all runs have.
      x: Name of the metric that counts the expense: "frames", "seconds", another one that never falls, or "step".
      normalize: For each task, the scores that become 0 and 1, by which several tasks are put on one scale. None takes,
        where there are several tasks, the scores of random play and of a human tester, if all are Atari games.

    Raises:
      ValueError: A directory holds no run, all runs of a method diverged, a run is there twice, methods have other
        tasks than each other, a run lacks the metric or x (what it has is named), x falls, or several tasks have no
        scale in common.
    """
    if not isinstance(methods, Mapping):
        raise TypeError(f'compare takes the runs of each method, such as {{"ga": "runs/ga"}}; got {said(methods)}')
    if not methods:
        raise ValueError('no methods: give the runs of each, such as {"ga": "runs/ga", "es": "runs/es"}')
    found = {name: runs_.runs_of(name, paths) for name, paths in methods.items()}
    runs = {name: [run for run in own if not run.diverged] for name, own in found.items()}
    everything = [run for own in runs.values() for run in own]
    lost = runs_.notes_on_diverged(found)
    tasks = runs_.check_tasks(runs, lost)
    metric = runs_.metric_of(everything, metric, x)
    scales = runs_.scales_of(everything, tasks, normalize)
    series = {run.path: runs_.series_of(run, x, metric) for run in everything}
    points = runs_.points_of(series, x)
    sampled = {
        name: [
            np.stack([_scaled(last_before(*series[run.path], points), scales.get(task)) for run in own], axis=-1)
            for task in tasks
            if (own := [run for run in runs[name] if run.task == task])
        ]
        for name in runs
    }
    curves = {name: interquartile_mean(*scores) for name, scores in sampled.items()}
    rows = [
        {
            "method": name,
            "runs": len(runs[name]),
            **_last(curves[name], "score"),
            "seconds": _seconds(own, x, points[-1]),
        }
        for name, own in runs.items()
    ]
    final = {name: [scores[-1] for scores in sampled[name]] for name in runs}
    pairs = [
        {"method": one, "other": other, **_last(probability_of_improvement(final[one], final[other]), "probability")}
        for one, other in itertools.combinations(runs, 2)
    ]
    return Comparison(
        metric=metric,
        x=x,
        budget=float(points[-1]),
        tasks=tasks,
        normalized=bool(scales),
        rows=tuple(rows),
        pairs=tuple(pairs),
        points=points,
        curves=curves,
        notes=(*runs_.notes_on(runs, series, tasks, metric), *lost),
        random=None if scales else score_lines(runs_.env_config(everything[0].config)).get("random"),
    )


def _scaled(scores: np.ndarray, scale: tuple[float, float] | None) -> np.ndarray:
    return scores if scale is None else (scores - scale[0]) / (scale[1] - scale[0])


def _last(estimate: Estimate, name: str) -> dict[str, Any]:
    """The figures of the last point, as Python numbers."""
    ends = [None if end is None else float(np.ravel(end)[-1]) for end in estimate]
    return dict(zip((name, "low", "high"), ends, strict=True))


def _seconds(runs: list[Recorded], x: str, budget: float) -> float | None:
    """The mean wall-clock time of runs up to an x."""
    try:
        spent = [last_before(*runs_.series_of(run, x, "seconds"), [budget]) for run in runs]
    except ValueError:  # a run did not record it, or began to record it later
        return None
    return float(np.mean(spent))


def _draw_pairs(axes: "Axes", pairs: Sequence[Mapping[str, Any]]) -> None:
    for i, pair in enumerate(pairs):
        if pair["low"] is not None:
            axes.plot([pair["low"], pair["high"]], [i, i], color="0.6", linewidth=5, solid_capstyle="butt")
        axes.plot(pair["probability"], i, "k|", markersize=14)
    axes.axvline(0.5, color="0.4", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(pairs)), [f"{pair['method']}\nover {pair['other']}" for pair in pairs])
    axes.set(xlim=(-0.02, 1.02), ylim=(len(pairs) - 0.5, -0.5), xlabel="probability of improvement")


def _interval(row: Mapping[str, Any]) -> str:
    if row["low"] is None:
        return "too few runs"
    return f"{number_text(row['low'])} to {number_text(row['high'])}"


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(f"{cell:<{n}}" for cell, n in zip(line, widths, strict=True)) for line in table)
    return "\n".join(line.rstrip() for line in lines)


def _markdown(table: Sequence[Sequence[str]]) -> str:
    head, *body = table
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body))
