"""Schedules of the sparsity over training."""

import dataclasses
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import optax

from volvox._checks import integers, number, numbers
from volvox.types import Array, ArrayTree


@runtime_checkable
class Schedule(Protocol):
    """A sparsity over training: the share of a kernel's weights that are 0 or need not be stored.

    Your own schedule is any object with these two methods; a frozen dataclass can be saved with a run.
    """

    def init(self) -> ArrayTree:
        """Returns the schedule's state before the first change."""
        ...

    def advance(self, state: Any, step: Array, mean_return: Array | None) -> tuple[Array, ArrayTree]:
        """Returns the sparsity from this update on, and the next state; called whenever masks may change.

        Args:
          state: State of the schedule.
          step: int32: Number of this update.
          mean_return: float32: Mean return of recent episodes; None if the caller gives none.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cubic:
    """A sparsity that rises from 0 by a cubic: fast at first, slowly at the end (Zhu & Gupta 2017, arXiv 1710.01878).

        rule = vx.sparsity.Magnitude(schedule=vx.sparsity.Cubic(final_sparsity=0.9, begin=0, end=100_000))

    Attributes:
      final_sparsity: Sparsity from `end` on, in [0, 1).
      begin: Updates before the first change.
      end: Update at which the final sparsity is reached.

    Raises:
      ValueError: A setting is out of its range, or `end` is not after `begin`.
    """

    final_sparsity: float
    begin: int
    end: int

    def __post_init__(self):
        check_sparsity("final_sparsity", self.final_sparsity)
        integers(self, "begin", "end", low=0)
        if self.end <= self.begin:
            raise ValueError(f"end={self.end} must come after begin={self.begin}")

    def init(self) -> ArrayTree:
        """Returns (): the sparsity depends only on the step."""
        return ()

    def advance(self, state: ArrayTree, step: Array, mean_return: Array | None) -> tuple[Array, ArrayTree]:
        """See `Schedule.advance`."""
        del mean_return
        cubic = optax.polynomial_schedule(0.0, self.final_sparsity, 3, self.end - self.begin, self.begin)
        return jnp.asarray(cubic(step), jnp.float32), state


class RewardAwareState(NamedTuple):
    """State of `RewardAware`, float32 scalars.

    Attributes:
      sparsity: Current sparsity.
      best: Largest mean return so far; -inf before the first.
      worst: Smallest mean return so far; inf before the first.
      fell_at: Sparsity at which returns last began to fall; inf once they have held up there.
      falls: Number of falls since returns last held up at that sparsity.
      falling: 1 from the beginning of a fall until returns hold up again, else 0.
      waited: Number of changes since the last one that were left out because of `fell_at`.
    """

    sparsity: Array
    best: Array
    worst: Array
    fell_at: Array
    falls: Array
    falling: Array
    waited: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardAware:
    """A sparsity that rises only while the recent mean return holds up.

        rule = vx.sparsity.Magnitude(schedule=vx.sparsity.RewardAware(final_sparsity=0.9), every=5_000)
        schedule = vx.sparsity.RewardAware(final_sparsity=0.8, increment=0.05, begin=10_000)

    Group-sparse training (Lee et al. 2021, arXiv 2101.09650) adapts its target to the reward. The paper does not
    publish the rule, so this rule is ours. It measures the distance of the mean return below its best so far, as a
    share of the range from its worst to its best. If the share is within `tolerance`, the sparsity rises by
    `increment`. If it is within twice the tolerance, the sparsity stays. Otherwise the sparsity falls by `increment`.
    Shifting and scaling rewards therefore changes nothing. The range of returns must have grown to several times their
    noise before the rule can tell a drop from noise. A constant return holds up.

    A sparsity at which returns fell is tried again when returns hold up. If they fall again, it is tried only at the
    2nd time that they hold up, then at the 4th, the 8th and so on. Otherwise a network that needs its weights would
    lose and regrow some of them at every other change.

    Attributes:
      final_sparsity: Largest sparsity, in [0, 1).
      initial_sparsity: Sparsity at the beginning, and the smallest.
      increment: Size of each change, in (0, 1].
      tolerance: Share of the range of returns by which the mean return may be below its best, in (0, 1].
      begin: Update before which nothing changes.

    Raises:
      ValueError: A setting is out of its range. `advance` raises it without a mean return.
    """

    final_sparsity: float
    initial_sparsity: float = 0.0
    increment: float = 0.02
    tolerance: float = 0.1
    begin: int = 0

    def __post_init__(self):
        check_sparsity("final_sparsity", self.final_sparsity)
        check_sparsity("initial_sparsity", self.initial_sparsity)
        integers(self, "begin", low=0)
        if self.initial_sparsity > self.final_sparsity:
            raise ValueError(f"initial_sparsity={self.initial_sparsity} exceeds final_sparsity={self.final_sparsity}")
        numbers(self, "increment", "tolerance", above=0, high=1)

    def init(self) -> RewardAwareState:
        """Returns the state before the first return."""
        values = (self.initial_sparsity, -jnp.inf, jnp.inf, jnp.inf, 0.0, 0.0, 0.0)
        return RewardAwareState(*map(jnp.float32, values))

    def advance(
        self, state: RewardAwareState, step: Array, mean_return: Array | None
    ) -> tuple[Array, RewardAwareState]:
        """See `Schedule.advance`."""
        if mean_return is None:
            raise ValueError("RewardAware needs the mean return: update(gradient, state, params, mean_return=...)")
        mean_return = jnp.where(jnp.isfinite(mean_return), mean_return, jnp.nan)  # an infinite best would stay
        best, worst = jnp.fmax(state.best, mean_return), jnp.fmin(state.worst, mean_return)
        below = (best - mean_return) / jnp.maximum(best - worst, 1e-8)
        # There is no return before the first episode has ended.
        decides = jnp.isfinite(mean_return) & (step >= self.begin)
        holds, drops = decides & (below <= self.tolerance), decides & (below > 2 * self.tolerance)

        passed = holds & self._reaches(state.sparsity, state.fell_at)
        begins = drops & (state.falling == 0)
        fell_at = jnp.where(passed, jnp.inf, jnp.where(begins, state.sparsity, state.fell_at))
        falls = jnp.where(passed, 0.0, state.falls + begins)
        tries_again = state.waited + 1 >= 2.0 ** (falls - 1)
        waits = holds & self._reaches(state.sparsity + self.increment, fell_at) & ~tries_again

        change = jnp.where(drops, -self.increment, jnp.where(holds & ~waits, self.increment, 0.0))
        sparsity = jnp.clip(state.sparsity + change, self.initial_sparsity, self.final_sparsity)
        falling = jnp.where(drops, 1.0, jnp.where(holds, 0.0, state.falling))
        waited = jnp.where(waits, state.waited + 1, jnp.where(change == 0, state.waited, 0.0))
        return sparsity, RewardAwareState(sparsity, best, worst, fell_at, falls, falling, waited)

    def _reaches(self, sparsity: Array, level: Array) -> Array:
        return sparsity > level - self.increment / 2  # robust to rounding


def check_sparsity(name: str, value: Any) -> None:
    """Raises ValueError unless a sparsity is a number in [0, 1)."""
    if number(name, value, low=0, high=1) == 1:
        raise ValueError(f"{name}={value!r}: give a share below 1")
