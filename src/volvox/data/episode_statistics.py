"""Scores of the episodes that environments finish while a learner acts in them, by the rules of the game itself."""

from typing import NamedTuple

import chex
import jax.numpy as jnp

from volvox.types import Array, TimeStep

WINDOW = 100
"""Episodes over which scores are averaged."""


class EpisodeStatistics(NamedTuple):
    """Episodes that have ended.

    Attributes:
      total: int32: their number.
      returns: float32 `[WINDOW]`: undiscounted returns of the latest, in a ring.
      lengths: int32 `[WINDOW]`: their lengths in timesteps.
    """

    total: Array
    returns: Array
    lengths: Array


class RunningEpisodes(NamedTuple):
    """Episodes that have not ended yet.

    Attributes:
      returns: float32 `[B]`: sums of unclipped rewards so far.
      lengths: int32 `[B]`: timesteps so far.
    """

    returns: Array
    lengths: Array


def init() -> EpisodeStatistics:
    """Statistics before any episode has ended."""
    return EpisodeStatistics(jnp.int32(0), jnp.zeros(WINDOW, jnp.float32), jnp.zeros(WINDOW, jnp.int32))


def init_running(num_envs: int) -> RunningEpisodes:
    """Episodes of `num_envs` environments, of which nothing has been played."""
    return RunningEpisodes(jnp.zeros(num_envs, jnp.float32), jnp.zeros(num_envs, jnp.int32))


def update(
    statistics: EpisodeStatistics, running: RunningEpisodes, timestep: TimeStep
) -> tuple[EpisodeStatistics, RunningEpisodes]:
    """Adds one timestep of `B` environments.

    Args:
      statistics: of episodes that ended before.
      running: the environments' episodes before this timestep.
      timestep: fields `[B]`; its observation is not looked at.

    Returns:
      Both after the timestep.
    """
    flags = [timestep.reward, timestep.first, timestep.terminated, timestep.truncated]
    chex.assert_equal_shape([*running, *flags])
    live = ~timestep.first
    returns = jnp.where(live, running.returns + timestep.reward, 0.0)
    lengths = jnp.where(live, running.lengths + 1, 0)
    ended = live & (timestep.terminated | timestep.truncated)
    number = jnp.cumsum(ended, dtype=jnp.int32)
    # If more than WINDOW episodes end in one beat, the last ones stay.
    place = (statistics.total + number - 1) % WINDOW
    place = jnp.where(ended & (number > number[-1] - WINDOW), place, WINDOW)
    statistics = EpisodeStatistics(
        total=statistics.total + number[-1],
        returns=statistics.returns.at[place].set(returns, mode="drop"),
        lengths=statistics.lengths.at[place].set(lengths, mode="drop"),
    )
    return statistics, RunningEpisodes(returns, lengths)


def latest_mean(statistics: EpisodeStatistics, *, num_envs: int) -> Array:
    """Mean return of the latest episodes: of as many as `num_envs` environments play at once, between 10 and `WINDOW`.

    NaN before the first episode has ended.
    """
    count = min(max(num_envs, 10), WINDOW)
    age = (statistics.total - 1 - jnp.arange(WINDOW)) % WINDOW  # 0 is the newest
    held = age < jnp.minimum(statistics.total, count)
    return jnp.where(held, statistics.returns, 0.0).sum() / jnp.where(statistics.total > 0, held.sum(), jnp.nan)


def scores(statistics: EpisodeStatistics) -> dict[str, float]:
    """Metrics of the latest episodes, computed on the host; none before the first episode has ended."""
    count = min(int(statistics.total), WINDOW)
    if not count:
        return {}
    returns, lengths = statistics.returns[:count], statistics.lengths[:count]
    return {
        "training_mean": float(returns.mean()),
        "training_std": float(returns.std()),
        "training_best": float(returns.max()),
        "episode_length": float(lengths.mean()),
    }
