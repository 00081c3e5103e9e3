"""Statistics over runs against NumPy written from their formulas, and the coverage of intervals."""

import numpy as np
import pytest
import scipy.stats

from volvox.report import interquartile_mean, probability_of_improvement


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([7.0], 7.0),
        ([0.0, 1.0, 5.0], 2.0),  # fewer than four: the mean
        ([0.0, 1.0, 2.0, 100.0], 1.5),
        ([100.0, 0.0, 2.0, 1.0, -50.0], 1.0),  # a quarter of five, rounded down, is one
        ([0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 1000.0], 35.0),
    ],
)
def test_the_mean_of_the_middle_half(scores, mean):
    assert interquartile_mean(scores).value == mean


def test_the_scores_of_all_tasks_are_sorted_together():
    assert interquartile_mean([0.0, 1.0, 9.0, 10.0], [2.0, 3.0, 4.0, 100.0]).value == np.mean([2.0, 3.0, 4.0, 9.0])


def bootstrapped(statistic, tasks, seed, resamples=4_000):
    """The percentile interval, runs resampled within each task: one resample after the other, from the formula."""
    random = np.random.default_rng(seed)
    drawn = [statistic([random.choice(task, len(task)) for task in tasks]) for _ in range(resamples)]
    return np.percentile(drawn, [2.5, 97.5])


def middle(tasks):
    scores = np.sort(np.concatenate(tasks))
    cut = len(scores) // 4
    return scores[cut : len(scores) - cut].mean()


def test_the_interval_resamples_runs_within_their_task():
    random = np.random.default_rng(3)
    tasks = [random.normal(0.0, 1.0, 6), random.normal(20.0, 4.0, 9)]
    found = interquartile_mean(*tasks)
    assert found.value == pytest.approx(middle(tasks))
    np.testing.assert_allclose([found.low, found.high], bootstrapped(middle, tasks, 1), atol=0.5)
    # Without strata the interval would hold resamples with many runs of one task alone.
    assert found.high - found.low < 0.8 * np.diff(bootstrapped(middle, [np.concatenate(tasks)], 1))
    same = interquartile_mean([1.0] * 3, [100.0] * 3)
    assert (same.low, same.high) == (50.5, 50.5)


def test_a_curve_is_resampled_by_run_and_equals_its_points():
    scores = np.random.default_rng(5).normal(size=(4, 7)).cumsum(axis=0)
    found = interquartile_mean(scores)
    assert found.value.shape == found.low.shape == found.high.shape == (4,)
    for i, point in enumerate(scores):
        alone = interquartile_mean(point)
        assert (found.value[i], found.low[i], found.high[i]) == pytest.approx(tuple(alone))


@pytest.mark.parametrize(("runs", "share"), [(3, 0.76), (5, 0.90), (10, 0.93)])
def test_how_often_the_interval_holds_what_is_true(runs, share):
    """Of normal scores: percentile intervals are narrow where runs are few, as docs/how-to/compare.md says."""
    found = interquartile_mean(np.random.default_rng(0).normal(5.0, 1.0, (1_000, runs)))
    assert np.mean((found.low <= 5.0) & (found.high >= 5.0)) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("runs", [1, 2])
def test_few_runs_have_no_interval(runs):
    scores, many = [float(i) for i in range(runs)], [0.0, 1.0, 2.0]
    assert interquartile_mean(scores)[1:] == (None, None)
    assert interquartile_mean(many, scores)[1:] == (None, None)
    assert probability_of_improvement([many], [scores])[1:] == (None, None)
    assert None not in interquartile_mean(many)


def test_the_probability_of_improvement_is_the_statistic_of_mann_and_whitney():
    random = np.random.default_rng(2)
    ours, theirs = random.integers(0, 12, 9).astype(float), random.integers(0, 10, 7).astype(float)
    statistic = scipy.stats.mannwhitneyu(ours, theirs).statistic  # ties count half
    found = probability_of_improvement([ours], [theirs])
    assert found.value == pytest.approx(statistic / (9 * 7))
    assert found.value + probability_of_improvement([theirs], [ours]).value == pytest.approx(1.0)


def test_the_probability_is_a_mean_over_tasks():
    ours, theirs = [[1.0, 2.0], [5.0, 5.0]], [[0.0, 0.5], [5.0, 9.0, 9.0]]
    assert probability_of_improvement(ours, theirs).value == pytest.approx((1.0 + 1 / 6) / 2)


def test_the_interval_of_a_probability_resamples_both_methods():
    random = np.random.default_rng(7)
    ours, theirs = random.normal(0.7, 1.0, 8), random.normal(0.0, 1.0, 6)

    def share(tasks):
        return (tasks[0][:, None] > tasks[1]).mean() + 0.5 * (tasks[0][:, None] == tasks[1]).mean()

    found = probability_of_improvement([ours], [theirs])
    np.testing.assert_allclose([found.low, found.high], bootstrapped(share, [ours, theirs], 1), atol=0.05)
    apart = probability_of_improvement([[4.0, 5.0, 6.0]], [[1.0, 2.0, 3.0]])
    assert apart == (1.0, 1.0, 1.0)


def test_missing_and_infinite_scores_are_refused():
    for tasks in ((), ([1.0], []), ([1.0, np.nan],)):
        with pytest.raises(ValueError, match="score"):
            interquartile_mean(*tasks)
    with pytest.raises(ValueError, match="tasks"):
        probability_of_improvement([[1.0]], [[1.0], [2.0]])
