"""Schedules from text against their formulas."""

import numpy as np
import pytest

from volvox.evolution.strategy import Cutoff, parse_cutoff, schedule


def test_forms():
    linear = schedule("x", "linear:1,3,4")
    np.testing.assert_allclose([linear(g) for g in range(6)], [1, 1.5, 2, 2.5, 3, 3])
    for start, end in ((1, 16), (16, 1)):
        exponential = schedule("x", f"exponential:{start},{end},4")
        expected = [start * (end / start) ** (min(g, 4) / 4) for g in range(6)]
        np.testing.assert_allclose([exponential(g) for g in range(6)], expected, rtol=1e-6)
    for constant in (0.5, "0.5", np.float32(0.5)):
        assert [float(schedule("x", constant)(g)) for g in (0, 9)] == [0.5, 0.5]


@pytest.mark.parametrize(
    "bad",
    [0.0, -1.0, float("nan"), float("inf"), "much", "linear:1,2", "often:1,2,3", "linear:1,0,3", "linear:1,2,0",
     "exponential:a,b,c", "constant:", "constant:0.1,0.2,5", None],
)  # fmt: skip
def test_bad_schedules_are_refused(bad):
    with pytest.raises(ValueError, match="mutation_std="):
        schedule("mutation_std", bad)


def test_forms_of_a_cutoff():
    assert parse_cutoff(5_000) == parse_cutoff("5000") == Cutoff(5_000)
    assert parse_cutoff("adaptive:400,0.1,1.5,5000") == Cutoff(400, 0.1, 1.5, 5_000)


@pytest.mark.parametrize(
    "bad", [0, -3, "no", "adaptive:", "adaptive:400,0.1,1.5", "adaptive:400,2,1.5,5000", "adaptive:400,0.1,1,5000",
            "adaptive:400,0.1,1.5,300", "adaptive:0,0.1,1.5,300", "adaptive:a,b,c,d", 4.5, 2**31],
)  # fmt: skip
def test_bad_cutoffs_are_refused(bad):
    with pytest.raises(ValueError, match="max_episode_steps="):
        parse_cutoff(bad)


def test_growth():
    rule = parse_cutoff("adaptive:400,0.1,1.5,1000")
    assert rule.grown(400, 0.1) == 400  # not more than the fraction
    assert rule.grown(400, 0.11) == 600
    assert rule.grown(900, 0.5) == 1_000
    assert rule.grown(1_000, 1.0) == 1_000
    assert parse_cutoff(400).grown(400, 1.0) == 400
