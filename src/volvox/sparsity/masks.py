"""Sparse training as a wrapper of any optax optimiser: masked weights are exactly 0, and so is what it keeps of them.

A `Rule` says which weights of a kernel live and when that changes; `sparse` applies it to every kernel of any pytree of
parameters. Masks save no time on dense arithmetic: what they save is what must be stored.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from volvox.ops.flat import leaf_path
from volvox.types import Array, ArrayTree, Config


class Rule(NamedTuple):
    """Which weights of one kernel live."""

    init: Callable[[Array, Array, float], Array]
    """(key, kernel, density) -> mask of its shape, bool. The density is the layer's, where the rule spreads it."""
    update: Callable[[Array, Array, Array, Array, Array], Array]
    """(key, mask, kernel, gradient, updates made) -> mask. The gradient is that of all weights, masked ones too."""
    every: int
    """Updates from one change of the masks to the next."""
    densities: Callable[[dict[str, tuple[int, ...]]], dict[str, float]]
    """Shapes of the kernels by name -> density of each; raises ValueError where a kernel does not fit the rule."""
    config: Config


class SparseState(NamedTuple):
    """State of the wrapped optimiser."""

    inner: ArrayTree
    masks: ArrayTree
    """As the parameters: bool of a kernel's shape, or a scalar True where all weights live."""
    updates: Array
    """int32: made so far."""
    key: Array
    """uint32 `[2]`: of the rule's next draw."""


def sparse(
    optimizer: optax.GradientTransformation, rule: Rule, *, dense: Collection[str] = (), seed: int = 0
) -> optax.GradientTransformation:
    """Wraps an optimiser so that kernels stay as sparse as a rule says.

    Kernels are the parameters of two or more dimensions. An update of a masked weight is minus the weight, so after the
    first one all masked weights are 0; `pruned` makes them so before it.

    Args:
      optimizer: any of optax's, made.
      rule: which weights live.
      dense: names of kernels that stay whole, or what the names of several end with, e.g. `"Dense_2/kernel"`.
      seed: of what the rule draws.

    Returns:
      The optimiser; its state is `SparseState`.

    Raises:
      ValueError: (from `init`) a name in `dense` that is no kernel's, or a kernel that does not fit the rule.
    """

    def init(params: ArrayTree) -> SparseState:
        shapes = {name: leaf.shape for name, leaf in _kernels(params).items()}
        whole = {name for name in shapes for end in dense if f"/{name}".endswith(f"/{end}")}
        if unknown := sorted(end for end in dense if not any(f"/{name}".endswith(f"/{end}") for name in whole)):
            raise ValueError(
                f"dense names no kernel of these parameters: {', '.join(unknown)}; they have "
                f"{', '.join(sorted(shapes))}."
            )
        densities = rule.densities({name: shape for name, shape in shapes.items() if name not in whole})
        key = jax.random.key(seed)

        def one(path, leaf):
            name = "/".join(leaf_path(path))
            if name not in densities:
                return jnp.ones((), bool)
            number = list(densities).index(name)
            return rule.init(jax.random.fold_in(key, number), leaf, densities[name])

        masks = jax.tree_util.tree_map_with_path(one, params)
        return SparseState(optimizer.init(params), masks, jnp.int32(0), jax.random.key_data(key))

    def update(updates: ArrayTree, state: Any, params: ArrayTree | None = None):
        if params is None:
            raise ValueError("a sparse optimiser needs the parameters: update(gradient, state, params).")
        gradient, masks = updates, state.masks
        updates, inner = optimizer.update(_masked(gradient, masks), state.inner, params)
        count = state.updates + 1
        key = jax.random.wrap_key_data(state.key)

        def changed(masks: ArrayTree) -> ArrayTree:
            moved = _masked(optax.apply_updates(params, updates), masks)
            leaves, treedef = jax.tree.flatten(masks)
            given = zip(leaves, jax.tree.leaves(moved), jax.tree.leaves(gradient), strict=True)
            keys = jax.random.split(jax.random.fold_in(key, count), len(leaves))
            return treedef.unflatten(
                [
                    mask if mask.ndim == 0 else rule.update(keys[i], mask, kernel, slope, count)
                    for i, (mask, kernel, slope) in enumerate(given)
                ]
            )

        masks = jax.lax.cond(count % rule.every == 0, changed, lambda masks: masks, masks)
        # What has just begun to live, and what has died, is 0 next.
        updates = jax.tree.map(lambda u, p, new, old: jnp.where(new & old, u, -p), updates, params, masks, state.masks)
        inner = optax.tree_map_params(optimizer, lambda x, mask: jnp.where(mask, x, jnp.zeros_like(x)), inner, masks)
        return updates, SparseState(inner, masks, count, state.key)

    return optax.GradientTransformation(init, update)


def pruned(params: ArrayTree, state: ArrayTree) -> ArrayTree:
    """The parameters with 0 where the masks in an optimiser's state say so.

    Raises:
      ValueError: there are no masks.
    """
    return _masked(params, masks_of(state))


def masks_of(state: ArrayTree) -> ArrayTree:
    """The masks in an optimiser's state, wherever `sparse` stands in it.

    Raises:
      ValueError: there are none.
    """
    if not (found := _sparse_states(state)):
        raise ValueError("this state is of no sparse optimiser: make it by volvox.sparsity.sparse.")
    return found[0].masks


def is_sparse(state: ArrayTree) -> bool:
    """Whether there are masks in an optimiser's state."""
    return bool(_sparse_states(state))


def table(params: ArrayTree, masks: ArrayTree | None = None) -> list[dict[str, Any]]:
    """What is stored, layer by layer, and in all.

    Args:
      params: pytree of parameters.
      masks: as the parameters; None: all weights live.

    Returns:
      Rows with `name`, `shape`, `weights`, `stored`, `density` (stored over weights) and `compression` (one minus
      that); the last is named "all".
    """
    live = jax.tree.map(lambda x: jnp.ones((), bool), params) if masks is None else masks
    rows = []
    for (path, leaf), mask in zip(jax.tree_util.tree_flatten_with_path(params)[0], jax.tree.leaves(live), strict=True):
        stored = leaf.size if mask.ndim == 0 else int(np.asarray(mask).sum())
        rows.append(_row("/".join(leaf_path(path)), list(leaf.shape), leaf.size, stored))
    rows.append(_row("all", [], sum(row["weights"] for row in rows), sum(row["stored"] for row in rows)))
    return rows


def _sparse_states(state: ArrayTree) -> list[SparseState]:
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, SparseState))
    return [x for x in leaves if isinstance(x, SparseState)]


def _row(name: str, shape: list[int], weights: int, stored: int) -> dict[str, Any]:
    density = stored / max(weights, 1)
    return {
        "name": name,
        "shape": shape,
        "weights": weights,
        "stored": stored,
        "density": density,
        "compression": 1 - density,
    }


def _kernels(params: ArrayTree) -> dict[str, Array]:
    found = {"/".join(leaf_path(path)): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]}
    return {name: leaf for name, leaf in found.items() if leaf.ndim >= 2}


def _masked(tree: ArrayTree, masks: ArrayTree) -> ArrayTree:
    return jax.tree.map(lambda x, mask: jnp.where(mask, x, 0.0), tree, masks)
