"""Unmodified flax modules through our kernels: the same values, dtypes and gradients as plain flax."""

import contextlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from volvox.networks import MLP
from volvox.networks.interception import use_kernels


class Mixed(nn.Module):
    """Conv, LayerNorm and Dense, with several options."""

    dtype: Any = None

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), 2, padding=1, dtype=self.dtype)(x))
        x = nn.LayerNorm(dtype=self.dtype)(x)
        x = nn.relu(nn.Conv(6, (2, 2), padding="VALID", use_bias=False, dtype=self.dtype)(x))
        x = nn.Dense(5, dtype=self.dtype)(x)
        x = x.reshape(*x.shape[:-3], -1)
        return nn.Dense(3, use_bias=False, dtype=self.dtype)(nn.tanh(x))


def run(module, params, x, kernels):
    with use_kernels() if kernels else contextlib.nullcontext():
        return module.apply({"params": params}, x)


def assert_same_as_flax(module, params, x):
    """Vmapped over networks, with our kernels and without."""
    assert_trees_close(
        *(jax.jit(jax.vmap(partial(run, module, kernels=kernels)))(params, x) for kernels in (True, False))
    )


def network(module, shape, networks=3, seed=0):
    """Parameters and inputs, different for each network; drawn by NumPy, which compiles nothing."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        return jnp.asarray(rng.standard_normal((networks, *leaf.shape), np.float32) / max(1, *leaf.shape) ** 0.5)

    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    params = jax.tree.map(draw, jax.eval_shape(module.init, jax.random.key(0), x)["params"])
    return params, jnp.asarray(rng.standard_normal((networks, *shape), np.float32))


def assert_trees_close(actual, expected, **tolerance):
    jax.tree.map(partial(np.testing.assert_allclose, **{"rtol": 1e-4, "atol": 1e-5, **tolerance}), actual, expected)


def jaxpr(module, shape, kernels):
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    params = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
    return str(jax.make_jaxpr(partial(run, module, kernels=kernels))(params, x))


@pytest.mark.parametrize("axes", [(0, 0), (None, 0)], ids=str)
def test_mixed_module_has_values_and_gradients_of_flax(axes):
    params, x = network(Mixed(), (2, 9, 9, 3))
    params = params if axes[0] == 0 else jax.tree.map(lambda a: a[0], params)
    x = x if axes[1] == 0 else x[0]

    def values_and_gradients(kernels):
        def loss(params, x):
            return jnp.sum(run(Mixed(), params, x, kernels) ** 2)

        return jax.jit(jax.vmap(jax.value_and_grad(loss, (0, 1)), axes))(params, x)

    assert_trees_close(values_and_gradients(True), values_and_gradients(False))


def test_dtype_is_as_in_flax():
    dtype = jnp.bfloat16
    params, x = network(Mixed(dtype=dtype), (2, 9, 9, 3), networks=1)
    params, x = jax.tree.map(lambda a: a[0], (params, x))
    ours, flax = (jax.jit(partial(run, Mixed(dtype=dtype), kernels=kernels))(params, x) for kernels in (True, False))
    assert ours.dtype == flax.dtype == dtype
    assert_trees_close(ours.astype(jnp.float32), flax.astype(jnp.float32), atol=0.05)


def test_half_precision_weights_are_read_as_they_are():
    """Products with single-precision rows have flax's values, and the weights are not widened before."""
    module = nn.Dense(256)
    params, x = network(module, (2, 96), networks=4)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    ours, flax = (jax.vmap(partial(run, module, kernels=kernels)) for kernels in (True, False))
    assert jax.eval_shape(ours, params, x).dtype == jnp.float32
    np.testing.assert_allclose(jax.jit(ours)(params, x), jax.jit(flax)(params, x), rtol=1e-5, atol=1e-5)
    (call,) = [eqn for eqn in jax.make_jaxpr(ours)(params, x).eqns if "custom_vjp_call" in eqn.primitive.name]
    assert [str(operand.aval.dtype) for operand in call.invars] == ["float32", "bfloat16"]


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv(4, (3, 3)),
        nn.Conv(4, (3, 3), strides=None, padding=[(1, 0), 2], use_bias=False),
        nn.Conv(4, [2, 2], strides=(2, 1), padding="SAME_LOWER"),
    ],
)
def test_plain_convolutions_are_taken(module):
    assert "custom_vjp_call" in jaxpr(module, (2, 9, 9, 3), kernels=True)
    assert_same_as_flax(module, *network(module, (2, 9, 9, 3)))


class Subclass(nn.Dense):
    """A subclass, which may change `__call__`."""


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv(3, (3, 3), feature_group_count=3),
        nn.Conv(4, (3, 3), kernel_dilation=2),
        nn.Conv(4, (3, 3), input_dilation=2, padding=1),
        nn.Conv(4, (3, 3), padding="CIRCULAR"),
        nn.Conv(4, (3, 3), precision="highest"),
        nn.Conv(4, (3,)),
        nn.Conv(4, (3, 3), mask=jnp.ones((3, 3, 3, 4))),
        nn.Conv(4, (3, 3), conv_general_dilated=jax.lax.conv_general_dilated),
        nn.ConvTranspose(4, (3, 3)),
        nn.Dense(4, precision="highest"),
        nn.Dense(4, dot_general=jax.lax.dot_general),
        nn.DenseGeneral(4),
        Subclass(4),
    ],
)
def test_other_modules_run_as_flax_wrote_them(module):
    assert jaxpr(module, (2, 9, 9, 3), kernels=True) == jaxpr(module, (2, 9, 9, 3), kernels=False)


def test_initialisation_is_that_of_flax():
    def init():
        return MLP(3).init(jax.random.key(0), jnp.zeros((1, 4)))

    with use_kernels():
        ours = init()
        assert "custom_vjp" not in str(jax.make_jaxpr(init)())
    jax.tree.map(np.testing.assert_array_equal, ours, init())


def test_lifted_modules():
    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x):
            heads = nn.vmap(
                nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=2
            )
            return heads(3)(nn.remat(nn.Dense)(5)(x)).sum(0)

    assert_same_as_flax(Stack(), *network(Stack(), (2, 4)))
