"""Fresh episodes: every one is played to its end, once; greedy takes the likeliest action, sampled draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import volvox as vx
from volvox.envs import probe
from volvox.loop import play, play_randomly
from volvox.networks import policy_from_functions
from volvox.networks.policies import perturbed


def always(env, logits):
    """A policy that gives the same logits everywhere."""
    return policy_from_functions(
        lambda key: {"kernel": jnp.asarray([logits])},
        lambda params, observation: jnp.broadcast_to(params["kernel"][0], (observation.shape[0], len(logits))),
        env.spec,
    )


def scores(env, logits, **options):
    policy = always(env, logits)
    return play(env, policy, policy.init(jax.random.key(0)), **options)


def test_greedy_takes_the_likeliest_action():
    env = probe.corridor(length=5)
    best = scores(env, [0.0, 0.1], num_episodes=7)
    np.testing.assert_array_equal(best.returns, np.ones(7))
    np.testing.assert_array_equal(best.lengths, np.full(7, 5))
    worst = scores(env, [0.1, 0.0], num_episodes=3, max_episode_steps=6)
    np.testing.assert_array_equal(worst.returns, np.zeros(3))
    np.testing.assert_array_equal(worst.lengths, np.full(3, 6))


def test_sampled_draws_as_the_distribution_has_it():
    """One step an episode, reward 1 for action 1 and -1 for action 0: the mean is the difference of probabilities."""
    env = probe.chosen_reward()
    assert scores(env, [0.0, 0.5], num_episodes=8).mean == 1
    drawn = scores(env, [0.0, 0.5], num_episodes=2_000, sampled=True)
    assert drawn.mean == pytest.approx(np.tanh(0.25), abs=0.065)


def test_perturbed_logits_are_samples():
    logits = jnp.array([0.0, 1.0, -1.0])
    chosen = jnp.argmax(perturbed(jax.random.key(0), jnp.broadcast_to(logits, (20_000, 3))), axis=-1)
    frequencies = np.bincount(np.asarray(chosen), minlength=3) / 20_000
    np.testing.assert_allclose(frequencies, jax.nn.softmax(logits), atol=0.012)


def test_the_seed_fixes_the_draws():
    env = probe.corridor()
    first, same, other = (
        scores(env, [0.0, 0.3], num_episodes=20, sampled=True, seed=seed).returns for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


def test_random_play_is_between_best_and_worst():
    random = play_randomly(probe.corridor(), num_episodes=50)
    assert 0 < random.low < random.mean < random.high < 1


def test_recurrent_state_is_carried():
    """A network that counts its steps goes right, then left for ever: the return of a walk of that shape."""

    class Counter(nn.Module):
        @nn.compact
        def __call__(self, x, state):
            self.param("unused", nn.initializers.zeros, (1, 1))
            right = (state < 3).astype(jnp.float32)
            return (jnp.stack([1 - right, right], axis=-1), jnp.zeros(x.shape[0])), state + 1

        @nn.nowrap
        def initial_state(self, batch_size):
            return jnp.zeros(batch_size)

    env = probe.corridor(length=8, max_episode_steps=4)
    algorithm = vx.actor_critic.a3c(Counter(), env, segment_length=2)
    params = algorithm.policy(algorithm.init(jax.random.key(0)))
    np.testing.assert_array_equal(play(env, algorithm.network, params, num_episodes=2).returns, [2 / 8, 2 / 8])


def test_a_gaussian_policy_is_drawn_with_its_deviation():
    env = probe.target(size=2, max_episode_steps=1)
    algorithm = vx.actor_critic.a3c(vx.networks.GaussianMLP(2, (4,)), env, segment_length=1)
    params = algorithm.policy(algorithm.init(jax.random.key(0)))
    observation = jnp.zeros((20_000, 2))
    mean, _ = algorithm.network.apply(params, observation, (), None)
    drawn, _ = algorithm.network.apply(params, observation, (), jax.random.key(1))
    np.testing.assert_allclose(np.std(drawn - mean, axis=0), [1, 1], atol=0.02)  # log_std begins at 0


def test_bad_requests_raise():
    env = probe.corridor()
    with pytest.raises(ValueError, match="num_episodes=0"):
        scores(env, [0.0, 1.0], num_episodes=0)
    with pytest.raises(ValueError, match="num_episodes=0"):
        play_randomly(env, num_episodes=0)
    target = probe.target(size=2)
    with pytest.raises(ValueError, match="no distribution"):
        scores(target, [0.0, 1.0], sampled=True)
