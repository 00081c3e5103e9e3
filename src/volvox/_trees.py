"""Pytrees as checkpoints hold them: dicts and lists, in which a NamedTuple is a dict of its fields."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ArrayTree = Any


def leaves(tree: ArrayTree) -> dict[tuple[str, ...], Any]:
    """Leaves by their places: `("opt", "0", "mu")`, be `mu` the field of a NamedTuple or the key of a dict."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path): leaf for path, leaf in flat}


def is_key(leaf: Any) -> bool:
    """Whether a leaf holds typed PRNG keys, or is the shape of such an array."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def restored(saved: ArrayTree, like: ArrayTree, *, what: str) -> ArrayTree:
    """Gives a tree that was read from a checkpoint the structure it was saved with.

    Args:
      saved: the tree as `volvox.checkpoint.restore` returns it without `like`.
      like: a tree of the wanted structure: of arrays and numbers, or of shapes (`jax.ShapeDtypeStruct`).
      what: the tree belongs to, as the message calls it.

    Returns:
      The tree, of device arrays. Python numbers, and 64-bit arrays that JAX would cut to 32 bits, stay as they are.

    Raises:
      ValueError: `saved` is of another tree; the message names the first difference.
    """
    has, wanted = leaves(saved), leaves(like)
    for place in dict.fromkeys([*has, *wanted]):
        found, needed = (_describe(tree[place]) if place in tree else "nothing" for tree in (has, wanted))
        if found != needed:
            at = repr("/".join(place)) if place else "its root"
            raise ValueError(f"the checkpoint is of another {what}: at {at} it holds {found}, and this one {needed}")
    return jax.tree.unflatten(jax.tree.structure(like), [_on_device(has[place]) for place in wanted])


def _describe(leaf: Any) -> str:
    """Shape and dtype as JAX would hold them, so that a Python number is like an array of no dimensions."""
    if isinstance(leaf, str):
        return "a string"
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.dtype(type(leaf))
    return f"{np.shape(leaf)} {dtype if is_key(leaf) else jax.dtypes.canonicalize_dtype(dtype)}"


def _on_device(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray) and jax.dtypes.canonicalize_dtype(leaf.dtype) == leaf.dtype:
        return jnp.asarray(leaf)
    return leaf
