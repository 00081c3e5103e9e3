"""Learners side by side: settings of each, scores, and what is stored."""

import dataclasses
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from volvox.data import metrics
from volvox.data.metrics import Episodes
from volvox.learners import side_by_side


@dataclasses.dataclass
class Settings:
    rate: object = 1.0
    num_learners: int = 2
    updates_per_timestep: float = 1.0
    random_timesteps: int = 100


@pytest.mark.parametrize(("given", "each"), [(0.5, [0.5, 0.5]), ((1, 2.0), [1, 2]), ([1, 2], [1, 2]), (None, [1, 1])])
def test_a_setting_is_one_number_for_each_learner(given, each):
    found = side_by_side.setting(Settings(given), "rate", low=0.0)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, each)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((1.0,), "rate has 1 entries for num_learners=2"),
        (-1.0, "rate=-1.0: give a finite"),
        ("1", "rate='1': give a finite"),
    ],
)
def test_other_settings_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        side_by_side.setting(Settings(given), "rate", low=0.0)


def test_updates_of_a_timestep():
    assert side_by_side.update_ratio(Settings(updates_per_timestep=0.5), 8) == Fraction(1, 4)
    assert side_by_side.update_ratio(Settings(updates_per_timestep=20.0), 8) == 10
    for wrong, message in (
        ({"updates_per_timestep": 0.3}, r"updates_per_timestep=0.3 times 4 .* are 1.2 updates a beat"),
        ({"num_learners": 3}, "num_learners=3 do not share a group of 8"),
        ({"random_timesteps": 2**30}, "random_timesteps=1073741824: .* at most 536870912"),
    ):
        with pytest.raises(ValueError, match=message):
            side_by_side.update_ratio(Settings(**wrong), 8)


def test_scores_are_means_and_those_of_each_learner():
    window = metrics.WINDOW
    returns = jnp.stack([jnp.full(window, 2.0), jnp.full(window, 6.0)])
    episodes = Episodes(jnp.array([3, 200]), returns, jnp.full((2, window), 7))
    row = side_by_side.score_row(episodes, num_envs=4)
    assert (row["training_mean"], row["training_best"], row["episode_length"]) == (4.0, 6.0, 7.0)
    assert (row["recent_mean"], row["recent_mean_0"], row["training_mean_1"]) == (4.0, 2.0, 6.0)
    assert side_by_side.score_row(episodes._replace(total=jnp.array([0, 5])), num_envs=4) == {}


def test_what_each_has_is_named():
    parts = {"actor": {"w": jnp.arange(6).reshape(2, 3)}, "representation": ()}
    found = side_by_side.each(parts, 2)
    assert list(found) == ["actor of learner 0", "actor of learner 1"]
    np.testing.assert_array_equal(found["actor of learner 1"]["w"], [3, 4, 5])
    with pytest.raises(ValueError, match="learner=2: there are 2, counted from 0"):
        side_by_side.pick(parts["actor"], 2)
