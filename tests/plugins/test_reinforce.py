"""A learner from outside of the package learns from observations of several arrays, by actions of several parts."""

import jax
import jax.numpy as jnp
import reinforce

import volvox as vx


def observe(signs):
    """A dict with a tuple of arrays of two dtypes."""
    return {"first": signs[0], "others": (signs[1:], jnp.uint8(signs[0] > 0))}


def both_match(signs, action):
    """Action 1 of 2 where the first sign is positive, else 0; action 2 of 3 where the second is, else 1."""
    return jnp.mean((action == jnp.array([0, 1]) + (signs > 0)).astype(jnp.float32))


def test_reinforce_learns_a_choice_in_each_component():
    """Random choices earn 5/12 on average, and the right ones 1."""
    env = vx.envs.from_functions(
        lambda key: jax.random.rademacher(key, (2,), jnp.float32),
        lambda signs, action, key: (signs, both_match(signs, action), True),
        observe,
        name="signs",
        num_envs=16,
        groups=2,
        max_episode_steps=2,
        num_choices=(2, 3),
    )
    algorithm = vx.learn(reinforce.Reinforce(updates_per_iteration=150), vx.networks.CategoricalMLP(5, (16,)), env)
    state, row = algorithm.step(algorithm.init(0))
    algorithm.close()
    assert row["training_mean"] > 0.9
    assert row["update"] == 150
    assert vx.play(env, algorithm.policy, algorithm.variables(state), num_episodes=8).mean == 1.0
