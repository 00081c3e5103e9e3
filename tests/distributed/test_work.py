"""Portions that actors pull: everything is played, and counts once."""

import numpy as np
import pytest

from volvox.distributed.work import Results, Work, portion_size
from volvox.types import Population

EPISODES = np.array([3, 0, 1, 2, 4], np.int32)


def everyone():
    n = EPISODES.size
    return Population(
        bases=(),
        parent=np.arange(n, dtype=np.int32) % 2,
        seed=np.arange(n, dtype=np.int32) + 100,
        scale=np.full(n, 0.5, np.float32),
        initial=np.zeros(n, bool),
        episodes=EPISODES,
        priority=np.array([1.0, 9.0, 5.0, np.nan, 2.0], np.float32),
    )


def results_of(rows):
    """What tells by itself which episode it is of."""
    behaviors = np.stack([rows.member, rows.episode], axis=1).astype(np.float32)
    return Results(rows.seed + rows.episode / 10, rows.member * 10 + rows.episode, behaviors)


def finish(work, size=3):
    while (number := work.next(size)) is not None:
        assert work.take(number, results_of(work.rows(number)))


def check(evaluation):
    valid = np.arange(4)[None] < EPISODES[:, None]
    np.testing.assert_array_equal(evaluation.valid, valid)
    expected = np.where(valid, 100 + np.arange(5)[:, None] + np.arange(4)[None] / 10, 0)
    np.testing.assert_allclose(evaluation.returns, expected, rtol=1e-6)
    np.testing.assert_array_equal(evaluation.lengths, np.where(valid, np.arange(5)[:, None] * 10 + np.arange(4), 0))
    np.testing.assert_array_equal(evaluation.behaviors[..., 1], np.where(valid, np.arange(4)[None], 0))


def test_every_episode_is_played_once():
    work = Work(everyone(), 4)
    assert work.total == work.left == 10
    finish(work)
    assert work.done == 10
    assert work.left == 0
    check(work.evaluation())


def test_the_longest_expected_come_first():
    work = Work(everyone(), 4)
    number = work.next(10)
    assert number is not None
    np.testing.assert_array_equal(work.rows(number).member, [2, 4, 4, 4, 4, 0, 0, 0, 3, 3])


def test_what_comes_second_is_ignored():
    work = Work(everyone(), 4, first_portion=7)
    number = work.next(4)
    assert number == 7
    assert work.again() == 7
    assert work.again() is None  # two play it
    assert work.repeated == 1
    rows = work.rows(7)
    assert work.take(7, results_of(rows))
    assert not work.is_out(7)
    other = results_of(rows)
    assert not work.take(7, other._replace(returns=other.returns * 0))
    assert not work.take(3, other)  # of an earlier phase
    finish(work)
    check(work.evaluation())


def test_what_nobody_plays_any_more_is_handed_out_again():
    work = Work(everyone(), 4)
    first, second = work.next(4), work.next(4)
    work.again()  # the first
    work.give_back(first)
    assert work.left == 2
    work.give_back(second)
    assert work.left == 6
    assert work.next(1) == second
    work.give_back(second)
    work.give_back(first)
    finish(work)
    check(work.evaluation())
    work.give_back(first)  # its answer is there
    assert work.left == 0


def test_the_portion_out_for_longest_is_repeated_first():
    work = Work(everyone(), 4)
    numbers = [work.next(3) for _ in range(3)]
    assert [work.again() for _ in range(4)] == [*numbers, None]


@pytest.mark.parametrize(
    ("left", "actors", "size"), [(10_000, 3, 64), (100, 3, 17), (20, 3, 16), (3, 1, 16), (0, 0, 16), (1_000, 0, 64)]
)
def test_portions_shrink_towards_the_end(left, actors, size):
    assert portion_size(left, actors, 16, most=64) == size
