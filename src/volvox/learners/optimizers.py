"""How learners use optax: any optimiser that needs gradients and parameters only, sparse or not; and compression."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from volvox.sparsity import masks_of, table
from volvox.sparsity.masks import is_grouped, is_sparse
from volvox.types import Array, ArrayTree, Axis

Optimizer = optax.GradientTransformation | Callable[..., optax.GradientTransformation]
"""The setting `optimizer`: a function of the learning rate, such as `optax.adam`, or a ready-made transformation."""


def make_optimizer(optimizer: Optimizer, learning_rate: Any) -> optax.GradientTransformationExtraArgs:
    """Returns the optimiser that settings describe.

    Args:
      optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made transformation.
      learning_rate: Number or schedule for such a function; None for a ready-made transformation.

    Raises:
      ValueError: The learning rate is given twice or not at all, or `optimizer` does not make a transformation.
    """
    if callable(optimizer) == (learning_rate is None):
        raise ValueError(
            f"{learning_rate=}, {optimizer=}: give a number with a function such as optax.adam, and None with a "
            "ready-made optimizer, which has its own rate."
        )
    made = optimizer(learning_rate) if callable(optimizer) else optimizer
    if not isinstance(made, optax.GradientTransformation):
        raise ValueError(f"{optimizer=}: give an optax.GradientTransformation, or a function such as optax.adam.")
    return optax.with_extra_args_support(made)


def apply_gradient(
    optimizer: optax.GradientTransformationExtraArgs,
    gradient: ArrayTree,
    state: ArrayTree,
    params: ArrayTree,
    *,
    learning_rate: Any = None,
    step: Array,
    mean_return: Array,
) -> tuple[ArrayTree, ArrayTree]:
    """Updates parameters by a gradient.

    Args:
      optimizer: Optimiser, from `make_optimizer`.
      gradient: Gradient of the loss, as `params`.
      state: State of the optimiser.
      params: Parameters.
      learning_rate: Learning rate of this update, if it changes outside of the optimiser. It replaces the rate in a
        state such as that of `optax.inject_hyperparams`.
      step: int32: Number of this update, from 1; sparse optimisers use it.
      mean_return: float32: Recent mean return; sparse optimisers use it.

    Returns:
      (parameters, state of the optimiser).

    Raises:
      ValueError: The optimiser needs more than gradients and parameters.
    """
    kept = optax.tree.get_all_with_path(state, "learning_rate")
    if learning_rate is not None and kept:
        state = optax.tree.set(state, learning_rate=jnp.asarray(learning_rate, kept[0][1].dtype))
    try:
        updates, state = optimizer.update(gradient, state, params, step=step, mean_return=mean_return)
    except TypeError as error:
        raise ValueError(
            f"optimizer: it needs more than gradients and parameters ({error}); take an optimizer such as optax.adam."
        ) from error
    return optax.apply_updates(params, updates), state


def over_devices(gradient: ArrayTree, valid: Array, axis: Axis) -> ArrayTree:
    """Returns the gradients of each learner's mean loss over the valid transitions of all devices.

    Args:
      gradient: Gradients of the mean over this device's valid transitions, leaves `[S, ...]`.
      valid: bool `[S, N]`: Whether this device's transitions are learned from.
      axis: Device axis to average over.
    """
    if axis.name is None:
        return gradient
    count = valid.sum(axis=1, dtype=jnp.float32)
    share = count / jnp.maximum(axis.sum(count), 1.0)
    return axis.sum(jax.tree.map(lambda g: jax.vmap(jnp.multiply)(share.astype(g.dtype), g), gradient))


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
    shares = [table(*one)[-1]["compression"] for one in each]
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
