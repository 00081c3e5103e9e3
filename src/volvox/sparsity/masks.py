"""Kernels cut into groups of weights, masks of the groups that are kept, and the storage that both need.

Masks save no time in dense arithmetic. They save storage.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.ops.flat import by_path, is_kernel, leaf_path
from volvox.types import Array, ArrayTree

_BITS = 32
"""Bits of a stored weight."""


class Kernel(NamedTuple):
    """The weights of a kernel, in the smallest groups that a mask can keep or prune.

    Attributes:
      weights: `[R, g, F]`: R groups along the input axis, of g numbers each, in each of F columns. The groups of a
        block-circulant kernel are its blocks; other kernels have `g = 1`.
      block: Weights that each number stands for: b in a block-circulant kernel, 1 in others.
    """

    weights: Array
    block: int

    @property
    def sides(self) -> tuple[int, int]:
        """(inputs, outputs) of the matrix that the kernel stands for."""
        rows, group, columns = self.weights.shape
        return rows * group, columns * self.block

    @property
    def mask_shape(self) -> tuple[int, int, int]:
        """Shape `[R, 1, F]` of its mask."""
        rows, _, columns = self.weights.shape
        return rows, 1, columns


class SparseState(NamedTuple):
    """State of an optimiser made by `sparse`.

    Attributes:
      inner: State of the wrapped optimiser, 0 where masked.
      masks: Shaped as the parameters: bool `[R, 1, F]` for a kernel `[R, g, F]`, or a scalar True for a dense leaf.
      schedule: State of the rule's schedule; () without a schedule.
      step: int32: Number of the latest update.
      key: Random key of the rule; it is folded with the step.
    """

    inner: ArrayTree
    masks: ArrayTree
    schedule: ArrayTree
    step: Array
    key: Array


def by_name(tree: ArrayTree) -> dict[str, Any]:
    """Returns the leaves by their path, such as "Dense_0/kernel", in the order of the tree."""
    return {"/".join(path): leaf for path, leaf in by_path(tree).items()}


def kernels(params: ArrayTree) -> dict[str, Kernel]:
    """Returns the kernels among parameters, by name.

    Kernels are parameters of two or more dimensions, `[inputs..., outputs]`, except those named "bias" or "scale".
    Kernels named "circulant", `[..., K / b, b, N / b]`, are cut into their blocks, others into single weights.
    """
    found = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        name = "/".join(leaf_path(path))
        if leaf_path(path)[-1:] == ("circulant",):
            found[name] = Kernel(leaf.reshape(-1, *leaf.shape[-2:]), block=leaf.shape[-2])
        elif is_kernel(path, leaf):
            found[name] = Kernel(leaf.reshape(-1, 1, leaf.shape[-1]), block=1)
    return found


def sparse_states(state: ArrayTree) -> list[SparseState]:
    """Returns all states of sparse optimisers within an optimiser's state."""
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, SparseState))
    return [x for x in leaves if isinstance(x, SparseState)]


def is_sparse(state: ArrayTree) -> bool:
    """Returns whether an optimiser's state contains masks."""
    return bool(sparse_states(state))


def masks_of(state: ArrayTree) -> ArrayTree:
    """Returns the masks in an optimiser's state; the first ones if it contains several.

    `SparseState.masks` describes their shapes. `pruned` applies them to parameters.

    Raises:
      ValueError: There are no masks.
    """
    if not (found := sparse_states(state)):
        raise ValueError("the state belongs to no sparse optimiser; make one with volvox.sparsity.sparse")
    return found[0].masks


def pruned(params: ArrayTree, state: ArrayTree) -> ArrayTree:
    """Returns the parameters with 0 where the masks in an optimiser's state prune them.

    Raises:
      ValueError, TypeError: There are no masks, or they belong to other parameters.
    """
    return apply_masks(params, masks_of(state))


def pruned_if_sparse(params: ArrayTree, state: ArrayTree) -> ArrayTree:
    """Returns the parameters, with 0 where the state of a sparse optimiser prunes them."""
    return pruned(params, state) if is_sparse(state) else params


def table(params: ArrayTree, masks: ArrayTree | None = None) -> list[dict[str, Any]]:
    """Returns the storage that parameters need, by layer and in all.

    Args:
      params: Pytree of parameters. Kernels named "circulant" are block-circulant.
      masks: Masks of the parameters (`masks_of`); None keeps all weights.

    Returns:
      Rows with `name`, `shape` (as stored), `weights` (of the dense network, its inputs padded to whole blocks),
      `stored` (numbers), `index_bits` (one for each group of a kernel of which some groups are pruned), `density`
      (stored over weights, without indices) and `compression` (one minus stored over weights, with indices). The last
      row is named "all".

    Raises:
      ValueError, TypeError: The masks belong to other parameters.
    """
    masks = jax.tree.map(lambda x: jnp.ones((), bool), params) if masks is None else masks
    jax.eval_shape(apply_masks, params, masks)  # raises an error if they do not match
    found, rows = kernels(params), []
    for (name, leaf), mask in zip(by_name(params).items(), jax.tree.leaves(masks), strict=True):
        mask = np.asarray(mask)
        weights = leaf.size * (found[name].block if name in found else 1)
        stored, index_bits = int(mask.sum()) * (leaf.size // mask.size), 0 if mask.all() else mask.size
        rows.append(
            {"name": name, "shape": list(leaf.shape), "weights": weights, "stored": stored, "index_bits": index_bits}
        )
    total = {name: sum(row[name] for row in rows) for name in ("weights", "stored", "index_bits")}
    rows.append({"name": "all", "shape": [], **total})
    for row in rows:
        weights = max(row["weights"], 1)
        row["density"] = row["stored"] / weights
        row["compression"] = 1 - (row["stored"] + row["index_bits"] / _BITS) / weights
    return rows


def is_grouped(params: ArrayTree) -> bool:
    """Returns whether there are block-circulant kernels among the parameters of one or several learners."""
    return any(name.rpartition("/")[2] == "circulant" for name in by_name(params))


def apply_masks(tree: ArrayTree, masks: ArrayTree) -> ArrayTree:
    """Returns the tree with 0 where masks are False."""
    return jax.tree.map(lambda x, mask: where(mask, x, jnp.zeros_like(x)), tree, masks)


def where(mask: Array, x: Array, other: Array) -> Array:
    """`jnp.where` for a leaf and its mask, which is a scalar or `[R, 1, F]`."""
    if mask.ndim == 0:
        return jnp.where(mask, x, other)
    return jnp.where(mask, in_groups(x, mask), in_groups(other, mask)).reshape(x.shape)


def in_groups(x: Array, mask: Array) -> Array:
    """Returns a leaf as `[R, g, F]`, cut as its mask `[R, 1, F]`."""
    return x.reshape(mask.shape[0], -1, x.shape[-1])  # another number of columns does not broadcast with the mask
