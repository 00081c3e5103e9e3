"""Heterogeneous matmul: each block of rows is multiplied with its own kernel, which may be block-circulant.

`matmul` names the kernels by index. `dense` is the ordinary product of rows and one kernel, and becomes a heterogeneous
matmul under `vmap` over kernels. `block_circulant` is `dense` with a kernel of which each circulant block stores only
b numbers. All support reverse mode and any nesting of `vmap`, but not forward mode (`jax.jvp`).

Example:
  >>> x, kernels = jnp.ones((8, 1, 7744)), jnp.ones((8, 7744, 512))
  >>> out = jax.vmap(dense)(x, kernels)  # [8, 1, 512]
  >>> out = matmul(x, kernels[:2], jnp.array([0, 0, 1, 1, 0, 1, 0, 1]))  # [8, 1, 512] of two kernels
"""

import math
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp

from volvox.ops.batching import over_weights, per_index
from volvox.ops.matmul_mosaic import capability, matmul_mosaic, plan
from volvox.ops.matmul_xla import matmul_xla
from volvox.types import Array


def matmul(x: Array, w: Array, index: Array) -> Array:
    """Computes the heterogeneous matmul `out[b] = x[b] @ w[index[b]]`.

    It is differentiable in `x` and `w`; the gradients of a kernel that is used several times add up.

    Args:
      x: `[B, M, K]`.
      w: `[P, K, N]`.
      index: `int32 [B]`, each in `[0, P)`, in any order and with repetitions.

    Returns:
      `[B, M, N]` of the promoted dtype.

    Raises:
      AssertionError: The shapes do not fit.
    """
    chex.assert_shape(w, (None, x.shape[2], None))
    chex.assert_shape(index, x.shape[:1])
    return _matmul(x, w, index)


def dense(x: Array, kernel: Array) -> Array:
    """Computes `x @ kernel`; a heterogeneous matmul under `vmap` over kernels.

    Args:
      x: `[..., K]`.
      kernel: `[K, N]`.

    Returns:
      `[..., N]` of the promoted dtype.
    """
    chex.assert_shape(kernel, (x.shape[-1], None))
    out = _dense(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), kernel)
    return out.reshape(*x.shape[:-1], kernel.shape[-1])


def multiply(x: Array, w: Array, index: Array | None = None) -> Array:
    """Computes `matmul` without gradients or batching rules.

    On a GPU, `matmul_mosaic` multiplies rows that name their kernels, if `plan` has tile sizes for them.

    Args:
      x: `[B, M, K]`.
      w: `[P, K, N]`.
      index: `int32 [B]`, or None for the identity (`B == P`).

    Returns:
      `[B, M, N]` of the promoted dtype.
    """
    tiles = plan(x, w, index, compute_capability=capability())
    if tiles is None:
        return matmul_xla(x, w, index)
    return jax.lax.platform_dependent(x, w, index, cuda=partial(matmul_mosaic, tiles=tiles), default=matmul_xla)


def product_gradients(x: Array, w: Array, g: Array) -> tuple[Array, Array]:
    """Computes the gradients of `x @ w`, x `[..., M, K]` and w `[..., K, N]`, for g `[..., M, N]`.

    Returns:
      (gradient of x, gradient of w), float32 if the operands are of half precision.
    """
    single = jnp.promote_types(g.dtype, jnp.float32)
    dx = jnp.einsum("...mn,...kn->...mk", g, w, preferred_element_type=single)
    return dx, jnp.einsum("...mk,...mn->...kn", x, g, preferred_element_type=single)


# Reverse mode through `custom_vmap` raises, so `custom_vjp` is outermost. Gradients are plain products, which `vmap`
# and further differentiation treat as ordinary operations.


_dense = jax.custom_vjp(over_weights(jnp.matmul, multiply))


def _dense_forward(x, kernel):
    return _dense(x, kernel), (x, kernel)


def _dense_backward(residuals, g):
    x, kernel = residuals
    dx, dkernel = product_gradients(x, kernel, g)
    return dx.astype(x.dtype), dkernel.astype(kernel.dtype)


_dense.defvjp(_dense_forward, _dense_backward)


_matmul = jax.custom_vjp(per_index(multiply))


def _matmul_forward(x, w, index):
    return _matmul(x, w, index), (x, w, index)


def _matmul_backward(residuals, g):
    x, w, index = residuals
    single = jnp.promote_types(g.dtype, jnp.float32)  # half precision is summed in float32
    # Neither gradient forms a kernel for each block, because there may be many more blocks than kernels.
    dx = matmul(g, jnp.swapaxes(w, 1, 2), index)

    def add(dw: Array, block: tuple[Array, Array, Array]) -> tuple[Array, None]:
        x, g, i = block
        return dw.at[i].add(jnp.einsum("mk,mn->kn", x, g, preferred_element_type=single)), None

    dw, _ = jax.lax.scan(add, jnp.zeros(w.shape, single), (x, g, index))
    return dx.astype(x.dtype), dw.astype(w.dtype), None


_matmul.defvjp(_matmul_forward, _matmul_backward)


# Gradients form the matrix from this number of rows on: on a CPU, rolled inputs are as fast with 64 rows, and slower
# with 256 (benchmarks/circulant.py).
_MANY_ROWS = 128


def block_circulant(x: Array, kernel: Array, block: int) -> Array:
    """Computes `x @ W` with the block-circulant matrix `W` `[K, N]` that `kernel` stores.

    The entries of a block are `W[p, q] = c[(p - q) mod b]`. With the input rolled b times, the product is an ordinary
    one with the stored numbers: as many multiplications as with the dense matrix, but b times fewer weights to read.
    Only the gradients of 128 rows or more form the matrix, because they spend little time on reading weights.

    It is differentiable, and a heterogeneous matmul under `vmap` over kernels.

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
    has_many_rows = not jax.export.is_symbolic_dim(rows.shape[0]) and rows.shape[0] >= _MANY_ROWS
    out: Any = _many_rows(rows, kernel, block) if has_many_rows else _rolled(rows, kernel, block)
    return out.reshape(*x.shape[:-1], out.shape[-1])


def to_dense(kernel: Array, block: int) -> Array:
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
    dx, dw = product_gradients(x, to_dense(kernel, block), g)
    dw = dw.reshape(rows // block, block, columns, block)
    # Each number fills one diagonal of its block.
    dkernel = sum(jnp.roll(dw[..., q], -q, axis=1) for q in range(block))
    return dx.astype(x.dtype), jnp.reshape(dkernel, kernel.shape).astype(kernel.dtype)


_many_rows.defvjp(_many_rows_forward, _many_rows_backward)
