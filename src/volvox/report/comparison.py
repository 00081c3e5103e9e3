"""Comparison of methods over several runs of each: a table, curves, and probabilities of improvement.

comparison = compare({"ga": "runs/ga", "es": ["runs/es/seed-0", "runs/es/seed-1", "runs/es/seed-2"]})
print(comparison)
comparison.plot("comparison.png")
"""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from volvox.report import plots
from volvox.report.files import CONFIG, DIVERGED, METRICS, Row, numbers, read_config, read_metrics
from volvox.report.metrics import SCORES, atari_scores, columns, format_duration, format_number, latest, listed, task_of
from volvox.report.statistics import Estimate, interquartile_mean, probability_of_improvement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Runs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_MAX_POINTS = 200
"""Largest number of points of a curve."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Methods compared at an equal budget. `print` shows the table, `plot` draws the curves.

    Attributes:
      metric: Metric that is compared.
      x: Metric that measures the budget, such as "frames".
      budget: Value of `x` at which methods are compared: the end of the shortest run.
      tasks: Names of the tasks. Every method has runs of each.
      normalized: Whether scores are (score - low) / (high - low) with two reference scores of each task.
      rows: One mapping a method, best score first: `method`, the number of `runs` over all tasks, the interquartile
        mean `score` with its interval `low` and `high` (None with fewer than three runs of a task), and `seconds`, the
        mean wall-clock time until the budget (None if it was not recorded).
      pairs: One mapping a pair of methods, if asked for: `method`, `other`, and the `probability` that a run of the
        first scores higher, with its interval `low` and `high`.
      points: float64 `[P]`: values of `x` of the curves.
      curves: Interquartile mean at each point with its interval, by method: an `Estimate` of arrays `[P]`.
      notes: Caveats, such as runs that were left out.
      random: Score of random play; None if it is unknown, or scores are normalised.
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
        """Returns tables in Markdown."""
        about = (
            f"{listed(self.tasks)}: {self._score_name()} at {format_number(self.budget)} {self.x.replace('_', ' ')}, "
            "interquartile mean over runs with its 95% bootstrap interval."
        )
        scores = [["method", "runs", self.metric.replace("_", " "), "95% interval", "time of a run"]]
        for row in self.rows:
            time = "-" if row["seconds"] is None else format_duration(row["seconds"])
            scores.append([row["method"], str(row["runs"]), format_number(row["score"]), _interval(row), time])
        pairs = [["a run of", "scores higher than a run of", "with probability", "95% interval"]]
        pairs += [[pair["method"], pair["other"], f"{pair['probability']:.2f}", _interval(pair)] for pair in self.pairs]
        tables = [_markdown(table) for table in (scores, pairs) if len(table) > 1]
        return "\n\n".join([about, *tables, *(f"Note: {note}." for note in self.notes)])

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws the curves with their intervals.

        Args:
          path: PNG file to write; None writes none.
        """
        from matplotlib.ticker import EngFormatter

        figure = plots.new_figure(figsize=(6.5, 4.2), layout="constrained")
        axes = figure.add_subplot()
        for (name, curve), style in zip(self.curves.items(), plots.styles(), strict=False):
            axes.step(self.points, curve.value, where="post", label=name, **style)
            if curve.low is not None:
                band = {"step": "post", "color": style["color"], "alpha": 0.2, "linewidth": 0}
                axes.fill_between(self.points, curve.low, curve.high, **band)
        if self.random is not None:
            axes.axhline(self.random, **plots.RANDOM_LINE)
        axes.set(xlabel=self.x.replace("_", " "), ylabel=self._score_name(), title=listed(self.tasks))
        axes.xaxis.set_major_formatter(EngFormatter(sep="\N{THIN SPACE}"))
        axes.legend(frameon=False, fontsize="small")
        return plots.finish(figure, path)

    def _score_name(self) -> str:
        return f"{'normalised ' if self.normalized else ''}{self.metric.replace('_', ' ')}"


def compare(
    methods: Mapping[str, Runs],
    *,
    metric: str | None = None,
    x: str = "frames",
    normalize: Mapping[str, tuple[float, float]] | None = None,
    pairs: bool = False,
) -> Comparison:
    """Compares methods over several runs of each, as Agarwal et al. 2021 (arXiv 2108.13264) recommend.

        comparison = vx.compare({"ga": "runs/ga", "es": "runs/es"})     # each with seed-0, seed-1, ... in it
        print(comparison)
        comparison.plot("comparison.png")

    Methods are compared at an equal budget: at the `x` at which the shortest of all runs ends. Between two rows of
    metrics a run has the value of the earlier row. The score of a method is the interquartile mean over its runs
    (`volvox.report.interquartile_mean`). Runs of several tasks are resampled within their task.

    Args:
      methods: Runs by the name of their method: run directories, or directories that hold runs as `seed-0`, `seed-1`
        and so on. Runs that are marked as diverged (by `experiments/launch.py`) are left out and named in a note.
      metric: Metric to compare, of which more is better; None takes the first of `elite_score`, `evaluation_mean` and
        others (see docs/comparing.md) that all runs have.
      x: Metric that measures the budget: "frames", "seconds", "step", or another one that never decreases.
      normalize: Two scores of each task, which become 0 and 1, to put several tasks on one scale. By default, several
        Atari games are normalised with the scores of random play and of a human tester.
      pairs: Also compute the probability of improvement (`volvox.report.probability_of_improvement`) for each pair of
        methods.

    Raises:
      ValueError: A directory holds no run, a run is given twice, methods have different tasks, a run lacks the metric
        or `x`, or several tasks have no common scale.
    """
    if not isinstance(methods, Mapping) or not methods:
        raise ValueError(f'give the runs of each method, such as {{"ga": "runs/ga"}}; got {methods!r}')
    notes: list[str] = []
    runs = [run for name, paths in methods.items() for run in _read(name, paths, notes)]
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise ValueError(f"a run is given twice: {listed(run.path for run in runs)}")
    tasks = sorted({run.task for run in runs})
    if not runs or len({(run.method, run.task) for run in runs}) < len(methods) * len(tasks):
        played = {name: sorted({run.task for run in runs if run.method == name}) for name in methods}
        raise ValueError(f"methods must have runs of the same tasks; they have {played}. {'. '.join(notes)}".strip())
    metric = _metric(runs, metric, x)
    scales = _scales(runs, tasks, normalize)
    curves_of = {run.path: _curve(run, x, metric) for run in runs}
    begin, end = max(at[0] for at, _ in curves_of.values()), min(at[-1] for at, _ in curves_of.values())
    points = np.unique(np.concatenate([at for at, _ in curves_of.values()]))
    points = points[(points >= begin) & (points <= end)]
    points = points if len(points) <= _MAX_POINTS else np.linspace(begin, end, _MAX_POINTS)

    def scores_of(method: str, task: str) -> np.ndarray:
        """Scores of all runs at all points, `[P, runs]`."""
        low, high = scales.get(task, (0.0, 1.0))
        own = [curves_of[run.path] for run in runs if (run.method, run.task) == (method, task)]
        latest_values = [values[np.searchsorted(at, points, side="right") - 1] for at, values in own]
        return (np.stack(latest_values, axis=-1) - low) / (high - low)

    samples = {name: [scores_of(name, task) for task in tasks] for name in methods}
    curves = {name: interquartile_mean(*scores) for name, scores in samples.items()}
    curves = dict(sorted(curves.items(), key=lambda item: -item[1].value[-1]))
    rows = []
    for name, curve in curves.items():
        own = [run.columns for run in runs if run.method == name]
        times = [data["seconds"][data[x] <= end] for data in own if "seconds" in data]
        seconds = float(np.mean([np.nanmax(time) for time in times])) if len(times) == len(own) else None
        rows.append({"method": name, "runs": len(own), **_last(curve, "score"), "seconds": seconds})
    final = {name: [scores[-1] for scores in samples[name]] for name in curves}
    chances = [
        {"method": a, "other": b, **_last(probability_of_improvement(final[a], final[b]), "probability")}
        for a, b in (itertools.combinations(final, 2) if pairs else ())
    ]
    kinds = {run.config["algorithm"].get("type") for run in runs}
    if metric.startswith("training_") and {"volvox.evolve", "volvox.learn"} <= kinds:
        notes.append(f"{metric} of a population is over all of its mutated members; compare run.evaluate() instead")
    random = atari_scores(runs[0].config["algorithm"].get("env")).get("random")
    return Comparison(
        metric=metric,
        x=x,
        budget=float(end),
        tasks=tuple(tasks),
        normalized=bool(scales),
        rows=tuple(rows),
        pairs=tuple(chances),
        points=points,
        curves=curves,
        notes=tuple(notes),
        random=random if metric in SCORES and not scales else None,
    )


class _Run(NamedTuple):
    method: str
    path: Path
    config: Mapping[str, Any]
    rows: Sequence[Row]
    columns: Mapping[str, np.ndarray]

    @property
    def task(self) -> str:
        return task_of(self.config)


def find_runs(path: str | os.PathLike[str]) -> list[Path]:
    """Returns the run directories at a path: itself, or its subdirectories `seed-0`, `seed-1` and so on.

    Raises:
      ValueError: There is no run.
    """
    seeds = [folder for folder in Path(path).glob("seed-*") if folder.name[5:].isdecimal()]
    folders = [Path(path), *sorted(seeds, key=lambda folder: int(folder.name[5:]))]
    found = [folder for folder in folders if (folder / CONFIG).is_file() or has_diverged(folder)]
    if not found:
        raise ValueError(f"{path} holds no run: there is no {CONFIG} in it, nor in a directory seed-0 in it")
    return found[:1] if found[0] == Path(path) else found


def has_diverged(run_dir: Path) -> bool:
    """Whether a run is marked as diverged."""
    return (run_dir / DIVERGED).is_file()


def parse_methods(words: Iterable[str]) -> dict[str, list[str]]:
    """Returns the runs of each method from words of a command line such as `ga=runs/ga`; the name may be missing."""
    methods: dict[str, list[str]] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or Path(word).exists():
            name = path = word
        methods.setdefault(name, []).append(path)
    return methods


def _read(method: str, paths: Runs, notes: list[str]) -> list[_Run]:
    """Reads the runs of a method, and adds notes on those that diverged."""
    runs = []
    for path in itertools.chain(*map(find_runs, [paths] if isinstance(paths, str | os.PathLike) else paths)):
        if has_diverged(path):
            notes.append(f"{path} diverged and is left out of {method!r}")
        else:
            rows = [{**row, "step": step} for step, row in enumerate(read_metrics(path / METRICS), start=1)]
            runs.append(_Run(method, path, read_config(path), rows, columns(rows)))
    return runs


def _metric(runs: Sequence[_Run], metric: str | None, x: str) -> str:
    """Returns the metric to compare: as given, or the first of `SCORES` that every run has within the budget."""
    wanted = SCORES if metric is None else (metric,)
    common = set.intersection(*(set(run.columns) for run in runs))
    if x in common:
        budget = min(np.nanmax(run.columns[x]) for run in runs)
        compared = [[row for row in run.rows if numbers(row).get(x, np.inf) <= budget] for run in runs]
        common = set.intersection(*(set(latest(rows) if metric is None else columns(rows)) for rows in compared))
        if found := next((name for name in wanted if name in common), None):
            return found
    raise ValueError(
        f"until the shortest ends, all runs must have {x!r} and {' or '.join(wanted)}; they have {sorted(common)}"
    )


def _curve(run: _Run, x: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns `x` and the metric in the rows that have both, and the last value where the run ends."""
    at, values = run.columns[x], run.columns[metric]
    both = np.isfinite(at) & np.isfinite(values)
    if (np.diff(at[np.isfinite(at)]) < 0).any():
        raise ValueError(f"{run.path}: {x} decreases; give a metric that counts, such as frames, seconds or step")
    return np.append(at[both], np.nanmax(at)), np.append(values[both], values[both][-1])


def _scales(
    runs: Sequence[_Run], tasks: Sequence[str], normalize: Mapping[str, tuple[float, float]] | None
) -> Mapping[str, tuple[float, float]]:
    """Returns the scores that become 0 and 1 for each task; {} keeps the scale of a single task."""
    if normalize is None and len(tasks) == 1:
        return {}
    if normalize is None:
        known = {run.task: atari_scores(run.config["algorithm"].get("env")) for run in runs}
        normalize = {task: (scores["random"], scores["human"]) for task, scores in known.items() if scores}
    if missing := [task for task in tasks if task not in normalize or np.ptp(normalize[task]) == 0]:
        raise ValueError(f"give two different scores that become 0 and 1, normalize={{{missing[0]!r}: (low, high)}}")
    return normalize


def _last(estimate: Estimate, name: str) -> dict[str, float | None]:
    values = [None if value is None else float(np.ravel(value)[-1]) for value in estimate]
    return dict(zip((name, "low", "high"), values, strict=True))


def _interval(row: Mapping[str, Any]) -> str:
    return "too few runs" if row["low"] is None else f"{format_number(row['low'])} to {format_number(row['high'])}"


def _markdown(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [table[0], ["-" * width for width in widths], *table[1:]]
    padded = ([f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)
