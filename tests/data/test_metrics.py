"""Means and largest values by name."""

import jax
import jax.numpy as jnp
import numpy as np

from volvox.data import metrics
from volvox.data.metrics import Maximum


def test_means_are_of_all_values():
    gathered = {}
    for values in ([1.0, 2.0], [6.0]):
        values = jnp.array(values)
        gathered = metrics.add(gathered, metrics.means({"loss": values.sum()}, count=len(values)))
        gathered = metrics.add(gathered, {"largest": Maximum(values.max())})
    assert metrics.compute(gathered) == {"loss": 3.0, "largest": 6.0}


def test_metrics_of_other_names_stay_and_begin():
    both = metrics.add(metrics.means({"a": jnp.float32(2)}), metrics.means({"b": jnp.float32(3)}, count=2))
    assert metrics.compute(both) == {"a": 2.0, "b": 1.5}


def test_zeros_keep_names_and_shapes_and_say_nothing():
    shapes = jax.eval_shape(lambda: metrics.means({"a": jnp.ones(3)}) | {"b": Maximum(jnp.ones(3))})
    begun = metrics.zeros(shapes)
    assert begun["a"].total.shape == (3,)
    assert metrics.compute(begun) == {"b": 0.0}


def test_learners_are_averaged():
    given = metrics.means({"a": jnp.array([1.0, 3.0])}) | {"b": Maximum(jnp.array([1.0, 3.0]))}
    np.testing.assert_equal(metrics.compute(metrics.add(given, given)), {"a": 2.0, "b": 3.0})
