"""Block-circulant products: matrices of b x b circulant blocks, of which only b numbers each are stored and read.

A block's entries are `W[p, q] = c[(p - q) mod b]`. With rows of the input rolled b times, the product is an ordinary
one with the stored numbers: as many multiplications as with the dense matrix, b times fewer weights to read.
"""

import jax
import numpy as np

from volvox.ops.matmul import dense

Array = jax.Array


def block_circulant(x: Array, kernel: Array, block: int) -> Array:
    """`x @ W` for the block-circulant `W` `[K, N]` that `kernel` stores.

    Differentiable; under `vmap` over kernels a heterogeneous matmul.

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
    rows, columns = kernel.shape
    # Output q of a block sees the inputs in the order q, q + 1, ...: number s meets input (q + s) mod b.
    order = (np.arange(block)[:, None] + np.arange(block)) % block
    rolled = x.reshape(-1, rows // block, block)[:, :, order].swapaxes(1, 2)
    out = dense(rolled.reshape(-1, rows), kernel).reshape(-1, block, columns)
    return out.swapaxes(1, 2).reshape(*x.shape[:-1], columns * block)


def formed(kernel: Array, block: int) -> Array:
    """The dense matrix `[K, N]` that a kernel `[K, N / block]` stores; for tests and tables, not for products."""
    rows, columns = kernel.shape
    check_block(block, rows)
    numbers = kernel.reshape(rows // block, block, columns)
    which = (np.arange(block)[:, None] - np.arange(block)) % block  # [p, q]
    return numbers[:, which].transpose(0, 1, 3, 2).reshape(rows, columns * block)


def check_block(block: int, *lengths: int) -> None:
    """Raises ValueError for a block that is not positive or does not divide a layer's sides, naming both."""
    if block < 1 or any(length % block for length in lengths):
        raise ValueError(
            f"block={block} does not divide a layer of {' x '.join(map(str, lengths))}: a block-circulant layer has "
            "whole blocks; choose another block, or leave that layer dense."
        )
