"""The flat form of a pytree of parameters: one vector, in a documented order.

Layers are in the natural order of their paths, with numbers compared as numbers (`Conv_2` before `Conv_10`, and by name
before `Dense_0`). Within a layer, `kernel` comes first, then `bias`, then the other leaves by name. Each leaf is in C
order. This is the order of the published DeepGA networks, independent of the order of leaves in the pytree.
"""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox.types import Array, ArrayTree

_LEAF_RANK = {"kernel": 0, "bias": 1}


def num_parameters(params: ArrayTree) -> int:
    """Counts the elements of all leaves together; works on shapes (`jax.eval_shape`) too."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def leaf_path(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Returns the names along a key path of `jax.tree_util`, for example `("Conv_0", "kernel")`."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def by_path(tree: ArrayTree) -> dict[tuple[str, ...], Any]:
    """Returns the leaves by their paths, for example `("opt", "0", "mu")`, in the order of the tree.

    A field of a NamedTuple and a key of a dict have the same path.
    """
    return {leaf_path(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def restored(saved: ArrayTree, like: ArrayTree, *, owner: str) -> Any:
    """Gives a checkpoint's nested dictionaries the structure that they were saved with.

    Args:
      saved: Nested dictionaries of arrays and numbers.
      like: A tree of the wanted structure; its leaves are arrays, numbers or shapes (`jax.ShapeDtypeStruct`).
      owner: Name of the object that owns the tree, for the message.

    Returns:
      The tree, of device arrays; Python numbers stay Python numbers.

    Raises:
      ValueError: `saved` has other leaves, shapes or dtypes; the message names the first difference.
    """
    has, wanted = by_path(saved), by_path(like)
    for path in dict.fromkeys([*has, *wanted]):
        found, needed = (_kind_of(tree[path]) if path in tree else "nothing" for tree in (has, wanted))
        if found != needed:
            at = "/".join(path) or "its root"
            raise ValueError(f"the checkpoint does not fit this {owner}: at {at} it holds {found}, not {needed}")
    leaves = [jnp.asarray(has[path]) if isinstance(has[path], np.ndarray) else has[path] for path in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _kind_of(leaf: Any) -> str:
    """Shape and dtype as JAX holds them, so that a Python number is like an array without dimensions."""
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.dtype(type(leaf))
    is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return f"{np.shape(leaf)} {dtype if is_key else jax.dtypes.canonicalize_dtype(dtype)}"


def is_kernel(path: tuple[Any, ...], leaf: Any) -> bool:
    """Whether the leaf at a key path is a kernel, `[inputs..., outputs]`, by its axes and its name."""
    return len(leaf.shape) >= 2 and leaf_path(path)[-1:] not in (("bias",), ("scale",))


def flat_order(params: ArrayTree) -> tuple[int, ...]:
    """Returns positions in `jax.tree.leaves(params)`, in the order of the leaves in the flat vector."""
    keys = [_sort_key(leaf_path(path)) for path, _ in jax.tree.leaves_with_path(params)]
    return tuple(sorted(range(len(keys)), key=keys.__getitem__))


def leaf_offsets(params: ArrayTree) -> ArrayTree:
    """Returns the position of each leaf in the flat vector: a pytree of ints shaped as `params`."""
    leaves, treedef = jax.tree.flatten(params)
    offsets, position = [0] * len(leaves), 0
    for i in flat_order(params):
        offsets[i] = position
        position += math.prod(leaves[i].shape)
    return jax.tree.unflatten(treedef, offsets)


def flatten(params: ArrayTree) -> Array:
    """Concatenates all leaves to one vector `[n]` of their promoted dtype, `n = num_parameters(params)`."""
    leaves = jax.tree.leaves(params)
    if not leaves:
        return jnp.zeros((0,))
    return jnp.concatenate([jnp.ravel(leaves[i]) for i in flat_order(params)])


def unflatten(vector: Array, like: ArrayTree) -> ArrayTree:
    """Cuts a vector `[n]` into leaves with the shapes and dtypes of `like` (arrays or their shapes).

    Raises:
      ValueError: The vector has another length than `like`.
    """
    if vector.shape != (num_parameters(like),):
        raise ValueError(f"the parameters need a vector of shape {(num_parameters(like),)}; got {vector.shape}")
    return jax.tree.map(
        lambda leaf, offset: vector[offset : offset + math.prod(leaf.shape)].reshape(leaf.shape).astype(leaf.dtype),
        like,
        leaf_offsets(like),
    )


def _sort_key(path: tuple[str, ...]) -> tuple[Any, ...]:
    *layer, leaf = path or ("",)
    return tuple(_natural(name) for name in layer), _LEAF_RANK.get(leaf, len(_LEAF_RANK)), _natural(leaf)


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """Splits a name into (text, number) pairs that compare numbers as numbers."""
    return tuple((text, int(number or -1)) for text, number in re.findall(r"(\D*)(\d*)", name))
