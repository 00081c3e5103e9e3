"""What the options of an actor-critic mean: checks and schedules."""

from collections.abc import Callable

import jax.numpy as jnp

from volvox._checks import integer
from volvox.types import Array

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
