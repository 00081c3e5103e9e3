"""How long an episode may last: fixed, or growing with what is reached."""

import operator
from typing import NamedTuple


class Cutoff(NamedTuple):
    """Steps after which training and validation episodes are cut; fixed if `fraction` is 1.

    Attributes:
      start: Steps in the first generation.
      fraction: The cutoff grows when more than this fraction of training episodes reach it.
      ratio: By which factor it grows.
      max: Steps it never exceeds; 0: `start`.
    """

    start: int
    fraction: float = 1.0
    ratio: float = 1.0
    max: int = 0


def cutoff(value: int | str | Cutoff) -> Cutoff:
    """Reads a cutoff: steps, or `"adaptive:start,fraction,ratio,max"`.

    Args:
      value: e.g. `5000`, `"5000"` or `"adaptive:400,0.1,1.5,5000"` (start at 400 steps; grow by half when more than a
        tenth of the episodes reach the cutoff; never above 5 000).

    Returns:
      `Cutoff`.

    Raises:
      ValueError: another form, non-positive steps, a fraction outside [0, 1), a ratio not above 1, max below start.
    """
    form = 'give steps (e.g. 5000) or "adaptive:start,fraction,ratio,max" (e.g. "adaptive:400,0.1,1.5,5000")'

    def refused(why: str) -> ValueError:
        return ValueError(f"max_episode_steps={value!r}: {why}; {form}.")

    try:
        if isinstance(value, Cutoff):
            read = value
        elif isinstance(value, str) and value.startswith("adaptive:"):
            start, fraction, ratio, top = value.removeprefix("adaptive:").split(",")
            read = Cutoff(int(start), float(fraction), float(ratio), int(top))
        else:
            read = Cutoff(int(value) if isinstance(value, str) else operator.index(value))
    except (TypeError, ValueError):
        raise refused("not a cutoff") from None
    if read.start < 1:
        raise refused("an episode lasts at least one step")
    if read == Cutoff(read.start):
        return read
    if not 0 <= read.fraction < 1:
        raise refused(f"fraction {read.fraction} must be in [0, 1)")
    if not 1 < read.ratio < float("inf"):
        raise refused(f"ratio {read.ratio} must be above 1")
    if read.max < read.start:
        raise refused(f"max {read.max} is below start {read.start}")
    return read


def grown(cutoff: Cutoff, current: int, fraction_cut: float) -> int:
    """The cutoff of the next generation, in steps.

    Args:
      cutoff: the rule.
      current: steps in this generation.
      fraction_cut: fraction of this generation's training episodes that reached it.
    """
    if cutoff.fraction >= 1 or fraction_cut <= cutoff.fraction:
        return current
    return min(max(int(current * cutoff.ratio), current + 1), cutoff.max)
