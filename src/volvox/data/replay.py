"""Replay: the latest timesteps of some environments, to learn from again and again.

A ring of `C` rows. A row is a timestep of `B` environments, and the actions that were chosen at it. The reward of an
action and the next observation are in the next row, so that no observation is stored twice.

    rows = replay.init(num_rows=10_000, num_envs=16, spec=env.spec)
    rows = replay.add(rows, timestep, action)  # at every beat
    batch = replay.sample(key, rows, 256, discount=0.99)
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from volvox.ops.batching import min_over_rows
from volvox.types import Array, ArrayTree, EnvSpec, TimeStep, zeros


class Replay(NamedTuple):
    """Rows of `B` environments, in a ring.

    Attributes:
      timestep: Timesteps without extras, leaves `[C, B, ...]`.
      action: `[C, B, ...]`: Actions; an action was discarded if the next row is `first`.
      num_added: int32: Rows added; row i is at index `i % C`. In a full ring, it counts from C to 2 C - 1 again and
        again, and cannot overflow.
    """

    timestep: TimeStep
    action: Array
    num_added: Array


class Batch(NamedTuple):
    """`N` transitions of up to `n` timesteps each.

    Attributes:
      observation: `[N, ...]`.
      action: `[N, ...]`.
      reward: float32 `[N]`: Discounted sum of at most n rewards, until the end of the episode.
      discount: float32 `[N]`: Discount of the next observation's value; 0 if the episode terminated.
      next_observation: `[N, ...]`: The observation after those timesteps.
      valid: bool `[N]`: False if the action was discarded; such a transition never happened.
    """

    observation: ArrayTree
    action: Array
    reward: Array
    discount: Array
    next_observation: ArrayTree
    valid: Array

    def map_observations(self, function: Callable[[ArrayTree], ArrayTree]) -> "Batch":
        """Returns the batch with a function applied to its observations."""
        return self._replace(observation=function(self.observation), next_observation=function(self.next_observation))


def init(num_rows: int, num_envs: int, spec: EnvSpec) -> Replay:
    """Returns a replay of `num_rows` rows (C) of `num_envs` environments (B), all zeros."""
    observation, action = zeros((spec.observation, spec.action), num_rows, num_envs)
    reward, *flags = (jnp.zeros((num_rows, num_envs), dtype) for dtype in (jnp.float32, bool, bool, bool))
    return Replay(TimeStep(observation, reward, *flags, extras={}), action, jnp.int32(0))


def num_rows(replay_size: int, num_envs: int, batch_size: int, n_step: int) -> int:
    """Returns the number of whole rows of `num_envs` environments in a replay of `replay_size` timesteps.

    Raises:
      ValueError: These are too few for a batch.
    """
    least = max(-(-batch_size // num_envs), n_step + 1) * num_envs
    if replay_size < least:
        raise ValueError(
            f"replay_size={replay_size} is too small for batch_size={batch_size}, n_step={n_step} and {num_envs} "
            f"environments; give at least {least}."
        )
    return replay_size // num_envs


def add(replay: Replay, timestep: TimeStep, action: Array) -> Replay:
    """Adds a row of timesteps and actions `[B, ...]`, in place of the oldest one if the replay is full."""
    capacity = replay.action.shape[0]
    place = min_over_rows(replay.num_added) % capacity  # equal in all replays under `vmap`

    def put(rows: Array, row: Array) -> Array:
        # One update slice stays in place inside a compiled loop.
        return jax.lax.dynamic_update_index_in_dim(rows, row.astype(rows.dtype), place, 0)

    given = (timestep._replace(extras={}), action)
    timesteps, actions = jax.tree.map(put, (replay.timestep, replay.action), given)
    num_added = replay.num_added + 1
    return Replay(timesteps, actions, jnp.where(num_added == 2 * capacity, capacity, num_added))


def num_starts(replay: Replay, n_step: int) -> Array:
    """Returns the number of rows in which a transition of `n_step` timesteps may begin, int32."""
    return jnp.maximum(jnp.minimum(replay.num_added, replay.action.shape[0]) - n_step, 0)


def filled(replays: Sequence[Replay], timesteps: int, n_step: int) -> Array:
    """Returns whether replays together hold `timesteps` timesteps or are full, and each has a transition."""
    capacity = sum(replay.timestep.reward.size for replay in replays)
    held = sum(jnp.minimum(x.num_added, x.action.shape[0]) * x.action.shape[1] for x in replays)
    starts = jnp.stack([num_starts(replay, n_step) for replay in replays])
    return (held >= min(timesteps, capacity)) & (starts > 0).all()


def sample(key: Array, replay: Replay, size: int, *, discount: float, n_step: int = 1) -> Batch:
    """Draws transitions uniformly, with repetition.

    Args:
      key: Key of this draw.
      replay: Replay with a positive number of `num_starts`.
      size: N.
      discount: Discount γ of a timestep.
      n_step: Timesteps n of a transition.
    """
    capacity, num_envs = replay.action.shape[:2]
    # One call for both, because each call runs a loop; the modulo bias is below 1e-3.
    bits = jax.random.bits(key, (2, size))
    starts = num_starts(replay, n_step)
    oldest = replay.num_added - jnp.minimum(replay.num_added, capacity)
    row = oldest + (bits[0] % jnp.maximum(starts, 1).astype(jnp.uint32)).astype(jnp.int32)
    env = (bits[1] % jnp.uint32(num_envs)).astype(jnp.int32)

    def at(field: Array, step: int | Array) -> Array:
        return field[(row + step) % capacity, env]

    timestep = replay.timestep
    reward, going_on = jnp.zeros(size), jnp.ones(size, bool)
    weight, bootstraps, steps = jnp.ones(size), jnp.ones(size, bool), jnp.zeros(size, jnp.int32)
    for step in range(1, n_step + 1):
        if step > 1:  # in a resumed run, an episode may begin although none has ended
            going_on &= ~at(timestep.first, step)
        reward += jnp.where(going_on, weight * at(timestep.reward, step), 0.0)
        weight = jnp.where(going_on, weight * discount, weight)
        steps = jnp.where(going_on, step, steps)
        terminated = at(timestep.terminated, step)
        bootstraps &= ~(going_on & terminated)
        going_on &= ~(terminated | at(timestep.truncated, step))
    return Batch(
        observation=jax.tree.map(lambda field: at(field, 0), timestep.observation),
        action=at(replay.action, 0),
        reward=reward,
        discount=jnp.where(bootstraps, weight, 0.0),
        next_observation=jax.tree.map(lambda field: at(field, steps), timestep.observation),
        valid=~at(timestep.first, 1),
    )


def sample_batches(
    key: Array, replays: Sequence[Replay], batch_size: int, num_batches: int, *, discount: float, n_step: int = 1
) -> Batch:
    """Draws batches from the replays of all groups alike.

    Args:
      key: Random key.
      replays: Replay of each group.
      batch_size: N, a multiple of the number of groups.
      num_batches: U.
      discount: Discount γ of a timestep.
      n_step: Timesteps n of a transition.

    Returns:
      `Batch`, leaves `[U, N, ...]`.
    """
    draw = partial(sample, size=num_batches * (batch_size // len(replays)), discount=discount, n_step=n_step)
    parts = [draw(jax.random.fold_in(key, g), replay) for g, replay in enumerate(replays)]
    return jax.tree.map(
        lambda *x: jnp.concatenate([part.reshape(num_batches, -1, *part.shape[1:]) for part in x], axis=1), *parts
    )
