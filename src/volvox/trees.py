"""Pytrees as they are written to checkpoints: leaves by name."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ArrayTree = Any


def named(tree: ArrayTree) -> dict[str, Any]:
    """Leaves by their places in the tree."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def from_named(saved: Mapping[str, Any], like: ArrayTree, *, what: str) -> ArrayTree:
    """The tree that `named` made `saved` of.

    Args:
      saved: leaves by name.
      like: shapes and dtypes of the tree.
      what: they belong to, as the message calls it.

    Returns:
      The tree, as device arrays.

    Raises:
      ValueError: `saved` is of another tree; the message names the first difference.
    """
    wanted = named(like)
    for name in dict.fromkeys([*saved, *wanted]):
        has, needs = (f"{np.shape(x[name])} {x[name].dtype}" if name in x else "nothing" for x in (saved, wanted))
        if has != needs:
            raise ValueError(f"the checkpoint is of another {what}: at {name} it holds {has}, and this one {needs}")
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(saved[name]) for name in wanted])
