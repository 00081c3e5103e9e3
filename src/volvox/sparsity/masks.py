"""Kernels cut into groups of weights, the masks that say which groups live, and what must be stored of both.

Masks save no time on dense arithmetic. They save storage.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.ops.flat import is_kernel, leaf_path
from volvox.types import Array, ArrayTree

_BITS = 32
"""Of a stored weight."""


class Kernel(NamedTuple):
    """The weights of a kernel, in the smallest groups that may live or die.

    Attributes:
      weights: `[R, g, F]`: R groups along the input axis, of g numbers each, in each of F columns. The groups of a
        block-circulant kernel are its blocks; others have `g = 1`.
      block: Weights that each number stands for: b of a block-circulant kernel, 1 of others.
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
      masks: As the parameters: bool `[R, 1, F]` of a kernel `[R, g, F]`, or a scalar True where all weights live.
      schedule: State of the rule's schedule; () without one.
      step: int32: The number of the latest update.
      key: Key of the rule's draws, together with the step.
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
        if leaf_path(path)[-1:] == ("circulant",):
            if leaf.ndim != 3:
                raise ValueError(
                    f"{name} is {list(leaf.shape)}, a block-circulant kernel [K / b, b, N / b]: of several learners or "
                    "members, give the parameters of one."
                )
            found[name] = Kernel(leaf, block=leaf.shape[1])
        elif is_kernel(path, leaf):
            found[name] = Kernel(leaf.reshape(-1, 1, leaf.shape[-1]), block=1)
    return found


def masks_of(state: ArrayTree) -> ArrayTree:
    """Returns the masks in an optimiser's state, wherever `sparse` is in it; the first ones if there are several.

    They have shapes of their own, see `SparseState.masks`; `pruned` puts them on parameters.

    Raises:
      ValueError: there are none.
    """
    if not (found := sparse_states(state)):
        raise ValueError("this is not the state of a sparse optimiser; make one with volvox.sparsity.sparse.")
    return found[0].masks


def is_sparse(state: ArrayTree) -> bool:
    """Returns whether there are masks in an optimiser's state."""
    return bool(sparse_states(state))


def sparse_states(state: ArrayTree) -> list[SparseState]:
    """Returns all states of sparse optimisers within a state, in its order."""
    return [x for x in jax.tree.leaves(state, is_leaf=is_sparse_state) if is_sparse_state(x)]


def is_sparse_state(x: Any) -> bool:
    """Returns whether this is the state of `sparse` itself."""
    return isinstance(x, SparseState)


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
      params: Pytree of parameters; block-circulant kernels are recognised by the name "circulant".
      masks: As the parameters (`masks_of`); None: all weights live.

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
    rows: list[dict[str, Any]] = []
    for (name, leaf), mask in zip(by_name(params).items(), jax.tree.leaves(live), strict=True):
        alive = np.asarray(mask)
        weights = leaf.size * (found[name].block if name in found else 1)
        row = {"name": name, "shape": list(leaf.shape), "weights": weights}
        row["stored"] = int(alive.sum()) * (leaf.size // alive.size)
        rows.append(row | {"index_bits": 0 if alive.all() else alive.size})
    of_all = {name: sum(row[name] for row in rows) for name in ("weights", "stored", "index_bits")}
    rows.append({"name": "all", "shape": [], **of_all})
    for row in rows:
        weights = max(row["weights"], 1)
        row["density"] = row["stored"] / weights
        row["compression"] = 1 - (row["stored"] + row["index_bits"] / _BITS) / weights
    return rows


def compression(params: ArrayTree, masks: ArrayTree | None = None) -> float | None:
    """Returns the share of the dense network's weights that need not be stored, indices counted; see `table`.

    Args:
      params: Pytree of parameters.
      masks: As the parameters; None: all weights live.

    Returns:
      The share; None without masks and block-circulant kernels, where nothing could be saved.
    """
    if masks is None and not is_grouped(params):
        return None
    return table(params, masks)[-1]["compression"]


def is_grouped(params: ArrayTree) -> bool:
    """Returns whether there are block-circulant kernels among parameters, be they of one learner or of several."""
    return any(name.rpartition("/")[2] == "circulant" for name in by_name(params))


def by_name(tree: ArrayTree) -> dict[str, Any]:
    """Returns the leaves by their path, such as "Dense_0/kernel", in the order of the tree."""
    return {"/".join(leaf_path(path)): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def check_masks(params: ArrayTree, masks: ArrayTree) -> None:
    """Raises ValueError for masks that do not match parameters, naming the first difference."""
    leaves, flags = by_name(params), by_name(masks)
    for name in dict.fromkeys([*leaves, *flags]):
        if name not in leaves or name not in flags:
            raise ValueError(f"masks do not match the parameters: {name} is in only one of them.")
        shape, flag = leaves[name].shape, flags[name].shape
        if flag and (len(shape) < 2 or flag[1:] != (1, shape[-1]) or math.prod(shape) % math.prod(flag)):
            raise ValueError(f"masks do not match the parameters: {name} is {list(shape)}, its mask {list(flag)}.")


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
