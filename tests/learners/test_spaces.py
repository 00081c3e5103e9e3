"""Observations of several arrays, and every kind of action, in each algorithm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import volvox as vx

LOW, HIGH = np.float32([-2, 0]), np.float32([4, 1])


def env_of(reward, **actions):
    """One timestep whose observation is two signs, as a dict with a tuple of arrays of two dtypes."""

    def observe(signs):
        return {"first": signs[0], "others": (signs[1:], jnp.uint8(signs[0] > 0))}

    return vx.envs.from_functions(
        lambda key: jax.random.rademacher(key, (2,), jnp.float32),
        lambda signs, action, key: (signs, reward(signs, action), True),
        observe,
        name="signs",
        num_envs=8,
        groups=2,
        max_episode_steps=2,
        **actions,
    )


def both_match(signs, action):
    """Action 1 of 2 where the first sign is positive, else 0; action 2 of 3 where the second is, else 1."""
    return jnp.mean((action == jnp.array([0, 1]) + (signs > 0)).astype(jnp.float32))


def closeness(signs, action):
    return -jnp.mean((action - jnp.where(signs > 0, HIGH, LOW)) ** 2)


CHOICES, BOX = {"num_choices": (2, 3)}, {"action_shape": (2,), "action_low": LOW, "action_high": HIGH}


@pytest.mark.optimized
def test_a3c_learns_a_choice_in_each_component():
    """Random choices earn 5/12 on average, and the right ones 1."""
    network, env = vx.networks.CategoricalMLP(5, (32,)), env_of(both_match, **CHOICES)
    settings = vx.A3C(segment_length=2, learning_rate=1e-2, updates_per_iteration=400)
    algorithm = vx.learn(settings, network, env)
    state, row = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    assert row["training_mean"] > 0.9
    act = vx.Actor(algorithm.policy, algorithm.variables(state), env.spec)
    seen = {"first": np.float32([-1, 1]), "others": (np.float32([[1], [-1]]), np.uint8([0, 1]))}
    assert act(seen).tolist() == [[0, 2], [1, 1]]
    assert act(jax.tree.map(lambda x: x[0], seen)).tolist() == [0, 2]


@pytest.mark.slow
@pytest.mark.optimized
def test_td3_reaches_the_bounds_of_each_component():
    networks = vx.networks.ActorAndCritic(vx.networks.MLP(2, (32,)), vx.networks.QNetwork((32,)))
    td3 = {"random_timesteps": 200, "replay_size": 2_000, "batch_size": 64, "timesteps_per_iteration": 1_500}
    env = env_of(closeness, **BOX)
    algorithm = vx.learn(vx.TD3(learning_rate=3e-3, normalize_observations=True, **td3), networks, env)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    act = vx.Actor(algorithm.policy, algorithm.variables(state), env.spec)
    seen = {"first": np.float32([-1, 1]), "others": (np.float32([[1], [-1]]), np.uint8([0, 1]))}
    np.testing.assert_allclose(act(seen), [[LOW[0], HIGH[1]], [HIGH[0], LOW[1]]], atol=0.5)
