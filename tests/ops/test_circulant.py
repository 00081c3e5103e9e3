"""Block-circulant products against products with the dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.ops.matmul import block_circulant, to_dense


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def written_out(kernel, block):
    """Entry by entry."""
    rows, columns = kernel.shape
    w = np.zeros((rows, columns * block))
    for i in range(rows // block):
        for j in range(columns):
            for p in range(block):
                for q in range(block):
                    w[i * block + p, j * block + q] = kernel[i * block + (p - q) % block, j]
    return w


ROWS = pytest.mark.parametrize("rows", [5, 130], ids=["few", "many"])


@ROWS
def test_gradients_are_those_of_the_dense_product(rows):
    kernels, x, y = normal(2, 12, 3), normal(2, rows, 12, seed=1), normal(2, rows, 12, seed=2)
    square = np.zeros((12, 12, 12, 3))  # entry [p, q] is which of the numbers
    for i, unit in enumerate(np.eye(36).reshape(36, 12, 3)):
        square[:, :, i // 3, i % 3] = written_out(unit, 4)

    def gradients(product):
        loss = lambda k, x, y: ((product(k, x) - y) ** 2).sum()  # noqa: E731
        return jax.jit(jax.vmap(jax.grad(loss, (0, 1))))(kernels, x, y)

    ours = gradients(lambda k, x: block_circulant(x, k, 4))
    plain = gradients(lambda k, x: x @ jnp.einsum("pqij,ij->pq", square, k))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3), ours, plain)


@ROWS
def test_vmap_over_kernels_is_each_product(rows):
    kernels, x = normal(3, 16, 4), normal(3, rows, 16, seed=1)
    got = jax.jit(jax.vmap(lambda k, x: block_circulant(x, k, 8)))(kernels, x)
    for i in range(3):
        np.testing.assert_array_equal(to_dense(kernels[i], 8), written_out(kernels[i], 8))
        np.testing.assert_allclose(block_circulant(x[i, 0], kernels[i], 8), got[i, 0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got[i], np.asarray(x[i]) @ written_out(kernels[i], 8), rtol=1e-4, atol=1e-4)
