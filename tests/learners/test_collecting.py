"""What A3C and PPO collect: normalised observations and rewards, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox.data.normalization import Moments
from volvox.learners import A3C, PPO
from volvox.networks import CategoricalMLP
from volvox.types import TimeStep

B, K, DISCOUNT = 3, 2, 0.9
HOW = {"segment_length": 6, "discount": DISCOUNT, "normalize_observations": True, "normalize_rewards": True}


def timesteps():
    """Six timesteps of three environments, of which the first ends at the fourth and begins anew at the fifth."""
    rng = np.random.default_rng(0)
    for t in range(6):
        first = np.array([t in (0, 4), t == 0, t == 0])
        terminated = np.array([t == 3, False, False])
        reward = np.where(first, 0, rng.normal(5.0, 3.0, B)).astype(np.float32)
        flags = map(jnp.asarray, (first, terminated, np.zeros(B, bool)))
        yield TimeStep(jnp.asarray(rng.normal(3.0, 2.0, (B, K)), jnp.float32), jnp.asarray(reward), *flags, {})


@pytest.mark.parametrize("settings", [A3C(**HOW, reward_bound=1.0), PPO(**HOW, reward_bound=1.0, num_minibatches=1)])
def test_what_is_learned_from_is_normalised(settings):
    """Observations by the moments that learning has, rewards by the deviation of their sums, and then clipped."""
    spec = probes.corridor().spec._replace(observation_shape=(K,))
    learner = settings.bind(CategoricalMLP(2, (4,)), probes.corridor(num_envs=B, groups=1)._replace(spec=spec))
    key = jax.random.key(0)
    acting, learning = learner.init(key)
    acting = acting._replace(collectors=(learner.collecting.collector(B),))
    mean, squares = np.array([3.0, 1.0], np.float32), np.array([40.0, 10.0], np.float32)
    learning = learning._replace(moments=Moments(jnp.float32(10), jnp.asarray(mean), jnp.asarray(squares)))
    sums, every, seen, rewards, counted = np.zeros(B), [], [], [], learning.moments
    for t, timestep in enumerate(timesteps()):
        acting, _ = learner.act(acting._replace(beat=jnp.int32(t)), learning, key, 0, timestep)
        counted = learner.collecting.observe(acting, counted, 0)
        seen.append(np.asarray(timestep.observation))
        live = ~np.asarray(timestep.first)
        sums = np.where(live, DISCOUNT * sums + np.asarray(timestep.reward), sums)
        every.extend(sums[live])
        sums = np.where(timestep.terminated, 0, sums)
        scale = 1 / np.sqrt(np.var(every) + 1e-8) if every else 1
        rewards.append(np.clip(np.asarray(timestep.reward) * scale, -1, 1))
    ring = acting.collectors[0].ring
    wanted = np.clip((np.stack(seen) - mean) / np.sqrt(squares / 10 + 1e-8), -10, 10)
    np.testing.assert_allclose(ring.observation[0, :6], wanted, rtol=1e-5)
    # The reward of a timestep is received with the next one.
    np.testing.assert_allclose(ring.reward[0, :5], rewards[1:], rtol=1e-4)
    assert (np.abs(np.abs(rewards[1:]) - 0.5) < 0.5).sum() > 3  # not all were clipped, or nothing was shown
    old = mean + np.sqrt(squares / 10) * np.array([[-1], [1]])  # two numbers with these moments, each five times
    both = np.concatenate([np.repeat(old, 5, axis=0), *seen])
    np.testing.assert_allclose(counted.mean, both.mean(0), rtol=1e-5)
    np.testing.assert_allclose(counted.squares, both.var(0) * len(both), rtol=1e-4)
