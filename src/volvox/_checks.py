"""Checks shared by the factories: one clear `ValueError` per mistake, raised before anything is made."""

import difflib
import operator
from collections.abc import Iterable


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
        ValueError: a number is not a positive integer, or the groups would not be equal.
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
