"""Heterogeneous matmul at any shape, its gradients against plain JAX, and its batching rules.

Implementations against the formula: `test_matmul_implementations.py`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.ops.matmul import dense, matmul


def operands(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def plain(x, w, index):
    """What any program would write: the reference for gradients."""
    return jnp.einsum("bmk,bkn->bmn", x, jnp.take(w, index, axis=0))


def mapped_axes(a, outer, inner):
    """Drop the leading axes over which nothing is mapped."""
    a = a if inner == 0 else a[:, 0]
    return a if outer == 0 else a[0]


def test_gradients():
    x, w = operands((4, 1, 352), (2, 352, 3))
    index = np.array([1, 1, 0, 1], np.int32)

    def loss(f, x, w):
        return jnp.sin(f(x, w, index)).sum()

    for ours, reference in zip(
        jax.jit(jax.grad(partial(loss, matmul), (0, 1)))(x, w),
        jax.grad(partial(loss, plain), (0, 1))(x, w),
        strict=True,
    ):
        np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-4)


def test_gradients_in_half_precision_sum_in_single():
    """2 048 rows of ones through one of two kernels: a sum in half precision would stop at 256."""
    x, w, index = jnp.ones((2_048, 1, 2), jnp.bfloat16), jnp.ones((2, 2, 3), jnp.bfloat16), jnp.zeros(2_048, jnp.int32)
    dw = jax.jit(jax.grad(lambda w: matmul(x, w, index).astype(jnp.float32).sum()))(w)
    np.testing.assert_array_equal(dw[0].astype(jnp.float32), 2_048)
    np.testing.assert_array_equal(dw[1].astype(jnp.float32), 0)
    dkernel = jax.jit(jax.grad(lambda w: dense(x[:, 0], w).astype(jnp.float32).sum()))(w[0])
    np.testing.assert_array_equal(dkernel.astype(jnp.float32), 2_048)


def test_gradients_by_index_form_no_kernel_for_each_row():
    x, w, index = jnp.ones((65, 1, 256)), jnp.ones((3, 256, 128)), jnp.arange(65) % 3
    text = str(jax.make_jaxpr(jax.grad(lambda x, w: matmul(x, w, index).sum(), (0, 1)))(x, w))
    assert "[65,1,256]" in text
    assert "[65,256,128]" not in text
    assert "[65,128,256]" not in text


@pytest.mark.parametrize(
    "batched",
    [(0, 0, 0), (0, None, 0), (None, 0, None), (None, None, 0)],
    ids=str,
)
def test_vmap_with_index(batched):
    x, w = operands((2, 3, 1, 176), (2, 4, 176, 5))
    index = np.array([[3, 0, 3], [1, 2, 1]], np.int32)
    arguments = [a if axis == 0 else a[0] for a, axis in zip((x, w, index), batched, strict=True)]
    np.testing.assert_allclose(
        jax.jit(jax.vmap(matmul, batched))(*arguments), jax.vmap(plain, batched)(*arguments), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("inner", [(0, 0), (None, 0)], ids=str)
@pytest.mark.parametrize("outer", [(0, 0), (0, None)], ids=str)
def test_nested_vmap_of_dense(outer, inner):
    x, w = operands((2, 3, 4, 176), (2, 3, 176, 5))
    x, w = (mapped_axes(a, outer[i], inner[i]) for i, a in enumerate((x, w)))

    def loss(f, x, w):
        return (f(x, w) ** 2).sum()

    def values_and_gradients(f):
        return jax.jit(jax.vmap(jax.vmap(jax.value_and_grad(partial(loss, f), (0, 1)), inner), outer))(x, w)

    for ours, reference in zip(
        jax.tree.leaves(values_and_gradients(dense)), jax.tree.leaves(values_and_gradients(jnp.matmul)), strict=True
    ):
        np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-3)


def test_half_precision_sums_in_single():
    """Partial sums in bfloat16 would lose ones as soon as there are 256."""
    x, w = jnp.ones((2, 1, 3520), jnp.bfloat16), jnp.ones((2, 3520, 3), jnp.bfloat16)
    out = jax.vmap(dense)(x, w)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out.astype(np.float32), 3520)


def test_nothing_is_multiplied():
    assert dense(jnp.ones((3, 0)), jnp.ones((0, 2))).tolist() == [[0.0, 0.0]] * 3
    assert matmul(jnp.ones((0, 1, 200)), jnp.ones((3, 200, 100)), jnp.zeros(0, jnp.int32)).shape == (0, 1, 100)
