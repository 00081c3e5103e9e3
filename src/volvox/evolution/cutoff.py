"""How long an episode may last: a fixed number of timesteps, or one that grows as episodes reach it."""

import operator
from typing import NamedTuple

_FORM = 'give timesteps (e.g. 5000) or "adaptive:start,fraction,ratio,max" (e.g. "adaptive:400,0.1,1.5,5000")'


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

    def grown(self, current: int, fraction_cut: float) -> int:
        """The cutoff of the next generation, in timesteps.

        Args:
          current: timesteps in this generation.
          fraction_cut: fraction of this generation's training episodes that reached the cutoff.
        """
        if self.fraction >= 1 or fraction_cut <= self.fraction:
            return current
        return min(max(int(current * self.ratio), current + 1), self.max)


def parse_cutoff(value: int | str | Cutoff) -> Cutoff:
    """Reads a cutoff: timesteps, or `"adaptive:start,fraction,ratio,max"`.

    Example:
      >>> parse_cutoff("adaptive:400,0.1,1.5,5000")
      Cutoff(start=400, fraction=0.1, ratio=1.5, max=5000)

    Args:
      value: for example `5000`, `"5000"` or `"adaptive:400,0.1,1.5,5000"` (start at 400 timesteps; grow by half when
        more than a tenth of the episodes reach the cutoff; never exceed 5 000).

    Returns:
      `Cutoff`.

    Raises:
      ValueError: another form, timesteps that are not positive, a fraction outside [0, 1), a ratio that is not above 1,
        or a maximum below the start.
    """
    try:
        if isinstance(value, Cutoff):
            read = value
        elif isinstance(value, str) and value.startswith("adaptive:"):
            start, fraction, ratio, top = value.removeprefix("adaptive:").split(",")
            read = Cutoff(int(start), float(fraction), float(ratio), int(top))
        else:
            read = Cutoff(int(value) if isinstance(value, str) else operator.index(value))
    except (TypeError, ValueError):
        raise ValueError(f"max_episode_steps={value!r} is not a cutoff; {_FORM}.") from None
    refusals = {"an episode lasts at least one timestep": read.start < 1}
    if read != Cutoff(read.start):
        refusals |= {
            f"fraction {read.fraction} must be in [0, 1)": not 0 <= read.fraction < 1,
            f"ratio {read.ratio} must be above 1": not 1 < read.ratio < float("inf"),
            f"max {read.max} is below start {read.start}": read.max < read.start,
        }
    for reason, refused in refusals.items():
        if refused:
            raise ValueError(f"max_episode_steps={value!r}: {reason}; {_FORM}.")
    return read
