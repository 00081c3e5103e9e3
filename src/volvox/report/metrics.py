"""Metrics of a run, and statistics over several runs.

The statistics are defined by Agarwal et al. 2021 (arXiv 2108.13264) and computed as in their rliable.

    interquartile_mean(scores)                                # of one task
    interquartile_mean(scores_of_pong, scores_of_breakout)    # of two, on one scale
    probability_of_improvement([ours_on_pong, ours_on_breakout], [theirs_on_pong, theirs_on_breakout])
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from volvox.data.metrics import EACH
from volvox.envs.envpool_tasks import atari_game, known_scores
from volvox.report.files import numbers

SCORES = ("elite_score", "evaluation_mean", "validation_mean", "test_score", "training_mean", "training_best")
"""Metrics by which runs are compared, the most informative one first."""
_MIN_RUNS = 3
"""Smallest number of runs of each task for which an interval is given."""
_RESAMPLES = 2_000
_BATCH = 2**22
"""Largest number of values that are resampled at once."""


def task_of(config: Mapping[str, Any]) -> str:
    """Returns the name of the environment of a run, by its `config.json`."""
    env = config["algorithm"].get("env") or {}
    given = (env[name] for name in ("game", "name", "task", "make_env") if isinstance(env.get(name), str))
    maker = env["make_env"] if isinstance(env.get("make_env"), Mapping) else {}
    maker = maker.get("partial", maker)
    return next(given, str(maker.get("function", env.get("type"))).rpartition(".")[2])


def atari_scores(env_config: Any) -> Mapping[str, float]:
    """Returns the published scores of random play (`random`) and of a human tester (`human`) of an Atari game.

    Args:
      env_config: `Env.config`, or its form in `config.json`. The result is empty for other environments.
    """
    return known_scores(atari_game(env_config)) if isinstance(env_config, Mapping) else {}


def of_learner(rows: Sequence[Mapping[str, Any]], i: int) -> list[dict[str, Any]]:
    """Returns the rows of one of several learners: its own metrics, its share of frames, and no metrics of all."""
    number = num_learners(rows)
    of_all = (
        *("evaluation_best", "evaluation_standard_error", "evaluation_frames"),
        *("episodes", "frames_per_second", "predictions_per_second"),
    )
    return [
        {name: value for name, value in row.items() if not name.endswith(EACH) and not name.startswith(of_all)}
        | {name.removesuffix(EACH): value[i] for name, value in row.items() if name.endswith(EACH)}
        | {"frames": row["frames"] // number}
        for row in rows
    ]


def num_learners(rows: Sequence[Mapping[str, Any]]) -> int:
    """Returns the number of learners whose metrics the rows hold."""
    return max((len(value) for row in rows for name, value in row.items() if name.endswith(EACH)), default=1)


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Returns each metric that is ever a finite number as float64 `[rows]`, with NaN where it is missing."""
    figures = [numbers(row) for row in rows]
    names = dict.fromkeys(name for figure in figures for name in figure)
    return {name: np.array([figure.get(name, np.nan) for figure in figures], np.float64) for name in names}


def latest(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the latest value of each metric.

    `elite_score` is left out if the last row has a new elite, since the score in earlier rows belongs to another one.
    """
    found = {name: value for row in rows for name, value in numbers(row).items()}
    if rows and rows[-1].get("elite_is_new"):
        found.pop("elite_score", None)
    return found


def format_number(value: float) -> str:
    """Writes a number with up to four significant digits, or whole from 1000 on: `0.1235`, `57.6`, `1,250,000`."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def format_duration(seconds: float) -> str:
    """Writes a duration: `0:00:07`, `1:02:03`, `3 days, 4:00:00`."""
    return str(datetime.timedelta(seconds=round(seconds)))


class Estimate(NamedTuple):
    """A statistic over runs with its 95% bootstrap interval.

    Attributes:
      value: The statistic, a float or float64 `[...]`.
      low: Lower end of the interval, likewise; None if a task has fewer than three runs.
      high: Upper end, likewise.
    """

    value: Any
    low: Any
    high: Any


def interquartile_mean(*tasks: ArrayLike) -> Estimate:
    """Returns the mean of the middle half of all scores, with its 95% stratified bootstrap interval.

    The scores of all tasks are sorted together, and a quarter of them, rounded down, is dropped at either end: for
    fewer than four scores this is the mean. Runs are resampled within each task. All points of a curve share their
    resamples, so that a band holds for each point separately, and not for the curve as a whole.

    Args:
      *tasks: Scores of the runs of each task, `[..., runs]`, where leading axes are points of a curve. Several tasks
        must be on one scale.

    Raises:
      ValueError: A task has no runs, or a score is not finite.
    """
    import scipy.stats  # slow to import, and only comparisons need it

    def statistic(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
        return scipy.stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)

    return _estimate(statistic, tasks)


def probability_of_improvement(ours: Sequence[ArrayLike], theirs: Sequence[ArrayLike]) -> Estimate:
    """Returns the probability that a run of ours scores higher than a run of theirs, with its 95% bootstrap interval.

    For each task it is the fraction of pairs in which ours is higher, where equal scores count half: the statistic U
    of Mann and Whitney divided by its maximum. The result is the mean over tasks. The runs of both methods are
    resampled within each task. If all runs of one method are above all runs of the other, the interval is [1, 1],
    which happens for two equal methods of three runs each in one of twenty comparisons.

    Args:
      ours: Scores of the runs of each task, `[runs]`.
      theirs: Scores of the other method, for the same tasks in the same order. The number of runs may differ.

    Raises:
      ValueError: The methods have different numbers of tasks, a task has no runs, or a score is not finite.
    """

    def statistic(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
        # `axis` is always the last one.
        pairs = [(a[..., :, None], b[..., None, :]) for a, b in zip(samples[:half], samples[half:], strict=True)]
        return np.mean([np.mean((a > b) + 0.5 * (a == b), axis=(-2, -1)) for a, b in pairs], axis=0)

    half = len(ours)
    if half != len(theirs):
        raise ValueError(f"give scores of the same tasks: ours has {half} tasks and theirs {len(theirs)}")
    return _estimate(statistic, [*ours, *theirs])


def _estimate(statistic: Callable[..., np.ndarray], tasks: Sequence[ArrayLike]) -> Estimate:
    import scipy.stats

    samples = [np.asarray(task, np.float64) for task in tasks]
    if not samples or not all(sample.ndim and sample.shape[-1] for sample in samples):
        raise ValueError("give at least one score of each task")
    if not all(np.isfinite(sample).all() for sample in samples):
        raise ValueError("scores must be finite; leave out runs that diverged")
    value = statistic(*samples)
    low = high = None
    if min(sample.shape[-1] for sample in samples) >= _MIN_RUNS:
        batch = min(max(1, _BATCH // sum(sample.size for sample in samples)), _RESAMPLES)
        options = {"method": "percentile", "n_resamples": _RESAMPLES, "vectorized": True, "axis": -1, "rng": 0}
        low, high = scipy.stats.bootstrap(samples, statistic, batch=batch, **options).confidence_interval
    return Estimate(*(x if x is None or np.ndim(x) else float(x) for x in (value, low, high)))
