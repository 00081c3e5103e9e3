"""Compression of the sparse and block-circulant networks that learners train."""

from typing import Any

import jax
import numpy as np

from volvox.sparsity.masks import compression, is_grouped, is_sparse, masks_of, table
from volvox.types import ArrayTree


def pick(tree: ArrayTree, learner: int) -> Any:
    """Returns one learner's part of a tree with leaves `[S, ...]`; raises ValueError if there is no such learner."""
    if not 0 <= learner < (count := len(jax.tree.leaves(tree)[0])):
        raise ValueError(f"learner={learner}: there are {count}, counted from 0.")
    return jax.tree.map(lambda x: x[learner], tree)


def compression_row(learning: Any, num_learners: int | None) -> dict[str, float]:
    """Returns the `compression` of a learner's networks, or its mean over S learners; {} if nothing is compressed.

    Args:
      learning: State of learning, with `params` and `optimizer`.
      num_learners: Number S of learners, if leaves are `[S, ...]`. None: one learner, without that axis.
    """
    if not hasattr(learning, "params") or not (is_sparse(learning.optimizer) or is_grouped(learning.params)):
        return {}
    stored = _stored(learning)
    each = [stored] if num_learners is None else [pick(stored, i) for i in range(num_learners)]
    shares = [share for one in each if (share := compression(*one)) is not None]
    return {"compression": float(np.mean(shares))}


def table_of(state: Any, learner: int = 0) -> list[dict[str, Any]]:
    """Returns the stored numbers of one learner's networks, layer by layer; see `volvox.sparsity.table`.

    Args:
      state: State of an algorithm with learners side by side, such as `TD3`.
      learner: Index of the learner.

    Raises:
      ValueError: There is no such learner.
    """
    return table(*pick(_stored(state.learning), learner))


def _stored(learning: Any) -> tuple[ArrayTree, ArrayTree]:
    """Returns (parameters, masks or None) of networks by name, on the host."""
    params, optimizer = learning.params, learning.optimizer
    if hasattr(params, "_asdict"):  # several networks, each with an optimiser of its own
        params, optimizer = params._asdict(), optimizer._asdict()
        params = {name: part for name, part in params.items() if jax.tree.leaves(part)}
    else:
        params, optimizer = {"params": params}, {"params": optimizer}
    masks = {name: masks_of(optimizer[name]) for name in params} if is_sparse(learning.optimizer) else None
    return jax.device_get((params, masks))
