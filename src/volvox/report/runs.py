"""Runs that are to be compared: found, read, and checked to fit together."""

import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict

from volvox._config import CONFIG, DIVERGED, METRICS, read_config
from volvox.envs.envpool_tasks import atari_game, known_scores
from volvox.report.rows import Row, numbers, read_metrics
from volvox.report.statistics import FEWEST

Runs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
SCORES = ("elite_score", "evaluation_mean", "validation_mean", "test_mean", "test_score", "training_mean")
SCORES += ("training_best", "best_score")
"""Metrics by which runs are compared, the most telling one first."""
_POINTS = 200
"""Of a curve, at most."""
_LAYOUT = ("num_envs", "groups", "threads", "made_by")
"""Settings of an environment that do not change what is played."""


class Recorded(NamedTuple):
    """What a run directory holds, as far as it is compared.

    Attributes:
      path: Its directory.
      task: What it plays.
      config: What its `config.json` holds.
      rows: Its metrics.
      diverged: Whether it diverged; then only the path is known.
    """

    path: Path
    task: str
    config: Mapping[str, Any]
    rows: list[Row]
    diverged: bool


def has_diverged(path: Path) -> bool:
    """Whether a run is marked as one whose numbers were no longer finite."""
    return (path / DIVERGED).is_file()


def run_dirs(path: str | os.PathLike[str]) -> list[Path]:
    """Returns the run directories at a path: itself, or all runs in it that are named `seed-0`, `seed-1` and so on.

    Raises:
      ValueError: There is no run.
    """
    path = Path(path)
    if (path / CONFIG).exists() or has_diverged(path):
        return [path]
    seeds = [folder for folder in path.glob("seed-*") if folder.name[5:].isdecimal()]
    found = [folder for folder in seeds if (folder / CONFIG).exists() or has_diverged(folder)]
    if not found:
        raise ValueError(f"{path} holds no run: there is no {path / CONFIG}, nor any {path / 'seed-0' / CONFIG}")
    return sorted(found, key=lambda folder: int(folder.name[5:]))


def methods_of(words: Iterable[str]) -> dict[str, list[Path]]:
    """Returns the directories of methods by name, of words such as `ga=runs/ga`; without a name the path is it."""
    methods: dict[str, list[Path]] = {}
    for word in words:
        cuts = [place for place, letter in enumerate(word) if letter == "="]
        cut = next((place for place in cuts if Path(word[place + 1 :]).exists()), cuts[0] if cuts else -1)
        name, path = ("", word) if Path(word).exists() else (word[: max(cut, 0)], word[cut + 1 :])
        methods.setdefault(name or path, []).append(Path(path))
    return methods


def runs_of(name: str, given: Runs) -> list[Recorded]:
    """Reads the runs of a method; raises ValueError where there is none, or all diverged."""
    paths = [given] if isinstance(given, str | os.PathLike) else list(given)
    if not paths:
        raise ValueError(f"method {name!r} has no runs: give their directories")
    runs = []
    for path in itertools.chain.from_iterable(map(run_dirs, paths)):
        if has_diverged(path):  # perhaps before there was anything else
            runs.append(Recorded(path, "", {}, [], True))
            continue
        config = read_config(path)
        runs.append(Recorded(path, task_of(config), config, read_metrics(path / METRICS), False))
    if all(run.diverged for run in runs):
        raise ValueError(f"all runs of method {name!r} diverged, so there is nothing to compare")
    return runs


def task_of(config: Mapping[str, Any]) -> str:
    """The task of a run, by its configuration; an algorithm that volvox did not make may describe it as it likes."""
    env = env_config(config)
    return str(env.get("task", env.get("environment")) if isinstance(env, dict) else env)


def env_config(config: Mapping[str, Any]) -> Any:
    """What `config.json` says of the environment, as `Env.config` has it; {} where it says nothing."""
    return config["algorithm"].get("env") or {}


def check_tasks(runs: Mapping[str, list[Recorded]], lost: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the tasks; raises ValueError if methods have runs of different tasks, or a run is given twice.

    Args:
      runs: Those of each method.
      lost: What is said of runs that diverged, of which a method may have no others.
    """
    seen: dict[Path, str] = {}
    for name, own in runs.items():
        for run in own:
            if (place := run.path.resolve()) in seen:
                raise ValueError(f"{run.path} is there twice, as a run of {seen[place]!r} and of {name!r}")
            seen[place] = name
    played = {name: sorted({run.task for run in own}) for name, own in runs.items()}
    first, *others = played.values()
    if any(tasks != first for tasks in others):
        said = "; ".join(f"{name!r} has {listed(tasks)}" for name, tasks in played.items())
        raise ValueError(f"methods must have runs of the same tasks to be compared, but {'; '.join([said, *lost])}")
    return tuple(first)


def is_unscored(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run ends on a new elite, which has no `elite_score` yet: the last one is that of the elite before."""
    return name == "elite_score" and bool(rows) and bool(rows[-1].get("elite_is_new"))


def metric_of(runs: list[Recorded], metric: str | None, x: str) -> str:
    """Returns the metric to compare where the shortest run ends; raises ValueError if a run lacks it, or has none."""
    found = [{name for row in run.rows for name in numbers(row)} for run in runs]
    if empty := [str(run.path) for run, names in zip(runs, found, strict=True) if not names]:
        raise ValueError(f"{listed(empty)}: there are no metrics yet, because no step of the run is complete")
    common = set.intersection(*found)
    along = [[(numbers(row) | {"step": i}).get(x, np.inf) for i, row in enumerate(run.rows, start=1)] for run in runs]
    end = min(max(each) for each in along)
    compared = [run.rows[: sum(at <= end for at in each)] for run, each in zip(runs, along, strict=True)]
    scores = [name for name in SCORES if name in common and not any(is_unscored(name, rows) for rows in compared)]
    if metric is None and scores:
        return scores[0]
    if metric is not None and metric in common:
        return metric
    lacking = [str(run.path) for run, names in zip(runs, found, strict=True) if metric not in names]
    wanted = f"one of {', '.join(SCORES)}" if metric is None else f"metric={metric!r}"
    where = "" if metric is None else f" in {listed(lacking)}"
    raise ValueError(f"there is no {wanted}{where}; what all these runs have is {listed(sorted(common)) or 'nothing'}")


def scales_of(
    runs: Sequence[Recorded], tasks: Sequence[str], normalize: Mapping[str, tuple[float, float]] | None
) -> Mapping[str, tuple[float, float]]:
    """Returns the scores that become 0 and 1 in each task; {} where one task stays on its own scale."""
    if normalize is None:
        if len(tasks) == 1:
            return {}
        known = {run.task: known_scores(atari_game(env_config(run.config))) for run in runs}
        if missing := [task for task in tasks if not {"random", "human"} <= set(known[task])]:
            raise ValueError(
                f"scores of {listed(tasks)} are on different scales, and no scores of random play and of a human "
                f"tester are known for {listed(missing)}: give the scores that become 0 and 1, "
                f"normalize={{{missing[0]!r}: (low, high), ...}}, or compare each task by itself"
            )
        return {task: (known[task]["random"], known[task]["human"]) for task in tasks}
    if missing := [task for task in tasks if task not in normalize]:
        raise ValueError(f"normalize has no scores of {listed(missing)}; it has some of {listed(normalize)}")
    for task in tasks:
        low, high = normalize[task]
        if not np.isfinite([low, high]).all() or low == high:
            raise ValueError(f"normalize[{task!r}]={normalize[task]}: give two scores that differ, for 0 and for 1")
    return normalize


def series_of(run: Recorded, x: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a run's curve: x and the metric in all rows that have both, and its latest value where the run ends."""
    rows = [{**numbers(row), "step": float(i)} for i, row in enumerate(run.rows, start=1)]
    found = [(row[x], row[metric]) for row in rows if x in row and row.get(metric) is not None]
    if not found:
        names = sorted({name for row in rows for name in row})
        raise ValueError(f"{run.path} has no row with both {metric} and x={x!r}; what it has is {listed(names)}")
    found.append((max(row.get(x, -np.inf) for row in rows), found[-1][1]))
    at, values = np.array(found, np.float64).T
    if (np.diff(at) < 0).any():
        raise ValueError(f"x={x!r} falls in {run.path}; take a metric that counts, such as frames, seconds or step")
    return at, values


def points_of(series: Mapping[Path, tuple[np.ndarray, np.ndarray]], x: str) -> np.ndarray:
    """Returns where curves have points: from where every run has begun to where the first of them ends."""
    begin, end = max(at[0] for at, _ in series.values()), min(at[-1] for at, _ in series.values())
    if begin > end:
        late, early = (max(series, key=lambda p: series[p][0][0]), min(series, key=lambda p: series[p][0][-1]))
        raise ValueError(
            f"{early} ends after {number_text(end)} {x}, and {late} has its first value after {number_text(begin)}: "
            "there is nothing at which both can be compared; resume the former, or take another x"
        )
    every = np.unique(np.concatenate([at for at, _ in series.values()]))
    every = every[(every >= begin) & (every <= end)]
    return every if len(every) <= _POINTS else np.linspace(begin, end, _POINTS)


def notes_on(
    runs: Mapping[str, list[Recorded]],
    series: Mapping[Path, tuple[np.ndarray, np.ndarray]],
    tasks: Sequence[str],
    metric: str,
) -> list[str]:
    """Says what may mislead: few runs, short ones, settings that differ, seeds that do not, metrics of two meanings."""
    notes = []
    kinds = {run.config["algorithm"].get("algorithm") for own in runs.values() for run in own}
    if metric.startswith("training_") and {"evolve", "learn"} <= kinds:
        notes.append(
            f"{metric} of a population is over all its members, mutated and in episodes that may be cut, and that of "
            "a learner is over its latest 100 episodes: compare scores of the results instead, by run.evaluate()"
        )
    counts = {name: [sum(run.task == task for run in own) for task in tasks] for name, own in runs.items()}
    if few := [f"{name!r} has {min(count)}" for name, count in counts.items() if min(count) < FEWEST]:
        of = " of each task" if len(tasks) > 1 else ""
        notes.append(f"an interval needs {FEWEST} runs{of} or more, and {listed(few)}")
    alike = "runs of a task, and each run counts alike in its interquartile mean"
    notes += [f"{name!r} has {min(n)} to {max(n)} {alike}" for name, n in counts.items() if min(n) < max(n)]
    ends = {path: at[-1] for path, (at, _) in series.items()}
    shortest = min(ends, key=lambda path: ends[path])
    if ends[shortest] < 0.9 * max(ends.values()):
        longest = number_text(max(ends.values()))
        notes.append(
            f"{shortest} ends at {number_text(ends[shortest])}; what others did later, up to {longest}, is not used"
        )
    for task in tasks:
        playing = [run for own in runs.values() for run in own if run.task == task]
        if differ := _differences(playing, lambda run: env_config(run.config), _LAYOUT):
            notes.append(f"runs play {task} with other settings than each other: {differ}")
        for name, own in runs.items():
            same = [run for run in own if run.task == task]
            if differ := _differences(same, lambda run: run.config["algorithm"], ("env", "tuned", "given")):
                notes.append(f"runs of {name!r} have other settings than each other: {differ}")
            if len({json.dumps(run.config["key"], sort_keys=True) for run in same}) < len(same):
                notes.append(f"runs of {name!r} have the same seed, so they may be no independent runs")
    return notes


def notes_on_diverged(runs: Mapping[str, list[Recorded]]) -> list[str]:
    """Names the runs that diverged, which no score shows."""
    lost = {name: [run.path for run in own if run.diverged] for name, own in runs.items()}
    return [
        f"{listed(paths)} diverged, and {name!r} is compared without {'it' if len(paths) == 1 else 'them'}"
        for name, paths in lost.items()
        if paths
    ]


def _differences(runs: list[Recorded], part: Callable[[Recorded], Any], left_out: Sequence[str]) -> str:
    """Names the settings in which runs differ, with their values."""
    described = [part(run) or {} for run in runs]
    flat = [flatten_dict(dict(one if isinstance(one, Mapping) else {"": one})) for one in described]
    kept = [{place: each[place] for place in each if not set(place) & set(left_out)} for each in flat]
    found = []
    for place in dict.fromkeys(itertools.chain.from_iterable(kept)):
        values = list(dict.fromkeys(json.dumps(each.get(place)) for each in kept))
        if len(values) > 1:
            found.append(f"{'.'.join(place)} is {listed(values, 'or')}")
    return "; ".join(found[:3]) + ("; ..." if len(found) > 3 else "")


def number_text(value: float) -> str:
    """Writes a number with at least four digits that count, and thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def words(name: str) -> str:
    """Writes the name of a metric."""
    return name.replace("_", " ")


def by_place(settings: Mapping[str, Any]) -> dict[str, str]:
    """Writes nested settings by their places, such as `env.task`."""
    places = flatten_dict(dict(settings), sep=".")
    return {place: value if isinstance(value, str) else json.dumps(value) for place, value in places.items()}


def listed(items: Iterable[Any], word: str = "and") -> str:
    """Writes `a, b and c`."""
    *others, last = [*items] or [""]
    return f"{', '.join(map(str, others))} {word} {last}" if others else str(last)
