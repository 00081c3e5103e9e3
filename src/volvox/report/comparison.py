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

from volvox._checks import check_has
from volvox.report import metrics, plots
from volvox.report.files import CONFIG, DIVERGED, METRICS, Row, numbers, read_config, read_metrics
from volvox.report.html import flat_settings
from volvox.report.metrics import SCORES, Estimate, format_number, interquartile_mean, probability_of_improvement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Runs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Scales = Mapping[str, tuple[float, float]]
"""Scores of each task that become 0 and 1."""
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
      rows: One mapping a method, best score first: `method`; `settings`, in which methods differ and the runs of each
        agree, as text by name; the number of `runs` over all tasks; the interquartile mean `score` with its interval
        `low` and `high` (None with fewer than three runs of a task); and `seconds`, the mean wall-clock time until the
        budget (None if it was not recorded).
      pairs: One mapping a pair of methods, if asked for: `method`, `other`, and the `probability` that a run of the
        first scores higher, with its interval `low` and `high`.
      points: float64 `[P]`: values of `x` of the curves.
      curves: Interquartile mean at each point with its interval, by method: an `Estimate` of arrays `[P]`.
      notes: Caveats, such as runs that were left out.
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

    def __str__(self) -> str:
        """Returns tables in Markdown."""
        about = (
            f"{', '.join(self.tasks)}: {self._score_name()} at {format_number(self.budget)} {_words(self.x)}, "
            "interquartile mean over runs with its 95% bootstrap interval."
        )
        scores = [["method", *self.rows[0]["settings"], "runs", _words(self.metric), "95% interval", "time of a run"]]
        for row in self.rows:
            time = "-" if row["seconds"] is None else metrics.format_duration(row["seconds"])
            settings = map(_short, row["settings"].values())
            scores.append(
                [row["method"], *settings, str(row["runs"]), format_number(row["score"]), _interval(row), time]
            )
        pairs = [["a run of", "scores higher than a run of", "with probability", "95% interval"]]
        pairs += [[pair["method"], pair["other"], f"{pair['probability']:.2f}", _interval(pair)] for pair in self.pairs]
        tables = [markdown(table) for table in (scores, pairs) if len(table) > 1]
        return "\n\n".join([about, *tables, *(f"Note: {note}." for note in self.notes)])

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws the curves with their intervals.

        Args:
          path: PNG file to write; None writes none.
        """
        figure = plots.new_figure(figsize=(6.5, 4.2), layout="constrained")
        axes = figure.add_subplot()
        for (name, curve), style in zip(self.curves.items(), itertools.cycle(plots.STYLES), strict=False):
            axes.step(self.points, curve.value, where="post", label=name, **style)
            if curve.low is not None:
                band = {"step": "post", "color": style["color"], "alpha": 0.2, "linewidth": 0}
                axes.fill_between(self.points, curve.low, curve.high, **band)
        axes.set(xlabel=_words(self.x), ylabel=self._score_name(), title=", ".join(self.tasks))
        plots.set_count_format(axes)
        axes.legend(frameon=False, fontsize="small")
        return plots.finish(figure, path)

    def _score_name(self) -> str:
        return f"{'normalised ' if self.normalized else ''}{_words(self.metric)}"


def compare(
    methods: Mapping[str, Runs],
    *,
    metric: str | None = None,
    x: str = "frames",
    normalize: Scales | None = None,
    pairs: bool = False,
) -> Comparison:
    """Compares methods over several runs of each, as Agarwal et al. 2021 (arXiv 2108.13264) recommend.

        comparison = vx.compare({"ga": "runs/ga", "es": "runs/es"})     # each with seed-0, seed-1, ... in it
        print(comparison)
        comparison.plot("comparison.png")

    Methods are compared at an equal budget: at the `x` at which the shortest of all runs ends, each run by its nearest
    row that has the metric. The row may be up to 5% later, because runs of one budget end a few timesteps apart. At
    other points a run has the value of the row before. The score of a method is the interquartile mean over its runs
    (`volvox.report.interquartile_mean`). Runs of several tasks are resampled within their task. Each of several
    learners of a run counts as a run, and learners with different settings are methods of their own. The learners of
    `vx.PBT` copy each other and count as one run, with their means.

    Args:
      methods: Runs by the name of their method: run directories, or directories that hold runs as `seed-0`, `seed-1`
        and so on. Runs that `vx.sweep` or `experiments/launch.py` marked as diverged are left out and named in a note.
      metric: Metric to compare, of which more is better; None takes the first of `elite_score`, `evaluation_mean` and
        others (see docs/how-to/compare.md) that all runs have.
      x: Metric that measures the budget: "frames", "seconds", "step", or another one that never decreases.
      normalize: Two scores of each task, which become 0 and 1, to put several tasks on one scale. By default, several
        Atari games are normalised with the scores of random play and of a human tester.
      pairs: Also compute the probability of improvement (`volvox.report.probability_of_improvement`) for each pair of
        methods.

    Raises:
      ValueError: A method has no runs, a directory holds no run, all runs diverged, a run is given twice, methods have
        different tasks, a run lacks the metric or `x`, `x` decreases, or the scores to normalise a task with are
        missing or equal.
    """
    check_has("methods", methods, ("values",), 'a mapping such as {"ga": "runs/ga"}')
    if not methods or not all(methods.values()):
        raise ValueError('give the runs of each method, such as {"ga": "runs/ga"}')
    notes: list[str] = []
    runs_of = {name: _read(name, paths, notes) for name, paths in methods.items()}
    runs = [run for runs_of_method in runs_of.values() for run in runs_of_method]
    paths = [run.path.resolve() for run in runs if run.learner == 0]
    if repeated := {str(path) for path in paths if paths.count(path) > 1}:
        raise ValueError(f"runs are given twice: {', '.join(sorted(repeated))}")
    tasks = sorted({run.task for run in runs})
    names = dict.fromkeys(run.method for run in runs)
    if not runs or len({(run.method, run.task) for run in runs}) < len(names) * len(tasks):
        played = {name: sorted({run.task for run in runs_of_method}) for name, runs_of_method in runs_of.items()}
        raise ValueError(f"methods must have runs of the same tasks; they have {played}. {'. '.join(notes)}".strip())
    lengths = {run.path: float(np.nanmax(run.columns.get(x, -np.inf))) for run in runs}
    shortest, end = min(lengths.items(), key=lambda item: item[1])
    metric, runs = _chosen(runs, metric, x, end)
    scales = _scales(runs, tasks, normalize)
    curves_of = {(run.path, run.learner): _curve(run, x, metric) for run in runs}
    begin = max(at[0] for at, _ in curves_of.values())
    if end < 0.9 * (longest := max(lengths.values())):
        notes.append(f"runs are compared at {x} {end:,.0f}, where {shortest} ends; the longest has {longest:,.0f}")
    points = np.unique(np.concatenate([at for at, _ in curves_of.values()]))
    points = points[(points >= begin) & (points <= end)]
    points = points if len(points) <= _MAX_POINTS else np.linspace(begin, end, _MAX_POINTS)

    def scores_of(method: str, task: str) -> np.ndarray:
        """Scores of all runs at all points, `[P, runs]`."""
        low, high = scales.get(task, (0.0, 1.0))
        curves = [curves_of[run.path, run.learner] for run in runs if (run.method, run.task) == (method, task)]
        values_at_points = [values[np.searchsorted(at, points, side="right") - 1] for at, values in curves]
        return (np.stack(values_at_points, axis=-1) - low) / (high - low)

    samples = {name: [scores_of(name, task) for task in tasks] for name in names}
    settings_of = {name: [set(run.settings.items()) for run in runs if run.method == name] for name in names}
    shared = {name: dict(set.intersection(*settings)) for name, settings in settings_of.items()}
    common = set.intersection(*map(set, shared.values()))
    values_of = {key: {shared[name][key] for name in names} for key in runs[0].settings if key in common}
    curves = {name: interquartile_mean(*scores) for name, scores in samples.items()}
    curves = dict(sorted(curves.items(), key=lambda item: -item[1].value[-1]))
    final = {name: [scores[-1] for scores in samples[name]] for name in curves}
    rows = []
    for name, scores in final.items():
        tables = [run.columns for run in runs if run.method == name]
        times = [np.nanmax(columns["seconds"][columns[x] <= end]) for columns in tables if "seconds" in columns]
        seconds = float(np.mean(times)) if len(times) == len(tables) else None
        settings = {key.removeprefix("settings."): shared[name][key] for key in values_of if len(values_of[key]) > 1}
        row = {"method": name, "settings": settings, "runs": len(tables), "seconds": seconds}
        rows.append(row | _named("score", interquartile_mean(*scores)))
    chances = [
        {"method": a, "other": b, **_named("probability", probability_of_improvement(final[a], final[b]))}
        for a, b in (itertools.combinations(final, 2) if pairs else ())
    ]
    kinds = {run.algorithm.get("type") for run in runs}
    if metric.startswith("training_") and {"volvox.evolve", "volvox.learn"} <= kinds:
        notes.append(f"{metric} of a population is over all of its mutated members; compare run.evaluate() instead")
    return Comparison(
        metric=metric,
        x=x,
        budget=end,
        tasks=tuple(tasks),
        normalized=bool(scales),
        rows=tuple(rows),
        pairs=tuple(chances),
        points=points,
        curves=curves,
        notes=tuple(notes),
    )


def find_runs(path: str | os.PathLike[str]) -> list[Path]:
    """Returns the run directories at a path: itself, or its subdirectories `seed-0`, `seed-1` and so on.

    Raises:
      ValueError: There is no run.
    """
    seeds = [folder for folder in Path(path).glob("seed-*") if folder.name[5:].isdecimal()]
    folders = [Path(path), *sorted(seeds, key=lambda folder: int(folder.name[5:]))]
    found = [folder for folder in folders if (folder / CONFIG).exists() or (folder / DIVERGED).exists()]
    if not found:
        raise ValueError(f"{path} holds no run: there is no {CONFIG} in it, nor in a directory seed-0 in it")
    return found[:1] if found[0] == Path(path) else found


def parse_methods(words: Iterable[str]) -> dict[str, list[str]]:
    """Returns the runs of each method from words of a command line such as `ga=runs/ga`; the name may be missing."""
    methods: dict[str, list[str]] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or Path(word).exists():
            name = path = word
        methods.setdefault(name, []).append(path)
    return methods


class _Run(NamedTuple):
    method: str
    path: Path
    learner: int
    algorithm: Mapping[str, Any]
    settings: Mapping[str, str]
    task: str
    rows: Sequence[Row]
    columns: Mapping[str, np.ndarray]


def _read(method: str, paths: Runs, notes: list[str]) -> list[_Run]:
    """Reads the runs of a method, and adds notes on runs that diverged."""
    found, runs = [], []
    for path in itertools.chain(*map(find_runs, [paths] if isinstance(paths, str | os.PathLike) else paths)):
        if (path / DIVERGED).exists():
            notes.append(f"{path} diverged and is left out of {method!r}")
        else:
            rows = [{**row, "step": step} for step, row in enumerate(read_metrics(path / METRICS), start=1)]
            config, num_learners = read_config(path), metrics.num_learners(rows)
            saved = config["algorithm"].get("settings")
            learners = saved[:num_learners] if isinstance(saved, list) else [saved] * num_learners
            if config["algorithm"].get("pbt"):  # its learners copy each other: they are one run
                learners = learners[:1]
            found.append((path, rows, config, learners))
    distinct: list[Any] = []  # settings
    for path, rows, config, learners in found:
        algorithm, task = config["algorithm"], metrics.task_of(config)
        for i, settings in enumerate(learners):
            if settings not in distinct:
                distinct.append(settings)
            name = f"{method}[{distinct.index(settings)}]" if any(x != settings for x in learners) else method
            learner_rows = metrics.of_learner(rows, i) if len(learners) > 1 else rows
            flat = flat_settings({**algorithm, **({} if settings is None else {"settings": settings})})
            runs.append(_Run(name, path, i, algorithm, flat, task, learner_rows, metrics.columns(learner_rows)))
    return runs


def _snapped(run: _Run, x: str, metric: str, budget: float) -> _Run:
    """Returns the run with the row of the metric that is nearest to the budget moved there if it is up to 5% later."""
    found = [numbers(row) for row in run.rows]
    at = [row.get(x, np.inf) for row in found]
    scored = [value for value, row in zip(at, found, strict=True) if metric in row]
    nearest = min(scored, key=lambda value: abs(value - budget), default=np.inf)
    if not budget < nearest <= 1.05 * budget:
        return run
    rows = [{**row, x: budget} if budget < value <= nearest else row for row, value in zip(run.rows, at, strict=True)]
    return run._replace(rows=rows, columns=metrics.columns(rows))


def _chosen(runs: Sequence[_Run], metric: str | None, x: str, budget: float) -> tuple[str, list[_Run]]:
    """Returns the metric, as given or the first of `SCORES` that every run has within the budget, and snapped runs."""
    wanted = SCORES if metric is None else (metric,)
    names = metrics.latest if metric is None else metrics.columns  # a new elite may not have a score yet
    for name in wanted:
        if not all(name in run.columns for run in runs):
            continue
        snapped = [_snapped(run, x, name, budget) for run in runs]
        within = [[row for row in run.rows if numbers(row).get(x, np.inf) <= budget] for run in snapped]
        if all(name in names(rows) for rows in within):
            return name, snapped
    known, named = sorted(set.intersection(*(set(run.columns) for run in runs))), " or ".join(wanted)
    begins = {run.path: np.nanmin(run.columns[x]) for run in runs if x in run.columns}
    late = [f"; {path} begins at {x} {begin:g}" for path, begin in begins.items() if begin > budget]
    raise ValueError(
        f"until the shortest ends ({x} {budget:g}), all need {x!r} and {named}; whole runs have {known}{''.join(late)}"
    )


def _curve(run: _Run, x: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns `x` and the metric in the rows that have both, and the last value where the run ends."""
    at, values = run.columns[x], run.columns[metric]
    both = np.isfinite(at) & np.isfinite(values)
    if (np.diff(at[np.isfinite(at)]) < 0).any():
        raise ValueError(f"{run.path}: {x} decreases; give a metric that counts, such as frames, seconds or step")
    return np.append(at[both], np.nanmax(at)), np.append(values[both], values[both][-1])


def _scales(runs: Sequence[_Run], tasks: Sequence[str], normalize: Scales | None) -> Scales:
    """Returns the scores that become 0 and 1 for each task; {} keeps the scale of a single task."""
    if normalize is None:
        if len(tasks) == 1:
            return {}
        known = {run.task: metrics.atari_scores(run.algorithm.get("env")) for run in runs}
        normalize = {task: (scores["random"], scores["human"]) for task, scores in known.items() if scores}
    if missing := [task for task in tasks if task not in normalize or np.ptp(normalize[task]) == 0]:
        raise ValueError(f"give two different scores that become 0 and 1, normalize={{{missing[0]!r}: (low, high)}}")
    return normalize


def _named(name: str, estimate: Estimate) -> dict[str, float | None]:
    return dict(zip((name, "low", "high"), estimate, strict=True))


def _interval(row: Mapping[str, Any]) -> str:
    return "too few runs" if row["low"] is None else f"{format_number(row['low'])} to {format_number(row['high'])}"


def _short(setting: str) -> str:
    """Returns the text of a setting, a number with four digits."""
    try:
        return f"{float(setting):.4g}"
    except ValueError:
        return setting


def _words(name: str) -> str:
    return name.replace("_", " ")


def markdown(table: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [table[0], ["-" * width for width in widths], *table[1:]]
    padded = ([f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)
