"""Block-circulant products: matrices of b x b circulant blocks, of which only b numbers each are stored and read.

A block's entries are `W[p, q] = c[(p - q) mod b]`. With rows of the input rolled b times, the product is an ordinary
one with the stored numbers: as many multiplications as with the dense matrix, b times fewer weights to read. In the
gradients of many rows, where reading weights is the lesser part, the matrix is formed.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from volvox.ops.matmul import dense

Array = jax.Array

_MANY_ROWS = 128
"""From here on gradients are by the formed matrix. Measured on two cores of an EPYC, layers of 256 x 256 and 1 024 x
1 024, b of 4 and 8, product and gradients in a loop: of 256 rows they take 1.1 to 1.3 times as long as a dense layer's,
by rolled inputs 1.2 to 2.3 times; of 64 rows there is no difference, of fewer the latter is the faster."""


def block_circulant(x: Array, kernel: Array, block: int) -> Array:
    """`x @ W` for the block-circulant `W` `[K, N]` that `kernel` stores.

    Differentiable; under `vmap` over kernels a heterogeneous matmul. No dense matrix is formed but in the gradients of
    128 rows or more.

    Args:
      x: `[..., K]`.
      kernel: `[K, N / block]`: row `i * block + s` holds, for each block column, number s of the block in block row i.
      block: b, a divisor of K.

    Returns:
      `[..., N]` of the promoted dtype.

    Raises:
      ValueError: shapes that do not fit, or a block that does not divide K.
    """
    if kernel.ndim != 2 or x.ndim < 1 or x.shape[-1] != kernel.shape[0]:
        raise ValueError(
            f"block_circulant needs x [..., K] and a kernel [K, N / block]; got {x.shape}, {kernel.shape}."
        )
    check_block(block, kernel.shape[0])
    rows = x.reshape(-1, x.shape[-1])
    out: Any = _many_rows(rows, kernel, block) if rows.shape[0] >= _MANY_ROWS else _rolled(rows, kernel, block)
    return out.reshape(*x.shape[:-1], out.shape[-1])


def formed(kernel: Array, block: int) -> Array:
    """The dense matrix `[K, N]` that a kernel `[K, N / block]` stores."""
    rows, columns = kernel.shape
    check_block(block, rows)
    numbers = kernel.reshape(rows // block, block, columns)
    return jnp.stack([jnp.roll(numbers, q, axis=1) for q in range(block)], axis=3).reshape(rows, columns * block)


def check_block(block: int, *lengths: int) -> None:
    """Raises ValueError for a block that is not positive or does not divide a layer's sides, naming both."""
    if block < 1 or any(length % block for length in lengths):
        raise ValueError(
            f"block={block} does not divide a layer of {' x '.join(map(str, lengths))}: a block-circulant layer has "
            "whole blocks; choose another block, or leave that layer dense."
        )


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
    single = jnp.promote_types(g.dtype, jnp.float32)  # in which half precision sums
    dx = jnp.einsum("mn,kn->mk", g, formed(kernel, block), preferred_element_type=single)
    dw = jnp.einsum("mk,mn->kn", x, g, preferred_element_type=single).reshape(rows // block, block, columns, block)
    # Each number is on a diagonal of its block.
    dkernel = sum(jnp.roll(dw[..., q], -q, axis=1) for q in range(block))
    return dx.astype(x.dtype), jnp.reshape(dkernel, kernel.shape).astype(kernel.dtype)


_many_rows.defvjp(_many_rows_forward, _many_rows_backward)
