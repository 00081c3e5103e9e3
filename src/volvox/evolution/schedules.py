"""Settings that change over the generations or updates, as numbers, as text (in flags), or as optax schedules."""

import math

import optax

Scheduled = float | str | optax.Schedule
"""A positive number, `"linear:start,end,generations"`, `"exponential:start,end,generations"`, or an optax schedule."""


def schedule(name: str, value: Scheduled) -> optax.Schedule:
    """Makes an optax schedule of a setting.

    Example:
      >>> schedule("mutation_std", "linear:0.01,0.002,100")(50)
      Array(0.006, dtype=float32, weak_type=True)

    Args:
      name: name of the setting, for messages.
      value: a positive number; `"linear:start,end,generations"` (from `start` to `end` in that many generations, then
        constant); `"exponential:start,end,generations"` (the same, with a constant factor a generation); or any optax
        schedule, which is returned as it is.

    Returns:
      The schedule, count -> value; the first count is 0.

    Raises:
      ValueError: `value` has another form, or a number is not positive and finite.
    """
    if callable(value):
        return value
    form = 'give a positive number, "linear:start,end,generations" or "exponential:start,end,generations"'
    try:
        if isinstance(value, str) and ":" in value:
            kind, rest = value.split(":")
            first, last, count = rest.split(",")
            start, end, generations = float(first), float(last), int(count)
        else:
            kind, start, end, generations = "constant", float(value), float(value), 1
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} is no schedule; {form}.") from None
    positive = 0 < start < math.inf and 0 < end < math.inf and generations >= 1
    if not positive or kind not in ("constant", "linear", "exponential"):
        raise ValueError(f"{name}={value!r}: {form}; all numbers are positive.")
    if kind == "linear":
        return optax.linear_schedule(start, end, generations)
    if kind == "exponential":
        return optax.exponential_decay(start, generations, end / start, end_value=end)
    return optax.constant_schedule(start)
