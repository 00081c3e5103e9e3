"""The model of benchmarks/scaling.py, where its answer is known."""

import pytest
from scaling import Actor, divided, phase, predicted


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


def test_prediction_over_measurement():
    of = {"emulators": 200.0, "networks": 200.0, "decoding": 0.0}
    half = {"emulators": 90.0, "networks": 90.0, "decoding": 0.0}
    measured = {
        "settings": {"cores": 2, "slots": 4},
        "results": {
            "ratio": 0.95,
            "lengths": dict.fromkeys(("one actor", "an actor a core"), [[9.0] * 16] * 3),
            "timesteps_per_second": {"one actor": [91.0, 80.0, 99.0], "an actor a core": [80.0, 85.0, 90.0]},
        },
    }
    found = predicted({"results": {"one actor": of, "an actor a core": half}}, measured)
    assert found["one actor"] == {"predicted": pytest.approx(0.9 * 100), "measured": 91.0}
    assert found["an actor a core"] == {"predicted": pytest.approx(0.9 * 90), "measured": 85.0}
    assert found["ratio"]["predicted_over_measured"] == pytest.approx(0.9 / 0.95)


def test_a_learner_that_is_divided():
    """0.5 ms a timestep of both together, and as much for its share of the exchange: half of what 1 ms would be."""
    turns = {"one of two cores": [1_900.0, 2_000.0, 2_100.0], "each": [1_000.0] * 6}
    found = {"ratio": 0.4, "parts": {"timesteps_per_second_in_turns": turns}}
    found["parts"] |= {"exchange_seconds": 0.05, "timesteps_per_update": 100}
    assert divided(found) == {"predicted": 0.5, "measured": 0.4, "predicted_over_measured": pytest.approx(1.25)}
