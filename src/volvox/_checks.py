"""Checks shared by all parts: one clear `ValueError` for each mistake, raised before anything is made."""

import difflib
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import optax

Optimizer = optax.GradientTransformation | Callable[..., optax.GradientTransformation]
"""What settings hold: a function of the learning rate, such as `optax.adam`, or a ready-made transformation."""


def integer(name: str, value: object, *, low: int) -> int:
    """Returns `value` as an int of at least `low`.

    Raises:
        ValueError: `value` is no integer, or it is smaller than `low`; the message names both.
    """
    try:
        number = operator.index(value)  # pyright: ignore[reportArgumentType]  # the TypeError is the check
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low:
        raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")
    return number


def group_size(num_envs: object, num_groups: object) -> int:
    """Returns the number of environments in each of `num_groups` equal groups.

    Raises:
        ValueError: A number is not a positive integer, or the groups would not be equal.
    """
    total = integer("num_envs", num_envs, low=1)
    groups = integer("groups", num_groups, low=1)
    if total % groups:
        nearest = max(total // groups, 1) * groups
        raise ValueError(
            f"num_envs must be a multiple of groups, for groups are equal: got num_envs={total} and groups={groups}; "
            f"use num_envs={nearest} or num_envs={nearest + groups}, or another number of groups"
        )
    return total // groups


def nearest(value: str, names: Iterable[str]) -> str:
    """Returns an ending for a message about an unknown name: `; the nearest are 'Pong', 'Pooyan'`, or nothing."""
    folded = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(value.lower(), folded, n=3, cutoff=0.5)
    return f"; the nearest are {', '.join(repr(folded[match]) for match in matches)}" if matches else ""


def number(
    name: str, value: object, *, low: float = -math.inf, above: float = -math.inf, high: float = math.inf
) -> float:
    """Returns `value` as a finite float of at least `low`, above `above`, and of at most `high`.

    Raises:
        ValueError: `value` is no number, or it is out of that range; the message names both.
    """
    given = float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else math.nan
    if math.isfinite(given) and low <= given <= high and given > above:
        return given
    wanted = f"number from {low:g} to {high:g}" if high < math.inf else f"finite number of at least {low:g}"
    if above > -math.inf:
        wanted = f"number above {above:g}, up to {high:g}" if high < math.inf else f"finite number above {above:g}"
    raise ValueError(f"{name}={value!r}: give a {wanted}.")


def integers(settings: object, *names: str, low: int) -> None:
    """Checks fields of settings with `integer`; those that are None are not looked at."""
    for name in names:
        if (value := getattr(settings, name)) is not None:
            integer(name, value, low=low)


def numbers(settings: object, *names: str, **limits: float) -> None:
    """Checks fields of settings with `number`; those that are None or functions are not looked at."""
    for name in names:
        if (value := getattr(settings, name)) is not None and not callable(value):
            number(name, value, **limits)


def gradient_transformation(
    optimizer: Optimizer, learning_rate: Any, max_gradient_norm: float | None = None
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimiser that settings describe.

    Args:
        optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made transformation.
        learning_rate: For the former a number or a schedule; None for the latter, which brings its own.
        max_gradient_norm: Global norm to which gradients are clipped before; None leaves them.

    Raises:
        ValueError: The learning rate is given twice or not at all, or the function does not make a transformation.
    """
    if callable(optimizer) and learning_rate is None:
        raise ValueError(f"learning_rate=None: {optimizer!r} is a function of the learning rate; give one.")
    made = optimizer(learning_rate) if callable(optimizer) else optimizer
    if not isinstance(made, optax.GradientTransformation):
        raise ValueError(f"{optimizer=}: give an optax.GradientTransformation, or a function such as optax.adam.")
    if made is optimizer and learning_rate is not None:
        raise ValueError(f"{learning_rate=}: a ready-made optimizer brings its own; take learning_rate=None.")
    if max_gradient_norm is not None:
        made = optax.chain(optax.clip_by_global_norm(max_gradient_norm), made)
    return optax.with_extra_args_support(made)
