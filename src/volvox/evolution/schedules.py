"""Numbers that change over the generations: noise, mutation power; and over the updates: learning rate."""

from typing import NamedTuple

import jax.numpy as jnp

from volvox.types import Array


class Schedule(NamedTuple):
    """From `start` to `end` in a number of generations, then constant.

    Attributes:
      kind: constant, linear or exponential.
      start: In the first generation.
      end: From generation `generations` on (the first is 0).
    """

    kind: str
    start: float
    end: float
    generations: int


def schedule(name: str, value: float | str | Schedule) -> Schedule:
    """Reads a schedule.

    Args:
      name: of the setting, for messages.
      value: a positive number, or `"linear:start,end,generations"`, or `"exponential:start,end,generations"` (a
        constant factor a generation).

    Returns:
      `Schedule`.

    Raises:
      ValueError: another form, or a number that is not positive and finite.
    """
    form = 'give a positive number or "linear:start,end,generations" or "exponential:start,end,generations"'
    try:
        if isinstance(value, Schedule):
            read = value
        elif isinstance(value, str) and ":" in value:
            kind, rest = value.split(":")
            start, end, generations = rest.split(",")
            read = Schedule(kind, float(start), float(end), int(generations))
        else:
            read = Schedule("constant", float(value), float(value), 1)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} is no schedule; {form}.") from None
    positive = 0 < read.start < float("inf") and 0 < read.end < float("inf") and read.generations >= 1
    if not positive or read.kind not in ("constant", "linear", "exponential"):
        raise ValueError(f"{name}={value!r}: {form}; numbers are positive.")
    return read


def at(schedule: Schedule, generation: Array | int) -> Array:
    """The value in a generation, the first being 0; float32 scalar."""
    passed = jnp.minimum(jnp.asarray(generation, jnp.float32) / schedule.generations, 1.0)
    if schedule.kind == "constant":
        return jnp.float32(schedule.start)
    if schedule.kind == "linear":
        return (schedule.start + (schedule.end - schedule.start) * passed).astype(jnp.float32)
    return (schedule.start * (schedule.end / schedule.start) ** passed).astype(jnp.float32)
