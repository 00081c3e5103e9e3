"""Products with block-circulant matrices: only b numbers of each b x b circulant block are stored and read.

The entries of a block are `W[p, q] = c[(p - q) mod b]`. With the input rolled b times, the product is an ordinary one
with the stored numbers: as many multiplications as with the dense matrix, but b times fewer weights to read. The
gradients of many rows form the matrix, because they spend little time on reading weights.
"""

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp

from volvox.ops.matmul import dense, product_gradients
from volvox.types import Array

# Gradients form the matrix from this number of rows on. Measured on two cores of an EPYC, with layers of 256 x 256 and
# 1 024 x 1 024, b of 4 and 8, product and gradients in a loop: with 256 rows they take 1.1 to 1.3 times as long as a
# dense layer, and 1.2 to 2.3 times as long by rolled inputs. With 64 rows both are equal, and with fewer rows the
# rolled inputs are faster.
_MANY_ROWS = 128


def block_circulant(x: Array, kernel: Array, block: int) -> Array:
    """Computes `x @ W` with the block-circulant matrix `W` `[K, N]` that `kernel` stores.

    It is differentiable, and a heterogeneous matmul under `vmap` over kernels. Only the gradients of 128 rows or more
    form the dense matrix.

    Args:
      x: `[..., K]`.
      kernel: `[K, N / block]`: row `i * block + s` holds, for each block column, number s of the block in block row i.
      block: Size b of a block, a divisor of K.

    Returns:
      `[..., N]` of the promoted dtype.
    """
    chex.assert_shape(kernel, (x.shape[-1], None))
    chex.assert_is_divisible(kernel.shape[0], block)
    rows = x.reshape(-1, x.shape[-1])
    # The two differ only in their gradients. Exported programs with a symbolic number of rows have no gradients.
    many = not jax.export.is_symbolic_dim(rows.shape[0]) and rows.shape[0] >= _MANY_ROWS
    out: Any = _many_rows(rows, kernel, block) if many else _rolled(rows, kernel, block)
    return out.reshape(*x.shape[:-1], out.shape[-1])


def formed(kernel: Array, block: int) -> Array:
    """Returns the dense matrix `[K, N]` that a kernel `[K, N / block]` stores."""
    rows, columns = kernel.shape
    numbers = kernel.reshape(rows // block, block, columns)
    return jnp.stack([jnp.roll(numbers, q, axis=1) for q in range(block)], axis=3).reshape(rows, columns * block)


def _rolled(x: Array, kernel: Array, block: int) -> Array:
    rows, columns = kernel.shape
    blocks = x.reshape(-1, rows // block, block)
    # Output q of a block sees the inputs in the order q, q + 1, ...: number s meets input (q + s) mod b.
    rolled = jnp.stack([jnp.roll(blocks, -q, axis=2) for q in range(block)], axis=1)
    out = dense(rolled.reshape(-1, rows), kernel).reshape(-1, block, columns)
    return out.swapaxes(1, 2).reshape(-1, columns * block)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _many_rows(x: Array, kernel: Array, block: int) -> Array:
    return _rolled(x, kernel, block)


def _many_rows_forward(x, kernel, block):
    return _many_rows(x, kernel, block), (x, kernel)


def _many_rows_backward(block, residuals, g):
    x, kernel = residuals
    rows, columns = kernel.shape
    dx, dw = product_gradients(x, formed(kernel, block), g)
    dw = dw.reshape(rows // block, block, columns, block)
    # Each number fills one diagonal of its block.
    dkernel = sum(jnp.roll(dw[..., q], -q, axis=1) for q in range(block))
    return dx.astype(x.dtype), jnp.reshape(dkernel, kernel.shape).astype(kernel.dtype)


_many_rows.defvjp(_many_rows_forward, _many_rows_backward)
