"""Metrics by name, and the scores of the episodes that end while a learner acts.

Both are gathered on the device and become numbers on the host, once in each iteration:

    gathered = metrics.add(gathered, metrics.means({"entropy": entropy.sum()}, count=entropy.size))  # in every update
    episodes, running = metrics.update_episodes(episodes, running, timestep)  # at every beat
    row = metrics.compute(gathered) | metrics.scores(episodes)  # {"entropy": 0.69, "training_mean": 20}
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from volvox.types import ALONE, Array, Axis, TimeStep, zeros

WINDOW = 100
"""Episodes over which scores are averaged."""


class Mean(NamedTuple):
    """The mean of values that are added one after another.

    Attributes:
      total: float32 `[...]`: Sum of the values.
      num: float32: Number of values in the sum.
    """

    total: Array
    num: Array


class Maximum(NamedTuple):
    """The maximum of values that are not negative: `[...]`."""

    value: Array


Metrics = dict[str, Mean | Maximum]


def means(totals: dict[str, Array], count: Array | float = 1.0) -> Metrics:
    """Returns metrics from sums over `count` values."""
    return {name: Mean(total, jnp.float32(count)) for name, total in totals.items()}


def add(old: Metrics, new: Metrics) -> Metrics:
    """Adds further values to the metrics of the same names; metrics of other names are kept as they are."""

    def added(old: Any, new: Any) -> Any:
        if isinstance(new, Maximum):
            return Maximum(jnp.maximum(old.value, new.value))
        return Mean(old.total + new.total, old.num + new.num)

    return old | {name: added(old[name], x) if name in old else x for name, x in new.items()}


def mean(x: Array, valid: Array) -> Array:
    """Returns the means `[...]` of the valid entries of `[..., N]`; 0 if none is valid."""
    return jnp.where(valid, x, 0.0).sum(axis=-1) / jnp.maximum(valid.sum(axis=-1), 1)


def variance(x: Array, valid: Array, axis: Axis) -> Array:
    """Returns the variance of the valid entries of `[...]` on all devices; NaN if none is valid."""
    total, num = axis.sum((x.sum(where=valid), valid.sum(dtype=jnp.float32)))
    return axis.sum(((x - total / num) ** 2).sum(where=valid)) / num


def compute(gathered: Metrics) -> dict[str, float]:
    """Returns the metrics as numbers, averaged over several learners. Means of no values are left out."""
    row = {}
    for name, x in jax.device_get(gathered).items():
        if not isinstance(x, Mean):
            row[name] = np.max(x.value).item()
        elif x.num:
            row[name] = float(np.mean(x.total)) / float(x.num)
    return row


class Episodes(NamedTuple):
    """Scores of the episodes that have ended; leaves `[S, ...]` if S learners are trained side by side.

    Attributes:
      total: int32: Number of episodes.
      returns: float32 `[WINDOW]`: Undiscounted returns of the latest episodes, in a ring.
      lengths: int32 `[WINDOW]`: Their lengths in timesteps.
    """

    total: Array
    returns: Array
    lengths: Array


class RunningEpisodes(NamedTuple):
    """Episodes that have not ended.

    Attributes:
      returns: float32 `[B]`: Sums of unclipped rewards so far.
      lengths: int32 `[B]`: Timesteps so far.
    """

    returns: Array
    lengths: Array


def init_episodes() -> Episodes:
    """Returns the scores before any episode has ended."""
    return Episodes(jnp.int32(0), jnp.zeros(WINDOW, jnp.float32), jnp.zeros(WINDOW, jnp.int32))


def init_running(num_envs: int) -> RunningEpisodes:
    """Returns the episodes of `num_envs` environments before their first timestep."""
    return RunningEpisodes(jnp.zeros(num_envs, jnp.float32), jnp.zeros(num_envs, jnp.int32))


def update_episodes(
    episodes: Episodes, running: RunningEpisodes, timestep: TimeStep
) -> tuple[Episodes, RunningEpisodes]:
    """Adds one timestep of `B` environments, whose observation is not used."""
    flags = [timestep.reward, timestep.first, timestep.terminated, timestep.truncated]
    chex.assert_equal_shape([*running, *flags])
    live = ~timestep.first
    returns = jnp.where(live, running.returns + timestep.reward, 0.0)
    lengths = jnp.where(live, running.lengths + 1, 0)
    ended = live & (timestep.terminated | timestep.truncated)
    number = jnp.cumsum(ended, dtype=jnp.int32)
    # If more than WINDOW episodes end in one beat, the last ones are kept.
    place = (episodes.total + number - 1) % WINDOW
    place = jnp.where(ended & (number > number[-1] - WINDOW), place, WINDOW)
    episodes = Episodes(
        total=episodes.total + number[-1],
        returns=episodes.returns.at[place].set(returns, mode="drop"),
        lengths=episodes.lengths.at[place].set(lengths, mode="drop"),
    )
    return episodes, RunningEpisodes(returns, lengths)


def latest_mean(episodes: Episodes, *, num_envs: int, axis: Axis = ALONE) -> Array:
    """Returns the mean return of the latest episodes of one learner; NaN before the first has ended.

    The number of these episodes is that of the learner's environments, but at least 10 and at most `WINDOW`. Several
    devices contribute equal shares.
    """
    count = -(-min(max(num_envs, 10), WINDOW) // axis.size)
    age = (episodes.total - 1 - jnp.arange(WINDOW)) % WINDOW  # 0 is the newest
    held = age < jnp.minimum(episodes.total, count)
    total, num = axis.sum((jnp.where(held, episodes.returns, 0.0).sum(), held.sum(dtype=jnp.float32)))
    return total / jnp.where(num > 0, num, jnp.nan)


def over_devices(episodes: Episodes, gathered: Metrics, axis: Axis) -> tuple[Episodes, Metrics]:
    """Returns the scores of episodes and the metrics of all devices together, inside of their program.

    The latest episodes of each device are taken, the same number from each.
    """

    def join(episodes: Episodes) -> Episodes:
        ages = jnp.arange(WINDOW)
        newest = (episodes.total - 1 - ages) % WINDOW
        ordered = (ages < episodes.total, episodes.returns[newest], episodes.lengths[newest])
        # The newest of each device, then the second newest of each.
        held, returns, lengths = (x.T.ravel() for x in jax.lax.all_gather(ordered, axis.name))
        chosen = jnp.argsort(~held, stable=True)[:WINDOW]
        total = axis.sum(episodes.total)
        place = (total - 1 - ages) % WINDOW
        empty = zeros(episodes)
        return Episodes(
            total=total,
            returns=empty.returns.at[place].set(returns[chosen]),
            lengths=empty.lengths.at[place].set(lengths[chosen]),
        )

    sums = axis.sum({name: x for name, x in gathered.items() if isinstance(x, Mean)})
    largest = jax.lax.pmax({name: x for name, x in gathered.items() if not isinstance(x, Mean)}, axis.name)
    return (jax.vmap(join) if episodes.total.ndim else join)(episodes), sums | largest


def scores(episodes: Episodes, *, num_envs: int = 1) -> dict[str, float]:
    """Returns metrics of the latest episodes; none before an episode of each learner has ended.

    Args:
      episodes: Scores of one learner, or of S learners.
      num_envs: Number of environments of one learner.

    Returns:
      `training_mean`, `training_std`, `training_best` and `episode_length`. For S learners these are means over the
      learners, and the best of all; they also have `recent_mean` (see `latest_mean`) and, if S > 1, the means of each.
    """
    episodes = jax.device_get(episodes)
    side_by_side = episodes.total.ndim > 0
    learners = [Episodes(*one) for one in zip(*episodes, strict=True)] if side_by_side else [episodes]
    rows = []
    for one in learners:
        count = min(int(one.total), WINDOW)
        if not count:
            return {}
        returns, lengths = one.returns[:count], one.lengths[:count]
        with np.errstate(invalid="ignore"):  # infinite returns have no deviation
            figures = {"training_mean": returns.mean(), "training_std": returns.std(), "training_best": returns.max()}
        rows.append({name: float(x) for name, x in figures.items()} | {"episode_length": float(lengths.mean())})
    row = {name: float(np.mean([one[name] for one in rows])) for name in rows[0]}
    row["training_best"] = max(one["training_best"] for one in rows)
    if side_by_side:
        recent = np.asarray([latest_mean(one, num_envs=num_envs) for one in learners], np.float32)
        row["recent_mean"] = float(recent.mean())
        if len(rows) > 1:
            row |= {f"training_mean_{i}": one["training_mean"] for i, one in enumerate(rows)}
            row |= {f"recent_mean_{i}": float(value) for i, value in enumerate(recent)}
    return row
