"""Schedules of settings over generations or updates, and cutoffs of episodes."""

import operator
from typing import NamedTuple

import optax

from volvox._checks import INT32

Scheduled = float | str | optax.Schedule
"""A positive number, `"linear:start,end,generations"`, `"exponential:start,end,generations"`, or an optax schedule."""


def schedule(name: str, value: Scheduled) -> optax.Schedule:
    """Returns the optax schedule of a setting.

    Example:
      >>> schedule("mutation_std", "linear:0.01,0.002,100")(50)
      Array(0.006, dtype=float32, weak_type=True)

    Args:
      name: Name of the setting, for messages.
      value: A positive number; `"linear:start,end,generations"` (from `start` to `end` in that many generations, then
        constant); `"exponential:start,end,generations"` (the same, with a constant factor a generation); or any optax
        schedule, which is returned unchanged.

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
    except (OverflowError, TypeError, ValueError):
        raise ValueError(f"{name}={value!r} is not a schedule; {form}.") from None
    # The device computes in float32 and int32.
    positive = 1e-38 < start < 3e38 and 1e-38 < end < 3e38 and 1 <= generations <= INT32
    if not positive or kind not in ("constant", "linear", "exponential"):
        raise ValueError(f"{name}={value!r}: {form}; all numbers are positive and fit into 32 bits.")
    if kind == "linear":
        # With a larger factor the smaller end would be rounded to zero in float32.
        if max(start, end) > 1e6 * min(start, end):
            raise ValueError(f"{name}={value!r}: {form}, start and end of a linear one at most a factor of 1e6 apart.")
        return optax.linear_schedule(start, end, generations)
    if kind == "exponential":
        return optax.exponential_decay(start, generations, end / start, end_value=end)
    return optax.constant_schedule(start)


class Cutoff(NamedTuple):
    """Timesteps after which training and validation episodes are cut; fixed if `fraction` is 1.

    Attributes:
      start: Timesteps in the first generation.
      fraction: The cutoff grows when more than this fraction of training episodes reach it.
      ratio: Factor by which it grows.
      max: Timesteps it never exceeds; 0 means `start`.
    """

    start: int
    fraction: float = 1.0
    ratio: float = 1.0
    max: int = 0

    @property
    def text(self) -> int | str:
        """The form in which `config.json` holds it, which `parse_cutoff` reads."""
        return self.start if self.fraction >= 1 else f"adaptive:{self.start},{self.fraction},{self.ratio},{self.max}"

    def grown(self, current: int, fraction_cut: float) -> int:
        """The cutoff of the next generation, in timesteps.

        Args:
          current: Timesteps in this generation.
          fraction_cut: Fraction of this generation's training episodes that reached the cutoff.
        """
        if self.fraction >= 1 or fraction_cut <= self.fraction:
            return current
        return min(max(int(min(current * self.ratio, self.max)), current + 1), self.max)


def parse_cutoff(value: int | str) -> Cutoff:
    """Reads a cutoff: timesteps, or `"adaptive:start,fraction,ratio,max"`.

    Example:
      >>> parse_cutoff("adaptive:400,0.1,1.5,5000")
      Cutoff(start=400, fraction=0.1, ratio=1.5, max=5000)

    Args:
      value: For example `5000`, `"5000"` or `"adaptive:400,0.1,1.5,5000"` (start at 400 timesteps; grow by half when
        more than a tenth of the episodes reach the cutoff; never exceed 5 000).

    Returns:
      `Cutoff`.

    Raises:
      ValueError: another form, timesteps that are not positive, a fraction outside [0, 1), a ratio that is not above 1,
        or a maximum below the start.
    """
    try:
        if isinstance(value, str) and value.startswith("adaptive:"):
            start, fraction, ratio, top = value.removeprefix("adaptive:").split(",")
            cutoff = Cutoff(int(start), float(fraction), float(ratio), int(top))
            is_valid = 0 <= cutoff.fraction < 1 < cutoff.ratio < float("inf") and cutoff.start <= cutoff.max
        else:
            cutoff, is_valid = Cutoff(int(value) if isinstance(value, str) else operator.index(value)), True
    except (TypeError, ValueError):
        cutoff, is_valid = Cutoff(0), False
    if not is_valid or cutoff.start < 1 or max(cutoff.start, cutoff.max) > INT32:
        raise ValueError(
            f'max_episode_steps={value!r}: give timesteps (e.g. 5000), or "adaptive:start,fraction,ratio,max" with a '
            'fraction in [0, 1), a ratio above 1, and a max of at least start (e.g. "adaptive:400,0.1,1.5,5000").'
        )
    return cutoff
