"""Heterogeneous matmul in plain XLA: the reference, and what runs everywhere."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array

# A matrix-vector product over a [K, N] kernel is bound by memory. XLA on CPU reads the kernel of one long product at
# 17 GB/s, of the same product cut into chunks of 88 to 968 rows at 30 GB/s, of chunks of 64 rows or fewer at 15 GB/s
# (7744 x 512, 64 kernels, float32, 2 cores). So on CPU K is cut, unless nothing in that range divides it.
_MIN_CHUNK, _BEST_CHUNK, _MAX_CHUNK = 88, 352, 968
# With 1, 2, 4, 8, 16 rows a kernel the cut product takes 0.5, 0.7, 0.8, 0.7, 0.7 of the time; more were not measured.
_MAX_CHUNKED_ROWS = 16


def chunk_length(rows: int, k: int) -> int | None:
    """Length of the pieces the contraction is cut into, or None to leave it whole.

    Args:
      rows: rows each kernel is multiplied with.
      k: length of the contraction.

    Returns:
      The divisor of `k` nearest to the best measured length (in ratio), if few enough rows make the product
      one of matrix and vector and a divisor lies in the measured range.
    """
    if rows > _MAX_CHUNKED_ROWS:
        return None
    candidates = [c for c in range(_MIN_CHUNK, min(_MAX_CHUNK, k // 2) + 1) if k % c == 0]
    return min(candidates, key=lambda c: abs(math.log(c / _BEST_CHUNK)), default=None)


def matmul_xla(x: Array, w: Array, index: Array | None = None) -> Array:
    """`out[b] = x[b] @ w[index[b]]` as batched products; with `index`, the chosen kernels are gathered first.

    Args:
      x: `[B, M, K]`.
      w: `[P, K, N]`.
      index: int `[B]`, or None for the identity (`B == P`).

    Returns:
      `[B, M, N]`.
    """
    if index is not None:
        w = w[index]
    chunk = chunk_length(x.shape[1], x.shape[2])
    if chunk is None:
        return _whole(x, w)
    return lax.platform_dependent(x, w, cpu=partial(_chunked, chunk=chunk), default=_whole)


def _whole(x: Array, w: Array) -> Array:
    return jnp.einsum("bmk,bkn->bmn", x, w)


def _chunked(x: Array, w: Array, chunk: int) -> Array:
    b, m, k = x.shape
    n = w.shape[-1]
    dtype = jnp.result_type(x, w)
    # Partial sums in float32 at least: half precision would round each of them.
    parts = jnp.einsum(
        "bmck,bckn->bcmn",
        x.reshape(b, m, k // chunk, chunk),
        w.reshape(b, k // chunk, chunk, n),
        preferred_element_type=jnp.promote_types(dtype, jnp.float32),
    )
    return parts.sum(1).astype(dtype)
