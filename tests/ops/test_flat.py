"""The flat order of parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.ops.flat import flatten, leaf_offsets, num_parameters, unflatten


@pytest.fixture
def params():
    shapes = {
        "Conv_10": {"kernel": (1, 1, 2, 3), "bias": (3,)},
        "Conv_2": {"kernel": (2, 1, 1, 2), "bias": (2,)},
        "Dense_0": {"kernel": (3, 2), "bias": (2,), "alpha": (1,)},
        "gain": (),
    }
    count = iter(range(100))
    return jax.tree.map(
        lambda shape: jnp.array([next(count) for _ in range(int(np.prod(shape)))], jnp.float32).reshape(shape),
        shapes,
        is_leaf=lambda value: isinstance(value, tuple),
    )


def test_layers_in_natural_order_kernel_then_bias(params):
    offsets = leaf_offsets(params)
    assert offsets == {
        "gain": 0,
        "Conv_2": {"kernel": 1, "bias": 5},
        "Conv_10": {"kernel": 7, "bias": 13},
        "Dense_0": {"kernel": 16, "bias": 22, "alpha": 24},
    }
    vector = np.asarray(flatten(params))
    np.testing.assert_array_equal(vector[7:13], np.ravel(params["Conv_10"]["kernel"]))
    np.testing.assert_array_equal(vector[5:7], params["Conv_2"]["bias"])


def test_round_trip(params):
    vector = flatten(params)
    assert vector.shape == (num_parameters(params),) == (25,)
    jax.tree.map(np.testing.assert_array_equal, unflatten(vector, params), params)
    shapes = jax.eval_shape(lambda: params)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(lambda v: unflatten(v, shapes))(vector), params)
    assert leaf_offsets(shapes) == leaf_offsets(params)


def test_wrong_length_raises(params):
    with pytest.raises(ValueError, match=r"\(25,\)"):
        unflatten(jnp.zeros(24), params)
