"""Fitness shaping against NumPy."""

import jax.numpy as jnp
import numpy as np

from volvox.evolution.strategy import centered_ranks, raw, z_scores

FITNESS = np.array([3.0, -1.0, 8.0, 0.5, 2.0], np.float32)


def test_centered_ranks():
    np.testing.assert_allclose(centered_ranks(jnp.asarray(FITNESS)), [0.25, -0.5, 0.5, -0.25, 0.0])


def test_equal_fitness_shares_the_mean_rank():
    ranks = centered_ranks(jnp.array([1.0, 0.0, 1.0, 1.0, -jnp.inf]))
    np.testing.assert_allclose(ranks, [0.25, -0.25, 0.25, 0.25, -0.5])
    np.testing.assert_allclose(centered_ranks(jnp.full(6, 2.0)), np.zeros(6), atol=1e-7)


def test_z_scores():
    np.testing.assert_allclose(z_scores(jnp.asarray(FITNESS)), (FITNESS - FITNESS.mean()) / FITNESS.std(), rtol=1e-5)
    np.testing.assert_array_equal(z_scores(jnp.full(4, 3.0)), np.zeros(4))


def test_raw_replaces_missing_fitness_by_the_lowest():
    np.testing.assert_array_equal(raw(jnp.array([2.0, -jnp.inf, -3.0])), [2.0, -3.0, -3.0])
    np.testing.assert_array_equal(raw(jnp.full(3, -jnp.inf)), np.zeros(3))
    np.testing.assert_array_equal(raw(jnp.array([2.0, jnp.inf, -3.0])), [2.0, 2.0, -3.0])
