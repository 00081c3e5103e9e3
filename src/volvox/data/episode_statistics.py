"""Scores of the episodes that environments have finished while somebody learns, by the game's own rules."""

from typing import NamedTuple

import jax.numpy as jnp

from volvox.types import Array, TimeStep

RECENT = 100
"""Episodes over which scores are averaged."""


class Episodes(NamedTuple):
    """Episodes that ended.

    Attributes:
      total: int32: how many.
      returns: float32 `[RECENT]`: of the latest, in a ring.
      lengths: int32 `[RECENT]`.
    """

    total: Array
    returns: Array
    lengths: Array


class Running(NamedTuple):
    """Episodes that go on.

    Attributes:
      returns: float32 `[B]`: unclipped rewards so far.
      lengths: int32 `[B]`.
    """

    returns: Array
    lengths: Array


def no_episodes() -> Episodes:
    """None ended yet."""
    return Episodes(jnp.int32(0), jnp.zeros(RECENT, jnp.float32), jnp.zeros(RECENT, jnp.int32))


def begun(num_envs: int) -> Running:
    """Episodes of which nothing has been played."""
    return Running(jnp.zeros(num_envs, jnp.float32), jnp.zeros(num_envs, jnp.int32))


def book(episodes: Episodes, running: Running, timestep: TimeStep) -> tuple[Episodes, Running]:
    """One time step of `B` environments.

    Args:
      episodes: that ended before.
      running: of the environments.
      timestep: fields `[B]`.

    Returns:
      Both after it.
    """
    live = ~timestep.first
    returns = jnp.where(live, running.returns + timestep.reward, 0.0)
    lengths = jnp.where(live, running.lengths + 1, 0)
    ended = live & (timestep.terminated | timestep.truncated)
    number = jnp.cumsum(ended, dtype=jnp.int32)
    # Of more than RECENT ends in one beat the last ones stay.
    place = (episodes.total + number - 1) % RECENT
    place = jnp.where(ended & (number > number[-1] - RECENT), place, RECENT)
    episodes = Episodes(
        total=episodes.total + number[-1],
        returns=episodes.returns.at[place].set(returns, mode="drop"),
        lengths=episodes.lengths.at[place].set(lengths, mode="drop"),
    )
    return episodes, Running(returns, lengths)


def latest_mean(episodes: Episodes, *, num_envs: int) -> Array:
    """Mean return of the latest episodes, of so many as `num_envs` environments play at once, but of 10 to `RECENT`.

    NaN before the first has ended.
    """
    count = min(max(num_envs, 10), RECENT)
    age = (episodes.total - 1 - jnp.arange(RECENT)) % RECENT  # 0 is the newest
    held = age < jnp.minimum(episodes.total, count)
    return jnp.where(held, episodes.returns, 0.0).sum() / jnp.where(episodes.total > 0, held.sum(), jnp.nan)


def scores(episodes: Episodes) -> dict[str, float]:
    """Figures of the latest episodes (on the host); none before the first has ended."""
    recent = min(int(episodes.total), RECENT)
    if not recent:
        return {}
    returns, lengths = episodes.returns[:recent], episodes.lengths[:recent]
    return {
        "training_mean": float(returns.mean()),
        "training_std": float(returns.std()),
        "training_best": float(returns.max()),
        "episode_length": float(lengths.mean()),
    }
