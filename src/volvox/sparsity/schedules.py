"""How sparse kernels are to be, over training."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from volvox._checks import integer
from volvox.types import Array, ArrayTree, Config


class Schedule(NamedTuple):
    """A sparsity over training, the share of a kernel's weights that are 0 or need not be stored.

    Attributes:
      init: () -> state.
      advance: (state, step, mean return lately) -> (sparsity from here on, state); called whenever masks may change.
    """

    init: Callable[[], ArrayTree]
    advance: Callable[[ArrayTree, Array, Array | None], tuple[Array, ArrayTree]]
    config: Config


class RewardAwareState(NamedTuple):
    """What `reward_aware` remembers, float32 scalars.

    Attributes:
      best: Largest mean return so far; -inf before the first.
      worst: Smallest; inf before the first.
      fell_at: Sparsity at which returns last began to fall; inf once they have held up there.
      falls: How often they did without having held up between.
      falling: 1 from the beginning of a fall until returns hold up again, else 0.
      waited: Changes not made, so far, because of what fell.
    """

    sparsity: Array
    best: Array
    worst: Array
    fell_at: Array
    falls: Array
    falling: Array
    waited: Array


def cubic(*, final_sparsity: float, begin: int, end: int) -> Schedule:
    """A sparsity that rises from 0 by a cubic: fast at first, slowly at the end (Zhu & Gupta 2017, arXiv 1710.01878).

    Args:
      final_sparsity: in the end.
      begin: step before the first change.
      end: step at which the final sparsity is reached.

    Returns:
      `Schedule`, which knows no return.

    Raises:
      ValueError: a sparsity outside [0, 1), or an end that is not after the beginning.
    """
    check_sparsity("final_sparsity", final_sparsity)
    if integer("end", end, low=1) <= integer("begin", begin, low=0):
        raise ValueError(f"end={end} must come after begin={begin}.")

    def advance(state: ArrayTree, step: Array, mean_return: Array | None) -> tuple[Array, ArrayTree]:
        del mean_return
        left = 1.0 - jnp.clip((step - begin) / (end - begin), 0.0, 1.0)
        return jnp.asarray(final_sparsity * (1.0 - left**3), jnp.float32), state

    config = {"schedule": "cubic", "final_sparsity": final_sparsity, "begin": begin, "end": end}
    return Schedule(lambda: (), advance, config)


def reward_aware(
    *,
    final_sparsity: float,
    initial_sparsity: float = 0.0,
    increment: float = 0.02,
    tolerance: float = 0.1,
    begin: int = 0,
) -> Schedule:
    """A sparsity that rises only while the recent mean return holds up.

    Group-sparse training (Lee et al. 2021, arXiv 2101.09650) adapts its target to the reward; its rule is not
    published, so this one is ours. How far the mean return stands below its best so far, as a share of the distance
    from its worst to its best, decides: within `tolerance` the sparsity rises by `increment`; within twice that it
    stays; below that it falls by `increment`. So shifting and scaling rewards changes nothing. The range of returns
    must have grown to several times their noise before the bands tell a drop from noise; a return that does not change
    at all holds up.

    A sparsity at which returns fell is tried again when they hold up; where they fall again, only at the 2nd time that
    they do, then at the 4th, the 8th and so on. Without that, a network that cannot do with fewer weights would lose
    and regrow some at every other change, to the end.

    Args:
      final_sparsity: that is not exceeded.
      initial_sparsity: at the beginning, and never less.
      increment: of each change.
      tolerance: see above.
      begin: step before which nothing changes.

    Returns:
      `Schedule` that needs the mean return.

    Raises:
      ValueError: a number out of its range.
    """
    check_sparsity("final_sparsity", final_sparsity)
    check_sparsity("initial_sparsity", initial_sparsity)
    integer("begin", begin, low=0)
    if initial_sparsity > final_sparsity:
        raise ValueError(f"initial_sparsity={initial_sparsity} exceeds final_sparsity={final_sparsity}.")
    for name, value in (("increment", increment), ("tolerance", tolerance)):
        if not 0 < value <= 1:
            raise ValueError(f"{name}={value}: give a number above 0 and at most 1.")

    def init() -> RewardAwareState:
        begun = (initial_sparsity, -jnp.inf, jnp.inf, jnp.inf, 0.0, 0.0, 0.0)
        return RewardAwareState(*map(jnp.float32, begun))

    def advance(state: Any, step: Array, mean_return: Array | None) -> tuple[Array, RewardAwareState]:
        if mean_return is None:
            raise ValueError("a reward-aware sparsity needs update(gradient, state, params, mean_return=...).")
        best, worst = jnp.fmax(state.best, mean_return), jnp.fmin(state.worst, mean_return)
        below = (best - mean_return) / jnp.maximum(best - worst, 1e-8)
        # Before the first episode has ended there is no return.
        decides = jnp.isfinite(mean_return) & (step >= begin)
        holds, drops = decides & (below <= tolerance), decides & (below > 2 * tolerance)

        def reaches(sparsity: Array, level: Array) -> Array:
            return sparsity > level - increment / 2  # whatever the rounding

        passed = holds & reaches(state.sparsity, state.fell_at)
        begins = drops & (state.falling == 0)
        fell_at = jnp.where(passed, jnp.inf, jnp.where(begins, state.sparsity, state.fell_at))
        falls = jnp.where(passed, 0.0, state.falls + begins)
        waits = holds & reaches(state.sparsity + increment, fell_at) & (state.waited + 1 < 2.0 ** (falls - 1))

        change = jnp.where(drops, -increment, jnp.where(holds & ~waits, increment, 0.0))
        sparsity = jnp.clip(state.sparsity + change, initial_sparsity, final_sparsity)
        falling = jnp.where(drops, 1.0, jnp.where(holds, 0.0, state.falling))
        waited = jnp.where(waits, state.waited + 1, jnp.where(change == 0, state.waited, 0.0))
        return sparsity, RewardAwareState(sparsity, best, worst, fell_at, falls, falling, waited)

    config = {
        "schedule": "reward_aware",
        "final_sparsity": final_sparsity,
        "initial_sparsity": initial_sparsity,
        "increment": increment,
        "tolerance": tolerance,
        "begin": begin,
    }
    return Schedule(init, advance, config)


def check_sparsity(name: str, value: float) -> None:
    """Raises ValueError for a sparsity that is no number in [0, 1)."""
    if not isinstance(value, int | float | np.number) or not 0 <= value < 1:
        raise ValueError(f"{name}={value!r}: give a share of at least 0 and below 1.")
