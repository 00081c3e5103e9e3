"""Means and largest values by name, and scores of the latest episodes."""

import jax
import jax.numpy as jnp
import numpy as np

from volvox.data import metrics
from volvox.data.metrics import WINDOW, Episodes, init_episodes, latest_mean, scores, update_episodes
from volvox.types import TimeStep


def test_means_are_of_all_values():
    gathered = {}
    for values in ([1.0, 2.0], [6.0]):
        values = jnp.array(values)
        gathered = metrics.add(gathered, metrics.means({"loss": values.sum()}, count=len(values)))
        gathered = metrics.add(gathered, {"largest": metrics.Maximum(values.max())})
    assert metrics.compute(gathered) == {"loss": 3.0, "largest": 6.0}


def test_metrics_of_other_names_stay_and_begin():
    both = metrics.add(metrics.means({"a": jnp.float32(2)}), metrics.means({"b": jnp.float32(3)}, count=2))
    assert metrics.compute(both) == {"a": 2.0, "b": 1.5}


def timestep(b, **fields):
    flags = {name: jnp.zeros(b, bool) for name in ("first", "terminated", "truncated")}
    return TimeStep(jnp.zeros((b, 1)), jnp.zeros(b), **flags, extras={})._replace(**fields)


def test_the_latest_episodes_are_remembered():
    """Of 120 that end at once the last 100, then three more in place of the oldest."""
    b = WINDOW + 20
    running = (jnp.arange(b, dtype=jnp.float32), jnp.full(b, 7))
    step = timestep(b, terminated=jnp.ones(b, bool), reward=jnp.full(b, 0.5))
    episodes, _ = update_episodes(init_episodes(), running, step)
    assert episodes.total == b
    np.testing.assert_array_equal(np.sort(episodes.returns), np.arange(20, b) + 0.5)
    np.testing.assert_array_equal(episodes.lengths, np.full(WINDOW, 8))
    step = timestep(b, truncated=jnp.arange(b) < 3, reward=jnp.full(b, 1_000.0))
    episodes, _ = update_episodes(episodes, running, step)
    assert episodes.total == b + 3
    np.testing.assert_array_equal(
        np.sort(episodes.returns), np.concatenate([np.arange(23, b) + 0.5, [1_000, 1_001, 1_002]])
    )


def test_scores_begin_anew_with_an_episode():
    running = (jnp.array([5.0, 5.0]), jnp.array([3, 3]))
    step = timestep(2, first=jnp.array([True, False]), reward=jnp.array([0.0, 2.0]))
    _, running = update_episodes(init_episodes(), running, step)
    np.testing.assert_array_equal(running[0], [0.0, 7.0])
    np.testing.assert_array_equal(running[1], [0, 4])


def test_figures_are_of_episodes_that_ended():
    assert scores(jax.device_get(init_episodes())) == {}
    running = (jnp.array([1.0, 3.0, 9.0]), jnp.array([1, 5, 7]))
    episodes, _ = update_episodes(init_episodes(), running, timestep(3, terminated=jnp.array([True, True, False])))
    assert scores(jax.device_get(episodes)) == {
        "training_mean": 2.0,
        "training_std": 1.0,
        "training_best": 3.0,
        "episode_length": 4.0,
        "recent_mean": 2.0,
    }


def test_the_latest_mean_looks_back_as_far_as_environments_play_at_once():
    assert np.isnan(latest_mean(init_episodes(), num_envs=4))
    returns = np.arange(130, dtype=np.float32)
    ring = np.roll(returns[-WINDOW:], 130 % WINDOW)  # episode i stands in place i % WINDOW
    assert latest_mean(Episodes(jnp.int32(3), jnp.asarray(returns[:WINDOW]), None), num_envs=4) == 1.0
    episodes = Episodes(jnp.int32(130), jnp.asarray(ring), None)
    assert latest_mean(episodes, num_envs=4) == returns[-10:].mean()
    assert latest_mean(episodes, num_envs=32) == returns[-32:].mean()
    assert latest_mean(episodes, num_envs=500) == returns[-WINDOW:].mean()


def test_a_mean_is_of_what_is_valid_in_the_last_axis():
    x, valid = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]), np.tri(3, dtype=bool)
    np.testing.assert_allclose(metrics.mean(x, valid), [1.0, 4.5, 8.0])
    np.testing.assert_allclose(metrics.mean(x, jnp.array([True, False, True])), [2.0, 5.0, 8.0])
    np.testing.assert_array_equal(metrics.mean(x, jnp.zeros((3, 3), bool)), 0.0)
