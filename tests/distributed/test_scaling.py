"""The model of benchmarks/scaling.py, where its answer is known."""

import pytest
from scaling import Actor, phase


def test_a_slot_after_the_other():
    actor = Actor(step=0.5, slots=1, decoding=0.1, call=2.0, groups=1)
    assert actor.seconds([3, 5]) == pytest.approx(0.5 * (4 + 6) + 2 * 0.1 + 2.0)


def test_a_group_is_stepped_until_its_last_slot_is_idle():
    """Four slots of two groups; the second group's slots play the second and fourth episode."""
    actor = Actor(step=1.0, slots=4)
    assert actor.seconds([9, 4, 1, 2]) == 2 * 10 + 2 * 5
    assert actor.seconds([9, 4, 1, 2, 3]) == 2 * 10 + 2 * 5  # in the place of the third, which ends first


def test_actors_share_the_work():
    actor = Actor(step=1.0, slots=2)
    assert phase([9] * 16, actor, 1) == 16 * 10
    assert phase([9] * 16, actor, 2) == 16 * 10 / 2
    assert phase([9], actor, 3) == 10
