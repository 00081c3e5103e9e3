"""Heterogeneous matmul as a Pallas kernel for NVIDIA's data centre GPUs, Hopper and Blackwell.

It serves rows that name their kernels by index, a few rows for each kernel, such as members that descend from a few
bases. Rows of one kernel are put side by side, and weights are read in place, without gathering them: tiles of weights
move through shared memory and are multiplied on ordinary cores, up to 8 rows at a time, with sums in float32. On an
H100, 512 rows through 20 kernels `[7744, 512]` take 0.30 ms, and with `ragged_dot` 0.50 ms (`benchmarks/kernels.py`).

If every block of rows has its own kernel, XLA's batched products read weights at the rate of a copy, and so there is no
kernel for them here.

Bias and activation are not part of the kernel, because XLA fuses them into the following operations, and because they
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

_MAX_ROWS = 16
_ROWS_AT_ONCE = 8
# Largest number of times that a kernel is read for the rows that share it; with 64 times, XLA took 0.09 ms of tensor
# cores where reading so often would take a millisecond.
_MAX_READINGS = 4
# Columns of a tile: one for each thread of a warpgroup.
_COLUMNS = 128
# Bytes for tiles in flight: two blocks fit into a multiprocessor.
_SHARED_BYTES = 100 * 1024


class Tiles(NamedTuple):
    """Tile sizes of the kernel.

    Attributes:
      rows: Rows that share one reading of a kernel.
      tile_k: Rows of a tile of weights.
      stages: Tiles in flight.
    """

    rows: int
    tile_k: int
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


def plan(x: Shaped, w: Shaped, index: Shaped | None, *, compute_capability: tuple[int, int] | None) -> Tiles | None:
    """Chooses the tile sizes for these operands.

    Args:
      x: `[B, M, K]`.
      w: `[P, K, N]`.
      index: `int [B]`, or None.
      compute_capability: (major, minor) of the GPU; None if there is none.

    Returns:
      The tile sizes; None if the kernel does not serve these operands.
    """
    # Later GPUs than the Blackwell of data centres (10) have less shared memory.
    if index is None or compute_capability is None or compute_capability[0] not in (9, 10) or 0 in (*x.shape, *w.shape):
        return None
    (b, m, k), (p, _, n) = x.shape, w.shape
    floating = (jnp.float32, jnp.bfloat16, jnp.float16)
    if x.dtype not in floating or w.dtype not in floating:
        return None
    # Copies into shared memory are multiples of 128 bytes.
    tile_k = next((size for size in (64, 32) if k % size == 0), None)
    rows_of_each = -(-b * m // p)
    if tile_k is None or n % _COLUMNS or m > _MAX_ROWS or rows_of_each > _MAX_READINGS * _ROWS_AT_ONCE:
        return None
    rows = min(_ROWS_AT_ONCE, 1 << (rows_of_each - 1).bit_length())
    tile = tile_k * (_COLUMNS * w.dtype.itemsize + rows * 4)
    return Tiles(rows, tile_k, min(_SHARED_BYTES // tile, 8, k // tile_k))


def matmul_mosaic(x: Array, w: Array, index: Array, *, tiles: Tiles) -> Array:
    """Computes `out[b] = x[b] @ w[index[b]]` as `matmul_xla` does, with the `plan` of these operands.

    Rows of one kernel are put side by side, `tiles.rows` to an item; an item without rows names no kernel.
    """
    (b, m, k), p = x.shape, w.shape[0]
    num_rows = b * m
    groups = sorted_by_kernel(jnp.repeat(index, m, total_repeat_length=num_rows), p)
    num_items = min(p, num_rows) + num_rows // tiles.rows if tiles.rows > 1 else num_rows
    items = -(-groups.size // tiles.rows)
    place = jnp.arange(num_rows) - groups.start[groups.kernel]  # position within its group
    item = (jnp.cumsum(items) - items)[groups.kernel] + place // tiles.rows
    slot = place % tiles.rows
    rows = jnp.zeros((num_items, tiles.rows, k), x.dtype).at[item, slot].set(x.reshape(num_rows, k)[groups.order])
    kernel = jnp.full(num_items, -1).at[item].set(groups.kernel)
    out = _streamed(rows, w, kernel, tiles)[item, slot]
    out = jnp.zeros_like(out).at[groups.order].set(out).reshape(b, m, -1)
    return out.astype(jnp.result_type(x, w))


def _streamed(x: Array, w: Array, kernel: Array, tiles: Tiles) -> Array:
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
            parts = jax.lax.fori_loop(0, tiles.tile_k // 8, add_eight, zeros())
            return tuple(total + part for total, part in zip(sums, parts, strict=True))

        @pl.when(which >= 0)
        def _():
            out_smem[...] = jnp.zeros((rows, _COLUMNS), jnp.float32)
            specs = [
                plgpu.BlockSpec((rows, tiles.tile_k), lambda step: (0, step)),
                plgpu.BlockSpec((tiles.tile_k, _COLUMNS), lambda step: (step, column)),
            ]
            options: Any = {"max_concurrent_steps": tiles.stages, "init_carry": zeros()}
            pipeline = plgpu.emit_pipeline(add_tile, grid=(k // tiles.tile_k,), in_specs=specs, **options)
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
