"""Statistics of runs of a method, by the definitions of Agarwal et al. 2021 (arXiv 2108.13264) and their rliable.

interquartile_mean(scores)                                # of one task
interquartile_mean(scores_of_pong, scores_of_breakout)    # of two, on one scale
probability_of_improvement([ours_on_pong, ours_on_breakout], [theirs_on_pong, theirs_on_breakout])
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

FEWEST = 3
"""Runs of each task, below which no interval is given: resampling one or two runs says nothing about others."""
_RESAMPLES = 2_000
_AT_ONCE = 2**22
"""Numbers that are resampled at once, at most; more take turns."""


class Estimate(NamedTuple):
    """A figure over runs, with the interval that resampling the runs gives.

    Attributes:
      value: The figure, a float or float64 `[...]`.
      low: The lower end of its 95% interval, likewise; None where there are fewer than three runs of a task.
      high: The upper end, likewise.
    """

    value: Any
    low: Any
    high: Any


def interquartile_mean(*tasks: ArrayLike) -> Estimate:
    """Returns the mean of the middle half of all scores, and its 95% stratified bootstrap interval.

    The scores of all tasks are sorted together, and a quarter of them is left out at either end, rounded down: of fewer
    than four scores it is the mean. Runs are resampled within each task. The same resamples serve all points of a
    curve, so that a band is one of each point by itself and not of the curve as a whole.

    Args:
      *tasks: The scores of each task's runs, `[..., runs]`: a leading axis holds several points. With several tasks
        they must be on one scale.

    Raises:
      ValueError: There is no task, a task without runs, or a score that is not finite.
    """
    return _estimate(_interquartile_mean, _samples(tasks))


def probability_of_improvement(ours: Sequence[ArrayLike], theirs: Sequence[ArrayLike]) -> Estimate:
    """Returns the probability that a run of ours scores higher than one of theirs, and its 95% bootstrap interval.

    For each task it is the share of pairs in which ours is higher, where equal scores count half: the statistic U of
    Mann and Whitney, divided by its maximum. The mean is over tasks. The runs of either method are resampled within
    each task. The interval cannot reach beyond what was observed: if all runs of one method are above all of the other,
    it is [1, 1], which two equal methods of three runs each also do in one of twenty comparisons.

    Args:
      ours: The scores of each task's runs, `[runs]`.
      theirs: Those of the other method, for the same tasks in the same order; the number of runs may be another.

    Raises:
      ValueError: The tasks are not as many, a task has no runs, or a score is not finite.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"ours has {len(ours)} tasks and theirs {len(theirs)}; give the scores of the same tasks.")
    return _estimate(_probability_of_improvement, _samples([*ours, *theirs]))


def last_before(x: ArrayLike, y: ArrayLike, points: ArrayLike) -> np.ndarray:
    """Returns a curve at other points, as steps: the latest value at or before each point, as it was known there.

    Args:
      x: `[rows]`, not decreasing.
      y: `[rows]`.
      points: `[P]`, none before the first x.

    Returns:
      float64 `[P]`.

    Raises:
      ValueError: x decreases, or a point lies before its first entry.
    """
    x, y, points = (np.asarray(each, np.float64) for each in (x, y, points))
    if (np.diff(x) < 0).any():
        raise ValueError("x decreases: a curve needs an x that grows, such as frames")
    index = np.searchsorted(x, points, side="right") - 1
    if (index < 0).any():
        raise ValueError(f"point {points.min():g} lies before the first value, at {x[0]:g}")
    return y[index]


def _interquartile_mean(*tasks: np.ndarray, axis: int = -1) -> np.ndarray:
    import scipy.stats

    return scipy.stats.trim_mean(np.concatenate(tasks, axis=axis), 0.25, axis=axis)


def _probability_of_improvement(*tasks: np.ndarray, axis: int = -1) -> np.ndarray:
    assert axis == -1
    half = len(tasks) // 2
    pairs = [(a[..., :, None], b[..., None, :]) for a, b in zip(tasks[:half], tasks[half:], strict=True)]
    return np.mean([np.mean((a > b) + 0.5 * (a == b), axis=(-2, -1)) for a, b in pairs], axis=0)


def _samples(tasks: Sequence[ArrayLike]) -> list[np.ndarray]:
    samples = [np.asarray(task, np.float64) for task in tasks]
    if not samples or not all(sample.ndim and sample.shape[-1] for sample in samples):
        raise ValueError("there are no runs, or a task has none; give one score or more of each task")
    if not all(np.isfinite(sample).all() for sample in samples):
        raise ValueError("a score is not finite; leave the run out, or give it the score it deserves")
    return samples


def _estimate(statistic: Callable[..., np.ndarray], samples: list[np.ndarray]) -> Estimate:
    import scipy.stats

    value = statistic(*samples)
    low = high = None
    if min(sample.shape[-1] for sample in samples) >= FEWEST:
        batch = max(1, _AT_ONCE // sum(sample.size for sample in samples))
        options = {"method": "percentile", "n_resamples": _RESAMPLES, "vectorized": True, "axis": -1, "rng": 0}
        found = scipy.stats.bootstrap(samples, statistic, batch=min(batch, _RESAMPLES), **options).confidence_interval
        low, high = found.low, found.high
    return Estimate(*(None if end is None else end if np.ndim(end) else float(end) for end in (value, low, high)))
