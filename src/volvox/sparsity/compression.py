"""What must be stored of sparse and grouped parameters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox.ops.flat import leaf_path
from volvox.sparsity.masks import check_masks, kernels
from volvox.types import ArrayTree

_BITS = 32
"""Of a stored weight."""


def table(params: ArrayTree, masks: ArrayTree | None = None) -> list[dict[str, Any]]:
    """What is stored, layer by layer, and in all.

    Args:
      params: pytree of parameters; block-circulant kernels are known by the name "circulant".
      masks: as the parameters (`masks_of`); None: all weights live.

    Returns:
      Rows with `name`, `shape` (of what is stored), `weights` (of the dense network, its
      inputs filled up to whole blocks), `stored` (numbers), `index_bits`
      (which say where they stand: one a group, where some are dead), `density` (stored over weights, indices not
      counted) and `compression` (one minus that, indices counted); the last row is named "all".

    Raises:
      ValueError: masks of other parameters.
    """
    live = jax.tree.map(lambda x: jnp.ones((), bool), params) if masks is None else masks
    check_masks(params, live)
    found = kernels(params)
    rows = []
    for (path, leaf), mask in zip(jax.tree_util.tree_flatten_with_path(params)[0], jax.tree.leaves(live), strict=True):
        name = "/".join(leaf_path(path))
        alive = np.asarray(mask)
        stored = leaf.size if mask.ndim == 0 else int(alive.sum()) * (leaf.size // alive.size)
        weights = leaf.size * (found[name].block if name in found else 1)
        rows.append(_row(name, list(leaf.shape), weights, stored, 0 if alive.all() else alive.size))
    rows.append(_row("all", [], *(sum(row[key] for row in rows) for key in ("weights", "stored", "index_bits"))))
    return rows


def compression(params: ArrayTree, masks: ArrayTree | None = None) -> float | None:
    """Share of the dense network's weights that need not be stored, indices counted; see `table`.

    Args:
      params: pytree of parameters.
      masks: as the parameters; None: all weights live.

    Returns:
      The share; None without masks or block-circulant kernels, where nothing could be saved.
    """
    if masks is None and all(kernel.block == 1 for kernel in kernels(params).values()):
        return None
    return table(params, masks)[-1]["compression"]


def _row(name: str, shape: list[int], weights: int, stored: int, index_bits: int) -> dict[str, Any]:
    return {
        "name": name,
        "shape": shape,
        "weights": weights,
        "stored": stored,
        "index_bits": index_bits,
        "density": stored / max(weights, 1),
        "compression": 1 - (stored + index_bits / _BITS) / max(weights, 1),
    }
