"""What the options of an actor-critic mean: checks, schedules and optimisers."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from volvox.types import Array
from volvox.validation import integer

_MICRO_BATCH_TRANSITIONS = 64
"""Micro-batches of 32 to 64 transitions stay in a CPU's cache."""


def micro_batch_size(given: int | None, group: int, segment_length: int) -> int:
    """Environments in a micro-batch: as given, or so many that they have about 64 transitions."""
    divisors = [m for m in range(1, group + 1) if group % m == 0]
    if given is None:
        return max((m for m in divisors if m * segment_length <= _MICRO_BATCH_TRANSITIONS), default=1)
    if integer("micro_batch", given, low=1) not in divisors:
        raise ValueError(
            f"micro_batch={given} does not divide a group of {group} environments; take one of {divisors}."
        )
    return given


def check_rates(
    learning_rate: float,
    discount: float,
    trace_decay: float,
    entropy_coefficient: float,
    value_coefficient: float,
    log_epsilon: float,
    reward_bound: float | None,
) -> None:
    """Raises ValueError for a number out of its range, naming it."""
    for name, value in (("learning_rate", learning_rate), ("reward_bound", reward_bound)):
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{name}={value}: give a positive finite number.")
    for name, value in (("discount", discount), ("trace_decay", trace_decay)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value}: give a number from 0 to 1.")
    for name, value in (
        ("entropy_coefficient", entropy_coefficient),
        ("value_coefficient", value_coefficient),
        ("log_epsilon", log_epsilon),
    ):
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name}={value}: give a finite number of at least 0.")


def annealed(value: float, updates: int | None) -> Callable[[Array], Array]:
    """Updates made -> the value, falling linearly to 0 at `updates`; constant if that is None."""
    if updates is None:
        return lambda update: jnp.float32(value)
    return lambda update: value * jnp.maximum(0.0, 1.0 - update / updates)


def gradient_transformation(
    given: Any, learning_rate: Any, options: Mapping[str, Any], max_gradient_norm: float | None
) -> optax.GradientTransformation:
    """The optimiser, behind a clipped gradient if asked for; raises ValueError if it is none."""
    named = f"optax.{given}" if isinstance(given, str) else repr(given)
    if isinstance(given, str):
        try:
            given = getattr(optax, given)(learning_rate, **options)
        except (AttributeError, TypeError) as error:
            raise ValueError(
                f"{named} is no optimiser, or does not take {dict(options)}; take e.g. 'rmsprop' or 'adam': {error}"
            ) from error
    elif options:
        raise ValueError(f"optimizer_options={dict(options)} are for an optimiser given by name; this one is made.")
    if not isinstance(given, optax.GradientTransformation):
        raise ValueError(f"{named} makes no optax.GradientTransformation; take e.g. 'rmsprop' or 'adam'.")
    state = jax.eval_shape(given.init, {"w": jnp.zeros(2)})
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)):
        raise ValueError(f"{named} draws random numbers, and its key cannot be saved; take another optimiser.")
    if max_gradient_norm is None:
        return given
    if not max_gradient_norm > 0:
        raise ValueError(f"max_gradient_norm={max_gradient_norm}: give a positive number, or None.")
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), given)
