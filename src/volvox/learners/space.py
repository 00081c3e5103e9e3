"""Ranges of settings that `volvox.sweep` and `volvox.PBT` explore.

A space is a dict of settings and their ranges.

    space = {"learning_rate": vx.space.log(1e-5, 1e-3), "num_epochs": vx.space.integers(1, 8)}
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from volvox._checks import INT32, integer, number

__all__ = ["Choice", "Range", "choice", "integers", "log", "uniform"]


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`.

    Attributes:
      low: Smallest number.
      high: Largest number.
      log: Whether the logarithm is uniform, instead of the number.
      whole: Whether the numbers are integers.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self):
        """Raises ValueError for an empty range."""
        check: Any = integer if self.whole else number
        for name in ("low", "high"):
            check(name, getattr(self, name), low=-INT32 if self.whole else -math.inf)
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"low={self.low:g}, high={self.high:g}: give low < high{', above 0' if self.log else ''}.")


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several values, each a number, text, bool or None."""

    options: tuple[Any, ...]

    def __post_init__(self):
        """Raises ValueError if there is nothing to choose."""
        if not self.options or not all(isinstance(x, bool | int | float | str | None) for x in self.options):
            raise ValueError(f"options={self.options!r}: give numbers, text, bools or None.")


def log(low: float, high: float) -> Range:
    """Returns the numbers from `low` to `high`, above 0, whose logarithm is uniform."""
    return Range(low, high, log=True)


def uniform(low: float, high: float) -> Range:
    """Returns the numbers from `low` to `high`, uniform."""
    return Range(low, high)


def integers(low: int, high: int) -> Range:
    """Returns the integers from `low` to `high`, both included."""
    return Range(low, high, whole=True)


def choice(*options: Any) -> Choice:
    """Returns a choice of values: numbers, text, bools or None."""
    return Choice(options)


def check_space(name: str, space: Any, kinds: type | tuple[type, ...]) -> None:
    """Raises TypeError unless `space` maps at least one name to one of these kinds."""
    if not isinstance(space, Mapping) or not space or not all(isinstance(x, kinds) for x in space.values()):
        raise TypeError(f"{name}={space!r}: give a dict such as {{'learning_rate': vx.space.log(1e-5, 1e-3)}}.")
