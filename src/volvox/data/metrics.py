"""Metrics by name, and the scores of the episodes that end while a learner acts.

Both are gathered on the device and become numbers on the host, once in each iteration:

    gathered = metrics.add(gathered, metrics.means({"entropy": entropy.sum()}, count=entropy.size))  # in every update
    episodes, running = metrics.update_episodes(episodes, running, timestep)  # at every beat
    row = metrics.compute(gathered) | metrics.scores(episodes)  # {"entropy": 0.69, "training_mean": 20}
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.types import ALONE, Array, Axis, TimeStep

EACH = "_each"
"""Suffix of the names of metrics that are lists over several learners."""
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
    """The maximum `[...]` of values that are not negative."""

    value: Array


Metrics = dict[str, Mean | Maximum]


def means(totals: dict[str, Array], count: Array | float = 1.0) -> Metrics:
    """Returns metrics from sums over `count` values."""
    return {name: Mean(total, jnp.float32(count)) for name, total in totals.items()}


def add(old: Metrics, new: Metrics) -> Metrics:
    """Adds further values to the metrics of the same names; other metrics stay, and new names are added."""

    def added(old: Any, new: Any) -> Any:
        if isinstance(new, Mean):
            return Mean(old.total + new.total, old.num + new.num)
        return Maximum(jnp.maximum(old.value, new.value))

    return old | {name: added(old[name], x) if name in old else x for name, x in new.items()}


def mean(x: Array, valid: Array) -> Array:
    """Returns the means `[...]` of the valid entries of `[..., N]`; 0 if none is valid."""
    return jnp.where(valid, x, 0.0).sum(axis=-1) / jnp.maximum(valid.sum(axis=-1), 1)


def variance(x: Array, valid: Array, axis: Axis) -> Array:
    """Returns the variance of the valid entries of `[...]` on all devices; NaN if none is valid."""
    total, num = axis.sum((x.sum(where=valid), valid.sum(dtype=jnp.float32)))
    return axis.sum(((x - total / num) ** 2).sum(where=valid)) / num


def compute(gathered: Metrics) -> dict[str, float]:
    """Returns the metrics as numbers. Means of no values are left out."""
    row = {}
    for name, x in jax.device_get(gathered).items():
        if isinstance(x, Maximum):
            row[name] = np.max(x.value).item()
        elif x.num:
            row[name] = float(x.total) / float(x.num)
    return row


class Episodes(NamedTuple):
    """Scores of the episodes that have ended.

    Attributes:
      total: int32: Number of episodes.
      returns: float32 `[WINDOW]`: Undiscounted returns of the latest episodes, in a ring.
      lengths: int32 `[WINDOW]`: Their lengths in timesteps.
    """

    total: Array
    returns: Array
    lengths: Array


RunningEpisodes = tuple[Array, Array]
"""Episodes that have not ended: (sums of unclipped rewards float32 `[B]`, timesteps int32 `[B]`)."""


def init_episodes(*batch: int) -> Episodes:
    """Returns the scores before any episode has ended, leaves `[*batch, ...]`."""
    latest = (*batch, WINDOW)
    return Episodes(jnp.zeros(batch, jnp.int32), jnp.zeros(latest, jnp.float32), jnp.zeros(latest, jnp.int32))


def update_episodes(
    episodes: Episodes, running: RunningEpisodes, timestep: TimeStep
) -> tuple[Episodes, RunningEpisodes]:
    """Adds one timestep of `B` environments; its observation is not used."""
    live = ~timestep.first
    returns = jnp.where(live, running[0] + timestep.reward, 0.0)
    lengths = jnp.where(live, running[1] + 1, 0)
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
    return episodes, (returns, lengths)


def _by_age(total: Array) -> Array:
    """Returns the index in the ring of each age, 0 for the newest; the mapping is its own inverse."""
    return (total - 1 - jnp.arange(WINDOW)) % WINDOW


def latest_mean(episodes: Episodes, *, num_envs: int, axis: Axis = ALONE) -> Array:
    """Returns the mean return of the latest episodes; NaN before the first has ended.

    The mean is over the latest `num_envs` episodes, but at least 10 and at most `WINDOW`. Several devices contribute
    equal shares.
    """
    count = -(-min(max(num_envs, 10), WINDOW) // axis.size)
    held = _by_age(episodes.total) < jnp.minimum(episodes.total, count)
    total, num = axis.sum((jnp.where(held, episodes.returns, 0.0).sum(), held.sum(dtype=jnp.float32)))
    return total / jnp.where(num > 0, num, jnp.nan)


_compiled_mean = jax.jit(latest_mean, static_argnames="num_envs")


def over_devices(episodes: Episodes, gathered: Metrics, axis: Axis) -> tuple[Episodes, Metrics]:
    """Returns the scores of episodes and the metrics of all devices together; call it inside `shard_map`.

    The latest episodes of each device are taken, the same number from each.
    """
    places = _by_age(episodes.total)
    ordered = (jnp.arange(WINDOW) < episodes.total, episodes.returns[places], episodes.lengths[places])
    # The newest of each device, then the second newest of each.
    held, returns, lengths = (x.T.ravel() for x in jax.lax.all_gather(ordered, axis.name))
    chosen, total = jnp.argsort(~held, stable=True)[:WINDOW], axis.sum(episodes.total)
    ages = _by_age(total)
    sums = axis.sum({name: x for name, x in gathered.items() if isinstance(x, Mean)})
    largest = jax.lax.pmax({name: x for name, x in gathered.items() if isinstance(x, Maximum)}, axis.name)
    return Episodes(total, returns[chosen][ages], lengths[chosen][ages]), sums | largest


def scores(episodes: Episodes, *, num_envs: int = 1) -> dict[str, float]:
    """Returns metrics of the latest episodes; none before an episode has ended.

    Args:
      episodes: Scores of one learner.
      num_envs: Number of environments.

    Returns:
      `training_mean`, `training_std`, `training_best`, `episode_length`, and `recent_mean` (see `latest_mean`).
    """
    episodes = jax.device_get(episodes)
    if not episodes.total:
        return {}
    returns, lengths = episodes.returns[: episodes.total], episodes.lengths[: episodes.total]
    with np.errstate(invalid="ignore"):  # infinite returns have no deviation
        figures = {"training_mean": returns.mean(), "training_std": returns.std(), "training_best": returns.max()}
    figures |= {"episode_length": lengths.mean(), "recent_mean": _compiled_mean(episodes, num_envs=num_envs)}
    return {name: float(x) for name, x in figures.items()}
