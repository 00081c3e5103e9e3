"""Heterogeneous matmul in plain XLA, which runs everywhere."""

import math
from functools import partial
from typing import NamedTuple

import chex
import jax.numpy as jnp
from jax import lax

from volvox.types import Array

# A matrix-vector product with a [K, N] kernel is bound by memory. XLA on CPU reads the kernel at 17 GB/s in one long
# product, at 30 GB/s in chunks of 88 to 968 rows, and at 15 GB/s in chunks of 64 rows or fewer (7744 x 512, 64 kernels,
# float32, 2 cores). So K is cut on CPU, unless it has no divisor in that range.
_MIN_CHUNK, _BEST_CHUNK, _MAX_CHUNK = 88, 352, 968
# With 1, 2, 4, 8, 16 rows for each kernel the cut product takes 0.5, 0.7, 0.8, 0.7, 0.7 of the time; more rows were not
# measured. With 4 to 8 rows, chunks half as long take 0.93 of the time (a processor with 1 MB of L2).
_MAX_CHUNKED_ROWS = 16


def chunk_length(rows: int, k: int) -> int | None:
    """Returns the length of the chunks of a contraction, or None to leave it whole.

    Args:
      rows: Rows for each kernel.
      k: Length of the contraction.

    Returns:
      The divisor of `k` whose ratio to the best measured length is nearest to 1; None if the product is not bound by
      memory because of its many rows, or if no divisor lies in the measured range.
    """
    if rows > _MAX_CHUNKED_ROWS:
        return None
    candidates = [c for c in range(_MIN_CHUNK, min(_MAX_CHUNK, k // 2) + 1) if k % c == 0]
    best = _BEST_CHUNK if rows == 1 else _BEST_CHUNK // 2
    return min(candidates, key=lambda c: abs(math.log(c / best)), default=None)


# Kernels up to this size are gathered for each block of rows, because sorting would cost as much.
_SMALL = 2**14


def matmul_xla(x: Array, w: Array, index: Array | None = None) -> Array:
    """Computes `out[b] = x[b] @ w[index[b]]` as batched products.

    With `index`, blocks are sorted by kernel, so that kernels are not gathered. Small kernels, the kernel of a single
    block, and on GPUs kernels that are small beside the rows of a block, are gathered.

    Args:
      x: `[B, M, K]`.
      w: `[P, K, N]`.
      index: `int [B]`, or None for the identity (`B == P`).

    Returns:
      `[B, M, N]`.
    """
    chex.assert_rank([x, w], 3)
    if index is None:
        return _paired(x, w)
    if w.shape[0] == 1:
        return _paired(x.reshape(1, -1, x.shape[2]), w).reshape(*x.shape[:2], w.shape[2])
    if x.shape[0] <= 1 or w.shape[1] * w.shape[2] <= _SMALL:
        return _gathered(x, w, index)
    # `ragged_dot` multiplies all rows with all kernels on a GPU, and needs memory in proportion, so many rows gather.
    elsewhere = _gathered if w.shape[2] <= 2 * x.shape[1] else _ragged
    return lax.platform_dependent(x, w, index, cpu=_grouped, default=elsewhere)


def _paired(x: Array, w: Array) -> Array:
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
    # Partial sums are at least float32, because half precision would round each of them. Integers stay exact.
    sums = dtype if jnp.issubdtype(dtype, jnp.integer) else jnp.promote_types(dtype, jnp.float32)
    parts = jnp.einsum(
        "bmck,bckn->bcmn",
        x.reshape(b, m, k // chunk, chunk),
        w.reshape(b, k // chunk, chunk, n),
        preferred_element_type=sums,
    )
    return parts.sum(1).astype(dtype)


def _gathered(x: Array, w: Array, index: Array) -> Array:
    return _paired(x, w[index])


class Sorted(NamedTuple):
    """Row blocks sorted by kernel.

    Attributes:
      order: `int32 [B]`: the block at each position.
      kernel: `int32 [B]`: the kernel of the block at each position.
      size: `int32 [P]`: number of blocks of each kernel.
      start: `int32 [P]`: position of the first block of each kernel.
    """

    order: Array
    kernel: Array
    size: Array
    start: Array


def sorted_by_kernel(index: Array, num_kernels: int) -> Sorted:
    """Sorts row blocks by their kernels `index` `[B]`."""
    chex.assert_rank(index, 1)
    order = jnp.argsort(index, stable=True)
    size = jnp.zeros(num_kernels, jnp.int32).at[index].add(1)
    return Sorted(order, index[order], size, jnp.cumsum(size) - size)


def _ragged(x: Array, w: Array, index: Array) -> Array:
    groups, m = sorted_by_kernel(index, w.shape[0]), x.shape[1]
    rows = x[groups.order].reshape(-1, x.shape[2])
    out = lax.ragged_dot(rows, w, groups.size * m).reshape(*x.shape[:2], w.shape[2])
    return jnp.zeros_like(out).at[groups.order].set(out)


# On CPU a loop copies each kernel that it takes out of `w`, at three times the cost of reading it, while one product
# over all kernels reads each kernel once, needed or not. So if most kernels are in use, one product over all kernels
# takes a few blocks of each (7744 x 512, 64 blocks, 20 kernels: 10.8 ms against 15 ms in a loop), and a loop takes the
# other blocks (one kernel for all: 2.5 ms, against 1.8 ms without an index). A few blocks are the mean number of blocks
# of a kernel, or twice that if some kernel has more.
_MOST = 0.75


def _grouped(x: Array, w: Array, index: Array) -> Array:
    b, p = x.shape[0], w.shape[0]
    groups = sorted_by_kernel(index, p)
    x = x[groups.order]
    place = jnp.arange(b) - groups.start[groups.kernel]  # within its group
    mean = 1 << (math.ceil(b / p) - 1).bit_length()
    capacities = (0, mean, min(2 * mean, b))
    most = (groups.size > 0).sum() > _MOST * p
    chosen = jnp.where(most, 1 + (groups.size.max() > mean), 0)
    out = lax.switch(chosen, [partial(_over_all, x, w, groups, place, capacity) for capacity in capacities])
    done = jnp.array(capacities)[chosen]
    out = lax.fori_loop(0, p, partial(_rest_of, x, w, groups, done), out)
    return jnp.zeros_like(out).at[groups.order].set(out)


def _over_all(x: Array, w: Array, groups: Sorted, place: Array, capacity: int) -> Array:
    """Multiplies at most `capacity` first blocks of each kernel; rows of other blocks are arbitrary."""
    (b, m, k), (p, _, n) = x.shape, w.shape
    dtype = jnp.result_type(x, w)
    if capacity == 0:
        return jnp.zeros((b, m, n), dtype)
    blocks = x[jnp.minimum(groups.start[:, None] + jnp.arange(capacity), b - 1)]
    products = _paired(blocks.reshape(p, capacity * m, k), w).reshape(p, capacity, m, n)
    return products[groups.kernel, jnp.minimum(place, capacity - 1)].astype(dtype)


def _rest_of(x: Array, w: Array, groups: Sorted, done: Array, g: Array, out: Array) -> Array:
    """Multiplies the blocks of kernel g after the first `done`, padded to a power of two of blocks."""
    b = x.shape[0]
    begin, end = groups.start[g] + done, groups.start[g] + groups.size[g]
    sizes = [1 << i for i in range((b - 1).bit_length())] + [b]
    smallest = sum((end - begin > size).astype(jnp.int32) for size in sizes[:-1])
    branches = [partial(_over_some, x, w, g, begin, end, size) for size in sizes]
    return lax.cond(end > begin, lambda out: lax.switch(smallest, branches, out), lambda out: out, out)


def _over_some(x: Array, w: Array, g: Array, begin: Array, end: Array, size: int, out: Array) -> Array:
    """Multiplies `size` blocks with kernel g, and writes the products of blocks `begin` to `end` to `out`."""
    (b, m, k), n = x.shape, w.shape[2]
    first = jnp.minimum(begin, b - size)
    blocks = lax.dynamic_slice_in_dim(x, first, size)
    products = _paired(blocks.reshape(1, size * m, k), w[g][None]).reshape(size, m, n)
    places = first + jnp.arange(size)
    inside = ((places >= begin) & (places < end))[:, None, None]
    kept = jnp.where(inside, products.astype(out.dtype), lax.dynamic_slice_in_dim(out, first, size))
    return lax.dynamic_update_slice_in_dim(out, kept, first, 0)
