"""Metrics by name: what a loss returns, and the scores of the episodes that end while a learner acts.

Both are gathered on the device and become numbers on the host, once in each iteration:

    gathered = metrics.add(gathered, metrics.means({"entropy": entropy.sum()}, count=entropy.size))  # in every update
    episodes, running = metrics.update_episodes(episodes, running, timestep)  # at every beat
    row = metrics.compute(gathered) | metrics.scores(jax.device_get(episodes))  # {"entropy": 0.69, "training_mean": 20}
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from volvox.types import ALONE, Array, Axis, TimeStep

WINDOW = 100
"""Episodes over which scores are averaged."""


class Mean(NamedTuple):
    """A mean that is not divided yet.

    Attributes:
      total: float32 `[...]`: Sum of the values.
      num: float32: Number of values in the sum.
    """

    total: Array
    num: Array


class Maximum(NamedTuple):
    """A largest value.

    Attributes:
      value: `[...]`: The largest so far; none is negative.
    """

    value: Array


Metrics = dict[str, Mean | Maximum]


def means(totals: dict[str, Array], count: Array | float = 1.0) -> Metrics:
    """Returns metrics whose sums over `count` values are given."""
    return {name: Mean(total, jnp.float32(count)) for name, total in totals.items()}


def zeros(like: Metrics) -> Metrics:
    """Returns metrics of no values, with the names and shapes of others, which `jax.eval_shape` can give."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)


def add(old: Metrics, new: Metrics) -> Metrics:
    """Adds further values to the metrics of the same names; metrics of other names stay, or begin, as they are."""
    return old | {name: _add(old[name], x) if name in old else x for name, x in new.items()}


def mean(x: Array, valid: Array) -> Array:
    """Returns the means `[...]` of what is valid in `[..., N]`; 0 where nothing is."""
    return jnp.where(valid, x, 0.0).sum(axis=-1) / jnp.maximum(valid.sum(axis=-1), 1)


def variance(x: Array, valid: Array, axis: Axis) -> Array:
    """Returns the variance of what is valid in `[...]`, on all devices; NaN where nothing is."""
    total, num = axis.sum((x.sum(where=valid), valid.sum(dtype=jnp.float32)))
    return axis.sum(((x - total / num) ** 2).sum(where=valid)) / num


def compute(gathered: Metrics) -> dict[str, float]:
    """Returns the metrics as numbers, averaged over several learners. Means of no values are left out."""
    gathered = jax.device_get(gathered)
    row = {}
    for name, x in gathered.items():
        if isinstance(x, Maximum):
            row[name] = np.max(x.value).item()
        elif x.num:
            row[name] = float(np.mean(x.total)) / float(x.num)
    return row


def _add(old: Mean | Maximum, new: Mean | Maximum) -> Mean | Maximum:
    if isinstance(old, Maximum) or isinstance(new, Maximum):
        return Maximum(jnp.maximum(old[0], new[0]))
    return Mean(old.total + new.total, old.num + new.num)


class Episodes(NamedTuple):
    """Scores of the episodes that have ended, by the rules of the game itself.

    Attributes:
      total: int32: Number of episodes.
      returns: float32 `[WINDOW]`: Undiscounted returns of the latest, in a ring.
      lengths: int32 `[WINDOW]`: Their lengths in timesteps.
    """

    total: Array
    returns: Array
    lengths: Array


class RunningEpisodes(NamedTuple):
    """Episodes that have not ended yet.

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
    """Adds one timestep of `B` environments.

    Args:
      episodes: Those that have ended before.
      running: The environments' episodes before this timestep.
      timestep: Fields `[B]`; the observation is not used.

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
    place = (episodes.total + number - 1) % WINDOW
    place = jnp.where(ended & (number > number[-1] - WINDOW), place, WINDOW)
    episodes = Episodes(
        total=episodes.total + number[-1],
        returns=episodes.returns.at[place].set(returns, mode="drop"),
        lengths=episodes.lengths.at[place].set(lengths, mode="drop"),
    )
    return episodes, RunningEpisodes(returns, lengths)


def latest_mean(episodes: Episodes, *, num_envs: int, axis: Axis = ALONE) -> Array:
    """Returns the mean return of the latest episodes; NaN before the first has ended.

    It is of as many episodes as `num_envs` environments play at once, but of at least 10 and at most `WINDOW`. Of
    several devices each has its share of these episodes and of the environments.
    """
    count = -(-min(max(num_envs, 10), WINDOW) // axis.size)
    age = (episodes.total - 1 - jnp.arange(WINDOW)) % WINDOW  # 0 is the newest
    held = age < jnp.minimum(episodes.total, count)
    total, num = axis.sum((jnp.where(held, episodes.returns, 0.0).sum(), held.sum(dtype=jnp.float32)))
    return total / jnp.where(num > 0, num, jnp.nan)


def joined(episodes: Episodes, gathered: Metrics, axis: Axis) -> tuple[Episodes, Metrics]:
    """Returns the scores of episodes `[...]`, and the metrics, of all devices together; for a program on all of them.

    The latest episodes of each device are taken, the same number from each.
    """
    join = functools.partial(_joined, axis=axis)
    several = jax.vmap(join) if episodes.total.ndim else join
    totals = {name: x for name, x in gathered.items() if isinstance(x, Mean)}
    largest = {name: x for name, x in gathered.items() if isinstance(x, Maximum)}
    summed = {**axis.sum(totals), **jax.lax.pmax(largest, axis.name)}
    return several(episodes), {name: summed[name] for name in gathered}


def _joined(episodes: Episodes, axis: Axis) -> Episodes:
    ages = jnp.arange(WINDOW)
    newest = (episodes.total - 1 - ages) % WINDOW
    held = ages < episodes.total
    ordered = (held, episodes.returns[newest], episodes.lengths[newest])
    # The newest of each device, then the second newest of each.
    held, returns, lengths = (x.T.ravel() for x in jax.lax.all_gather(ordered, axis.name))
    chosen = jnp.argsort(~held, stable=True)[:WINDOW]
    total = axis.sum(episodes.total)
    place = (total - 1 - ages) % WINDOW
    return Episodes(
        total=total,
        returns=jnp.zeros(WINDOW, jnp.float32).at[place].set(returns[chosen]),
        lengths=jnp.zeros(WINDOW, jnp.int32).at[place].set(lengths[chosen]),
    )


def scores(episodes: Episodes) -> dict[str, float]:
    """Returns metrics of the latest episodes, given on the host; none before the first episode has ended."""
    count = min(int(episodes.total), WINDOW)
    if not count:
        return {}
    returns, lengths = episodes.returns[:count], episodes.lengths[:count]
    with np.errstate(invalid="ignore"):  # infinite returns have no deviation
        return {
            "training_mean": float(returns.mean()),
            "training_std": float(returns.std()),
            "training_best": float(returns.max()),
            "episode_length": float(lengths.mean()),
        }
