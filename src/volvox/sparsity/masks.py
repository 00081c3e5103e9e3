"""Kernels cut into groups of weights, the masks that say which groups live, and what must be stored of both.

Masks save no time on dense arithmetic: what they save is what must be stored.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.ops.flat import is_kernel, leaf_path
from volvox.types import Array, ArrayTree

_BITS = 32
"""Of a stored weight."""


class Kernel(NamedTuple):
    """How a kernel is cut into groups of weights that live or die together: `[rows, group, columns]`.

    Attributes:
      rows: R, number of groups along the input axis.
      group: g, numbers in a group, consecutive along the input axis of one column.
      columns: F.
      block: Weights that each number stands for: b of a block-circulant kernel, whose groups are its blocks; 1 of
        others.
    """

    rows: int
    group: int
    columns: int
    block: int

    @property
    def sides(self) -> tuple[int, int]:
        """(inputs, outputs) of the matrix that the kernel stands for."""
        return self.rows * self.group, self.columns * self.block


class SparseState(NamedTuple):
    """State of an optimiser made by `sparse`.

    Attributes:
      inner: State of the wrapped optimiser, 0 where masked.
      masks: As the parameters: bool `[R, 1, F]` of a kernel `[R, g, F]`, or a scalar True where all weights live.
      schedule: State of the rule's schedule; () without one.
      step: int32, the number of the latest update.
      key: uint32 `[2]`, threefry key data from which, together with the step, the rule draws.
    """

    inner: ArrayTree
    masks: ArrayTree
    schedule: ArrayTree
    step: Array
    key: Array


def kernels(params: ArrayTree) -> dict[str, Kernel]:
    """Returns the kernels among parameters, by name.

    Kernels are parameters of two or more dimensions, `[inputs..., outputs]`, except those named "bias" or "scale".
    Those named "circulant", `[K / b, b, N / b]`, are cut into their blocks, others into single weights.

    Raises:
      ValueError: a block-circulant kernel with further axes, such as one of several learners.
    """
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        name = "/".join(leaf_path(path))
        if leaf_path(path)[-1] == "circulant":
            if leaf.ndim != 3:
                raise ValueError(
                    f"{name} is {list(leaf.shape)}, a block-circulant kernel [K / b, b, N / b]: of several learners or "
                    "members, give the parameters of one."
                )
            found[name] = Kernel(*leaf.shape, block=leaf.shape[1])
        elif is_kernel(path, leaf):
            found[name] = Kernel(leaf.size // leaf.shape[-1], 1, leaf.shape[-1], block=1)
    return found


def masks_of(state: ArrayTree) -> ArrayTree:
    """Returns the masks in an optimiser's state, wherever `sparse` stands in it; those of the first of several.

    They have shapes of their own, see `SparseState.masks`; `pruned` puts them on parameters.

    Raises:
      ValueError: there are none.
    """
    if not (found := sparse_states(state)):
        raise ValueError("this state is of no sparse optimiser: make it by volvox.sparsity.sparse.")
    return found[0].masks


def is_sparse(state: ArrayTree) -> bool:
    """Returns whether there are masks in an optimiser's state."""
    return bool(sparse_states(state))


def sparse_states(state: ArrayTree) -> list[SparseState]:
    """Returns all states of sparse optimisers within a state, in its order."""
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, SparseState))
    return [x for x in leaves if isinstance(x, SparseState)]


def pruned(params: ArrayTree, state: ArrayTree) -> ArrayTree:
    """Returns the parameters with 0 where the masks in an optimiser's state say so.

    Raises:
      ValueError: there are no masks, or they are of other parameters.
    """
    masks = masks_of(state)
    check_masks(params, masks)
    return masked(params, masks)


def table(params: ArrayTree, masks: ArrayTree | None = None) -> list[dict[str, Any]]:
    """Returns what must be stored, layer by layer and in all.

    Args:
      params: pytree of parameters; block-circulant kernels are recognised by the name "circulant".
      masks: as the parameters (`masks_of`); None: all weights live.

    Returns:
      Rows with `name`, `shape` (of what is stored), `weights` (of the dense network, its inputs padded to whole
      blocks), `stored` (numbers), `index_bits` (which say where these belong: one a group, where some groups are dead),
      `density` (stored over weights, indices not counted) and `compression` (one minus that, indices counted). The last
      row is named "all".

    Raises:
      ValueError: masks of other parameters.
    """
    live = jax.tree.map(lambda x: jnp.ones((), bool), params) if masks is None else masks
    check_masks(params, live)
    found = kernels(params)
    rows = []
    for (name, leaf), mask in zip(by_name(params).items(), jax.tree.leaves(live), strict=True):
        alive = np.asarray(mask)
        stored = int(alive.sum()) * (leaf.size // alive.size)
        weights = leaf.size * (found[name].block if name in found else 1)
        rows.append(_row(name, list(leaf.shape), weights, stored, 0 if alive.all() else alive.size))
    rows.append(_row("all", [], *(sum(row[key] for row in rows) for key in ("weights", "stored", "index_bits"))))
    return rows


def compression(params: ArrayTree, masks: ArrayTree | None = None) -> float | None:
    """Returns the share of the dense network's weights that need not be stored, indices counted; see `table`.

    Args:
      params: pytree of parameters.
      masks: as the parameters; None: all weights live.

    Returns:
      The share; None without masks and block-circulant kernels, where nothing could be saved.
    """
    if masks is None and all(kernel.block == 1 for kernel in kernels(params).values()):
        return None
    return table(params, masks)[-1]["compression"]


def by_name(tree: ArrayTree) -> dict[str, Any]:
    """Returns the leaves by their path, such as "Dense_0/kernel", in the order of the tree."""
    return {"/".join(leaf_path(path)): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def check_masks(params: ArrayTree, masks: ArrayTree) -> None:
    """Raises ValueError for masks that do not match parameters, naming the first difference."""
    leaves, flags = by_name(params), by_name(masks)
    for name in dict.fromkeys([*leaves, *flags]):
        if name not in leaves or name not in flags:
            raise ValueError(f"masks do not match the parameters: {name} is in only one of them.")
        leaf, mask = leaves[name], flags[name]
        fits = mask.ndim == 0 or (
            mask.ndim == 3
            and leaf.ndim >= 2
            and (leaf.size // leaf.shape[-1]) % mask.shape[0] == 0
            and mask.shape[1:] == (1, leaf.shape[-1])
        )
        if not fits:
            raise ValueError(
                f"masks do not match the parameters: {name} is {list(leaf.shape)}, its mask {list(mask.shape)}."
            )


def masked(tree: ArrayTree, masks: ArrayTree) -> ArrayTree:
    """Returns the tree with 0 where masks are False."""
    return jax.tree.map(lambda x, mask: where(mask, x, jnp.zeros_like(x)), tree, masks)


def where(mask: Array, x: Array, other: Array) -> Array:
    """`jnp.where` of a leaf and its mask, a scalar or `[R, 1, F]`."""
    if mask.ndim == 0:
        return jnp.where(mask, x, other)
    return jnp.where(mask, in_groups(x, mask), in_groups(other, mask)).reshape(x.shape)


def in_groups(x: Array, mask: Array) -> Array:
    """Returns a leaf as `[R, g, F]`, cut as its mask `[R, 1, F]`."""
    return x.reshape(mask.shape[0], -1, mask.shape[2])


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
