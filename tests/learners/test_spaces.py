"""Observations of several arrays, and actions of several parts."""

import jax
import jax.numpy as jnp

import volvox as vx


def observe(signs):
    """A dict with a tuple of arrays of two dtypes."""
    return {"first": signs[0], "others": (signs[1:], jnp.uint8(signs[0] > 0))}


def both_match(signs, action):
    """Action 1 of 2 where the first sign is positive, else 0; action 2 of 3 where the second is, else 1."""
    return jnp.mean((action == jnp.array([0, 1]) + (signs > 0)).astype(jnp.float32))


def test_a3c_learns_a_choice_in_each_component(trained):
    """Random choices earn 5/12 on average, and the right ones 1."""
    env = vx.envs.from_functions(
        lambda key: jax.random.rademacher(key, (2,), jnp.float32),
        lambda signs, action, key: (signs, both_match(signs, action), True),
        observe,
        name="signs",
        num_envs=8,
        max_episode_steps=2,
        num_choices=(2, 3),
    )
    settings = vx.A3C(segment_length=2, learning_rate=1e-2, updates_per_iteration=300)
    *_, row = trained(settings, vx.networks.CategoricalMLP(5, (32,)), env)
    assert row["training_mean"] > 0.9
