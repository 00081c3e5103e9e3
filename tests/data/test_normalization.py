"""Running moments of observations against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from volvox.data.normalization import init, normalize, update


def test_moments_are_those_of_all_observations():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (5, 7, 2)).astype(np.float32)
    moments = init((2,))
    np.testing.assert_array_equal(normalize(moments, rows[0]), rows[0])
    for part in rows:
        moments = update(moments, part)
    every = rows.reshape(-1, 2)
    np.testing.assert_allclose(moments.mean, every.mean(0), rtol=1e-5)
    expected = (rows[0] - every.mean(0)) / every.std(0)
    np.testing.assert_allclose(normalize(moments, rows[0]), expected, rtol=1e-4, atol=1e-5)


def test_outliers_are_clipped():
    moments = update(init((1,)), jnp.array([[0.0], [1.0]]))
    np.testing.assert_array_equal(normalize(moments, jnp.array([[1e6], [-1e6]])), [[10.0], [-10.0]])


def test_observations_of_another_shape_are_refused():
    with pytest.raises(AssertionError, match="shape"):
        update(init((2,)), jnp.zeros((4, 3)))
