"""Block-circulant products: matrices of b x b circulant blocks, of which only b numbers each are stored and read.

A block's entries are `W[p, q] = c[(p - q) mod b]`. With rows of the input rolled b times, the product is an ordinary
one with the stored numbers: as many multiplications as with the dense matrix, b times fewer weights to read. Of many
rows, where reading weights is the lesser part, the matrix is formed for the time of the product.
"""

import math

import jax
import jax.numpy as jnp

from volvox.ops.matmul import dense

Array = jax.Array

_MANY_ROWS = 64
"""From here on the matrix is formed. Measured on two cores of an EPYC, layers of 256 x 64 to 1 024 x 1 024 and b of 4
and 8, forward and backward: of 16 rows either may be the faster by a half, of 64 rows forming takes 0.4 to 1.1 times as
long as rolling, of 256 rows 0.4 to 0.95 times, and 1.0 to 1.3 times as long as a dense layer."""


def block_circulant(x: Array, kernel: Array, block: int) -> Array:
    """`x @ W` for the block-circulant `W` `[K, N]` that `kernel` stores.

    Differentiable; under `vmap` over kernels a heterogeneous matmul. Below 64 rows no dense matrix is formed.

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
    if math.prod(x.shape[:-1]) >= _MANY_ROWS:
        return dense(x, formed(kernel, block))
    rows, columns = kernel.shape
    blocks = x.reshape(-1, rows // block, block)
    # Output q of a block sees the inputs in the order q, q + 1, ...: number s meets input (q + s) mod b.
    rolled = jnp.stack([jnp.roll(blocks, -q, axis=2) for q in range(block)], axis=1)
    out = dense(rolled.reshape(-1, rows), kernel).reshape(-1, block, columns)
    return out.swapaxes(1, 2).reshape(*x.shape[:-1], columns * block)


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
