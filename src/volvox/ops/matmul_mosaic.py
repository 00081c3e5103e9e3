"""Heterogeneous matmul as Pallas kernels for NVIDIA's data centre GPUs: Hopper, and in part Blackwell.

Both kernels read weights in place, without gathering them. With few rows for each kernel the product is bound by
reading weights: `_streamed` moves tiles of weights through shared memory and multiplies them on ordinary cores, up to 8
rows at a time, in float32. With many rows, such as patches of a convolution, `_tiled` multiplies half-precision
operands on the tensor cores. Both keep sums in float32.

Bias and activation are not part of the kernels, because XLA fuses them into the following operations, and because they
are only `N` numbers for each row, against `K * N` weights.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from volvox.ops.matmul_xla import sorted_by_kernel
from volvox.types import Array

Shaped = Array | jax.ShapeDtypeStruct

_MAX_STREAMED_ROWS = 16
_ROWS_AT_ONCE = 8
# Largest number of times that a kernel is read for the rows that share it; beyond, XLA uses tensor cores. Not measured.
_MAX_READINGS = 4
# Columns of a streamed tile: one for each thread of a warpgroup.
_COLUMNS = 128
# Bytes for tiles in flight: two blocks fit into a multiprocessor.
_SHARED_BYTES = 100 * 1024


class Streamed(NamedTuple):
    """Tile sizes of `_streamed`.

    Attributes:
      rows: Rows that share one reading of a kernel.
      tile_k: Rows of a tile of weights.
      stages: Tiles in flight.
    """

    rows: int
    tile_k: int
    stages: int


class Tiled(NamedTuple):
    """Tile sizes of `_tiled`.

    Attributes:
      tile_m: Rows of a tile of `x` and of the result.
      tile_k: Length of the contraction in a tile.
      tile_n: Columns of a tile of `w` and of the result.
      stages: Tiles in flight.
    """

    tile_m: int
    tile_k: int
    tile_n: int
    stages: int


@cache
def capability() -> tuple[int, int] | None:
    """Returns the compute capability of this machine's first NVIDIA GPU; None if it has none."""
    try:
        device: Any = jax.devices("cuda")[0]
    except RuntimeError:
        return None
    major, minor = device.compute_capability.split(".")
    return int(major), int(minor)


def plan(x: Shaped, w: Shaped, index: Shaped | None = None, *, on: tuple[int, int] | None) -> Streamed | Tiled | None:
    """Chooses the kernel for these operands, and its tile sizes.

    Args:
      x: `[B, M, K]`.
      w: `[P, K, N]`.
      index: `int [B]`, or None.
      on: Compute capability of the GPU; None if there is none.

    Returns:
      The tile sizes; None if there is no kernel for these operands.
    """
    # Later GPUs than the Blackwell of data centres (10) have less shared memory.
    if on is None or on[0] not in (9, 10) or 0 in (*x.shape, *w.shape):
        return None
    (b, m, k), (p, _, n) = x.shape, w.shape
    floating = (jnp.float32, jnp.bfloat16, jnp.float16)
    if x.dtype not in floating or w.dtype not in floating:
        return None
    if m <= _MAX_STREAMED_ROWS:
        # Copies into shared memory are multiples of 128 bytes.
        tile_k = next((size for size in (64, 32) if k % size == 0), None)
        if tile_k is None or n % _COLUMNS:
            return None
        each = m if index is None else -(-b * m // p)
        if each > _MAX_READINGS * _ROWS_AT_ONCE:
            return None
        rows = min(_ROWS_AT_ONCE, 1 << (each - 1).bit_length())
        tile = tile_k * (_COLUMNS * w.dtype.itemsize + rows * 4)
        return Streamed(rows, tile_k, min(_SHARED_BYTES // tile, 8, k // tile_k))
    # Blackwell has other tensor core instructions.
    if on[0] == 9 and x.dtype == w.dtype and x.dtype != jnp.float32:
        tile_n = next((size for size in (128, 64, 32, 16) if n % size == 0), None)
        if k % 64 or tile_n is None:
            return None
        tile_m = 128 if m > 64 and tile_n <= 64 else 64
        return Tiled(tile_m, 64, tile_n, min(4, k // 64))
    return None


def matmul_mosaic(x: Array, w: Array, index: Array | None = None, *, how: Streamed | Tiled) -> Array:
    """Computes `out[b] = x[b] @ w[index[b]]`.

    Args:
      x: `[B, M, K]`.
      w: `[P, K, N]`.
      index: `int [B]`, or None for the identity (`B == P`).
      how: The result of `plan` for these operands.

    Returns:
      `[B, M, N]` of the promoted dtype.
    """
    if isinstance(how, Tiled):
        return _tiled(x, w, jnp.arange(x.shape[0]) if index is None else index, how)
    out = _by_blocks(x, w, how) if index is None else _by_groups(x, w, index, how)
    return out.astype(jnp.result_type(x, w))


def _by_blocks(x: Array, w: Array, how: Streamed) -> Array:
    """Multiplies the rows of each block, `how.rows` at a time, with the block's own kernel."""
    b, m, k = x.shape
    items = -(-m // how.rows)
    padded = jnp.pad(x, ((0, 0), (0, items * how.rows - m), (0, 0)))
    kernel = jnp.repeat(jnp.arange(b), items, total_repeat_length=b * items)
    out = _streamed(padded.reshape(b * items, how.rows, k), w, kernel, how)
    return out.reshape(b, items * how.rows, -1)[:, :m]


def _by_groups(x: Array, w: Array, index: Array, how: Streamed) -> Array:
    """Puts the rows of one kernel side by side, `how.rows` to an item; an item without rows names no kernel."""
    (b, m, k), p = x.shape, w.shape[0]
    num_rows = b * m
    groups = sorted_by_kernel(jnp.repeat(index, m, total_repeat_length=num_rows), p)
    num_items = min(p, num_rows) + num_rows // how.rows if how.rows > 1 else num_rows
    items = -(-groups.size // how.rows)
    place = jnp.arange(num_rows) - groups.start[groups.kernel]  # position within its group
    item = (jnp.cumsum(items) - items)[groups.kernel] + place // how.rows
    slot = place % how.rows
    rows = jnp.zeros((num_items, how.rows, k), x.dtype).at[item, slot].set(x.reshape(num_rows, k)[groups.order])
    kernel = jnp.full(num_items, -1).at[item].set(groups.kernel)
    out = _streamed(rows, w, kernel, how)[item, slot]
    return jnp.zeros_like(out).at[groups.order].set(out).reshape(b, m, -1)


def _streamed(x: Array, w: Array, kernel: Array, how: Streamed) -> Array:
    """Computes `out[t] = x[t] @ w[kernel[t]]` in float32, x `[T, rows, K]`; a negative kernel `[T]` skips an item."""
    from jax.experimental.pallas import mosaic_gpu as plgpu  # slow to import

    (t, rows, k), n = x.shape, w.shape[2]

    def streamed_matmul(x_gmem, w_gmem, kernel_gmem, out_gmem, out_smem):
        item, column = jax.lax.axis_index("item"), jax.lax.axis_index("column")
        which = kernel_gmem[item]

        def zeros():
            # Zeros are read back, so that they are laid out in registers as weights are.
            return tuple(out_smem[row] for row in range(rows))

        def add_tile(_, x_smem, w_smem, sums):
            def add_eight(i, parts):
                for place in (i * 8 + j for j in range(8)):
                    weights = w_smem[place].astype(jnp.float32)
                    parts = tuple(part + weights * x_smem[row, place] for row, part in enumerate(parts))
                return parts

            # Each tile has its own sum: one sum over thousands of products would have five times the rounding error.
            parts = jax.lax.fori_loop(0, how.tile_k // 8, add_eight, zeros())
            return tuple(total + part for total, part in zip(sums, parts, strict=True))

        @pl.when(which >= 0)
        def _():
            out_smem[...] = jnp.zeros((rows, _COLUMNS), jnp.float32)
            specs = [
                plgpu.BlockSpec((rows, how.tile_k), lambda step: (0, step)),
                plgpu.BlockSpec((how.tile_k, _COLUMNS), lambda step: (step, column)),
            ]
            options: Any = {"max_concurrent_steps": how.stages, "init_carry": zeros()}
            pipeline = plgpu.emit_pipeline(add_tile, grid=(k // how.tile_k,), in_specs=specs, **options)
            for row, total in enumerate(pipeline(x_gmem.at[item], w_gmem.at[which])):
                out_smem[row] = total
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[item, :, pl.ds(column * _COLUMNS, _COLUMNS)])
            plgpu.wait_smem_to_gmem(0)

    call = plgpu.kernel(
        streamed_matmul,
        out_type=jax.ShapeDtypeStruct((t, rows, n), jnp.float32),
        grid=(n // _COLUMNS, t),
        grid_names=("column", "item"),
        scratch_types=[plgpu.SMEM((rows, _COLUMNS), jnp.float32)],
    )
    return call(x.astype(jnp.float32), w, kernel.astype(jnp.int32))


def _tiled(x: Array, w: Array, index: Array, how: Tiled) -> Array:
    """Computes `out[b] = x[b] @ w[index[b]]` on the tensor cores, in the operands' half precision.

    The rows of each block are padded to whole tiles, which copies them.
    """
    from jax.experimental.pallas import mosaic_gpu as plgpu

    m = x.shape[1]
    x = jnp.pad(x, ((0, 0), (0, -m % how.tile_m), (0, 0)))
    (b, padded, k), n = x.shape, w.shape[2]
    # Both operands of the instruction must have the same layout in shared memory.
    swizzle = plgpu.find_swizzle(min(how.tile_n, how.tile_k) * x.dtype.itemsize * 8)
    transforms = (plgpu.TilingTransform((8, swizzle // x.dtype.itemsize)), plgpu.SwizzleTransform(swizzle))

    def tiled_matmul(x_gmem, w_gmem, index_gmem, out_gmem, out_smem):
        row, column, block = (jax.lax.axis_index(name) for name in ("row", "column", "block"))
        which = index_gmem[block]

        def product(sums):
            def multiply(_, x_smem, w_smem):
                plgpu.wgmma(sums, x_smem, w_smem)
                plgpu.wgmma_wait(0)

            specs = [
                plgpu.BlockSpec((how.tile_m, how.tile_k), lambda step: (row, step), transforms=transforms),
                plgpu.BlockSpec((how.tile_k, how.tile_n), lambda step: (step, column), transforms=transforms),
            ]
            grid, stages = (k // how.tile_k,), how.stages
            pipeline = plgpu.emit_pipeline(multiply, grid=grid, in_specs=specs, max_concurrent_steps=stages)
            pipeline(x_gmem.at[block], w_gmem.at[which])
            return sums[...]

        sums = pl.run_scoped(product, plgpu.WGMMAAccumulatorRef((how.tile_m, how.tile_n), jnp.float32))
        out_smem[...] = sums.astype(out_smem.dtype)
        plgpu.commit_smem()
        rows, columns = pl.ds(row * how.tile_m, how.tile_m), pl.ds(column * how.tile_n, how.tile_n)
        plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[block, rows, columns])
        plgpu.wait_smem_to_gmem(0)

    call = plgpu.kernel(
        tiled_matmul,
        out_type=jax.ShapeDtypeStruct((b, padded, n), x.dtype),
        grid=(padded // how.tile_m, n // how.tile_n, b),
        grid_names=("row", "column", "block"),
        scratch_types=[plgpu.SMEM((how.tile_m, how.tile_n), x.dtype, transforms=transforms)],
    )
    return call(x, w, index.astype(jnp.int32))[:, :m]
