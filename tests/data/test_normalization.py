"""Running moments of observations and of discounted returns against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.data.normalization import (
    Moments,
    init,
    init_rewards,
    normalize,
    reward_scale,
    update,
    update_rewards,
)
from volvox.types import TimeStep


def test_moments_are_those_of_all_observations():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (5, 7, 2)).astype(np.float32)
    moments = init(jnp.zeros(2))
    np.testing.assert_array_equal(normalize(moments, rows[0]), rows[0])
    for part in rows:
        moments = update(moments, part)
    every = rows.reshape(-1, 2)
    np.testing.assert_allclose(moments.mean, every.mean(0), rtol=1e-5)
    expected = (rows[0] - every.mean(0)) / every.std(0)
    np.testing.assert_allclose(normalize(moments, rows[0]), expected, rtol=1e-4, atol=1e-5)


def test_each_array_has_its_own_moments():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (7, 2)).astype(np.float32)
    tree = {"a": rows[:, 0], "b": (rows, (rows > 3).astype(np.uint8))}
    moments = update(init(jax.tree.map(lambda x: x[0], tree)), tree)
    alone = update(init(jnp.zeros(2)), tree["b"][1])
    np.testing.assert_array_equal(normalize(moments, tree)["b"][1], normalize(alone, tree["b"][1]))
    np.testing.assert_allclose(moments.mean["a"], rows[:, 0].mean(), rtol=1e-6)


def test_the_variance_stays_that_of_the_observations_however_many_there_were():
    """In float32 a count stands still at 2^24, while the squares of the larger observations still add up."""
    num = jnp.float32(2**24)
    moments = Moments(num, jnp.full(1, 0.5), jnp.zeros(1), jnp.full(1, 0.75 * num))

    @jax.jit
    def seen(moments):
        observed = lambda i, moments: update(moments, jnp.where(i % 4 == 0, 2.0, 0.0)[None, None])  # noqa: E731
        return jax.lax.fori_loop(0, 400_000, observed, moments)

    moments = seen(moments)
    assert moments.num == 2**23
    np.testing.assert_allclose(moments.squares / moments.num, 0.75, rtol=0.01)


def test_a_mean_does_not_drift_away():
    """The small changes between rare outliers would be lost in float32, and the large ones would not."""
    chance, values, n = 0.004, jnp.array([100.0, 142.0]), 50_000

    @jax.jit
    def seen(moments):
        draw = lambda i: (jax.random.uniform(jax.random.key(i), (8, 1)) < chance).astype(jnp.int32)  # noqa: E731
        step = lambda i, x: (update(x[0], values[draw(i)]), x[1] + draw(i).sum())  # noqa: E731
        return jax.lax.fori_loop(0, n, step, (moments, jnp.int32(0)))

    moments, outliers = seen(init(jnp.zeros(1)))
    np.testing.assert_allclose(moments.mean, 100 + 42 * int(outliers) / (8 * n), atol=1e-4)


def test_a_single_observation_is_its_own_mean():
    seen = jnp.array([[236.0, -3.0]])
    np.testing.assert_array_equal(normalize(update(init(jnp.zeros(2)), seen), seen), [[0.0, 0.0]])


def test_outliers_are_clipped():
    moments = update(init(jnp.zeros(1)), jnp.array([[0.0], [1.0]]))
    np.testing.assert_array_equal(normalize(moments, jnp.array([[1e6], [-1e6]])), [[10.0], [-10.0]])


def timestep(reward, first=False, terminated=False, truncated=False):
    flags = (np.broadcast_to(np.asarray(flag, bool), np.shape(reward)) for flag in (first, terminated, truncated))
    return TimeStep((), jnp.asarray(reward, jnp.float32), *map(jnp.asarray, flags), {})


def test_rewards_are_divided_by_the_deviation_of_discounted_returns():
    """As Gym's NormalizeReward, timestep by timestep; a reset counts for nothing, a time limit does not end a sum."""
    rng, discount = np.random.default_rng(0), 0.9
    rewards = init_rewards(num_groups=2, num_envs=3)
    assert reward_scale(rewards) == 1
    sums, every = np.zeros((2, 3)), []
    for i in range(40):
        g, reward = i % 2, rng.normal(2.0, 3.0, 3)
        first, ended = (rng.random((3,)) < 0.2 for _ in range(2))
        given = timestep(reward, first, terminated=ended & ~first, truncated=~ended & ~first)
        rewards = update_rewards(rewards, g, given, discount)
        sums[g] = np.where(first, sums[g], sums[g] * discount + reward)
        every.extend(sums[g][~first])
        sums[g] = np.where(ended & ~first, 0, sums[g])
        np.testing.assert_allclose(rewards.returns[g], sums[g], rtol=1e-4, atol=1e-5)
        if len(every) > 1:
            np.testing.assert_allclose(reward_scale(rewards), 1 / np.sqrt(np.var(every) + 1e-8), rtol=1e-3)
    assert rewards.moments.num == len(every)


@pytest.mark.parametrize("discount", [0.0, 0.99])
def test_rewards_whose_sums_are_all_equal_stay_as_they_are(discount):
    """The deviation is 0 then: in the first timestep, and without a discount in every one."""
    rewards = update_rewards(init_rewards(2, 4), 0, timestep([0.7] * 4), discount)
    assert reward_scale(rewards) == 1
    for g in (1, 0):
        rewards = update_rewards(rewards, g, timestep([0.7] * 4), discount)
    sums = np.array([0.7, 0.7, 0.7 + discount * 0.7])
    wanted = 1 if discount == 0 else 1 / np.std(sums)
    np.testing.assert_allclose(reward_scale(rewards), wanted, rtol=1e-4)
