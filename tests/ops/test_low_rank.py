import math
import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layer_shapes import CONVS

from volvox.networks.interception import low_rank_kernels, use_kernels
from volvox.ops.conv import conv, window_of
from volvox.ops.low_rank import (
    LowRankKernel,
    _convs_of_patches,
    low_rank_conv,
    low_rank_dense,
    with_bases,
    without_bases,
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def formed(kernel: LowRankKernel):
    base = np.asarray(kernel.bases, np.float64)[int(kernel.index)]
    return base + (np.asarray(kernel.a, np.float64) @ np.asarray(kernel.b, np.float64).T).reshape(base.shape)


@pytest.mark.parametrize("name", ["deep_ga_small_1", "stride_beyond_size"])
def test_conv(name):
    """Against the formed kernels, on CPUs and in the form of other platforms."""
    shape, n, rank = CONVS[name], 5, 2
    size = (shape.size, shape.size, shape.channels)
    index = np.array([0, 2, 2, 1, 0])
    x, bases = normal(n, 2, shape.image, shape.image, shape.channels), normal(3, *size, shape.features, seed=1)
    a, b = normal(n, int(np.prod(size)), rank, seed=2), normal(n, shape.features, rank, seed=3)
    window = {"strides": (shape.stride,) * 2, "padding": shape.padding}

    def one(x, index, a, b):
        return low_rank_conv(x, LowRankKernel(bases, index, a, b, 0), **window)

    got = jax.jit(jax.vmap(one))(x, jnp.asarray(index, jnp.int32), a, b)
    geometry = window_of(x.shape[1:], bases.shape[1:], **window)
    elsewhere = jax.jit(partial(_convs_of_patches, window=geometry))(x, bases, index, a, b)
    np.testing.assert_allclose(elsewhere, got, rtol=1e-3, atol=1e-3)
    for i in range(n):
        kernel = formed(LowRankKernel(bases, index[i], a[i], b[i], 0)).astype(np.float32)
        np.testing.assert_allclose(got[i], conv(x[i], kernel, **window), rtol=1e-3, atol=1e-3)


class Mixed(nn.Module):
    """Every kind of layer and parameter there is a rule for, and two for which there is none."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3), strides=2)(x)).reshape(x.shape[0], -1)
        x = nn.LayerNorm()(nn.Dense(6)(x))
        carry = (jnp.ones((x.shape[0], 5)), jnp.ones((x.shape[0], 5)))
        _, x = nn.LSTMCell(5)(carry, x)
        x = x * self.param("raw", nn.initializers.ones, (5,))
        return nn.Dense(3, use_bias=False)(x @ self.param("matrix", nn.initializers.ones, (5, 5)))


def test_a_mixed_module_takes_low_rank_kernels():
    """Unmodified modules, members vmapped: against explicitly formed weights."""
    module, n, num_bases = Mixed(), 4, 2
    x = normal(n, 1, 6, 6, 1)
    inits = [jax.jit(module.init)(jax.random.key(i), x[0])["params"] for i in range(num_bases)]
    bases = jax.tree.map(lambda *leaves: jnp.stack(leaves), *inits)
    found = low_rank_kernels(lambda params, x: module.apply({"params": params}, x), inits[0], x[0])
    assert len(found) == sum(leaf.ndim > 1 for leaf in jax.tree.leaves(inits[0])) - 1  # all but `matrix`
    paths, treedef = jax.tree_util.tree_flatten_with_path(bases)
    members, dense = [], []
    for i in range(n):
        leaves, whole = [], []
        for number, (path, leaf) in enumerate(paths):
            base = leaf[i % num_bases]
            if tuple(key.key for key in path) in found:
                a, b = normal(base[..., 0].size, 2, seed=10 * i + number), normal(base.shape[-1], 2, seed=number)
                leaves.append(LowRankKernel(leaf, jnp.int32(i % num_bases), 0.3 * a, b, number))
                whole.append(formed(leaves[-1]).astype(np.float32))
            else:
                leaves.append(base + 0.1 * i)
                whole.append(leaves[-1])
        members.append(without_bases(jax.tree.unflatten(treedef, leaves)))
        dense.append(jax.tree.unflatten(treedef, whole))

    def act(params, x):
        with use_kernels():
            return module.apply({"params": with_bases(params, bases)}, x)

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    got, plain = jax.jit(jax.vmap(act))(stacked, x), jax.jit(module.apply)
    for i in range(n):
        np.testing.assert_allclose(got[i], plain({"params": dense[i]}, x[i]), rtol=1e-4, atol=1e-5)


def test_no_member_is_formed():
    """Compiled for many members of few bases, no array has a member's kernel for each of them."""
    n, k, features = 16, 1000, 30
    bases = normal(2, k, features)

    def one(x, index, a, b):
        return low_rank_dense(x, LowRankKernel(bases, index, a, b, 0))

    operands = normal(n, 1, k), jnp.zeros(n, jnp.int32), normal(n, k, 1), normal(n, features, 1)
    text = jax.jit(jax.vmap(one)).lower(*operands).compile().as_text()
    sizes = {math.prod(map(int, shape.split(","))) for shape in re.findall(r"f32\[([\d,]+)\]", text)}
    assert 2 * k * features in sizes  # the bases
    assert max(sizes) < n * k * features
