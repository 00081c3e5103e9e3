"""Replay: the latest timesteps of some environments, to learn from again and again.

A ring of `C` rows, each what `B` environments showed at one beat and what was then done. The reward of an action, and
the observation that followed, stand in the next row: no observation is held twice.

    rows = replay.init(num_rows=10_000, num_envs=16, spec=env.spec)
    rows = replay.add(rows, timestep, action)  # at every beat
    batch = replay.sample(key, rows, 256, discount=0.99)
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from volvox.types import Array, EnvSpec, TimeStep


class Replay(NamedTuple):
    """Rows of `B` environments, in a ring.

    Attributes:
      observation: `[C, B, ...]`.
      action: `[C, B, ...]`: done at that observation; discarded where the next row is `first`.
      reward: float32 `[C, B]`: reward of the action that led to the observation.
      first: bool `[C, B]`: the observation begins an episode.
      terminated: bool `[C, B]`: the observation is an episode's last, by the rules of the environment.
      truncated: bool `[C, B]`: a time limit made it the last.
      rows: int32: rows ever added; row i stands at place `i % C`.
    """

    observation: Array
    action: Array
    reward: Array
    first: Array
    terminated: Array
    truncated: Array
    rows: Array


class Batch(NamedTuple):
    """`N` transitions of up to `n` timesteps each.

    Attributes:
      observation: `[N, ...]`.
      action: `[N, ...]`.
      reward: float32 `[N]`: discounted sum until the end of the episode, of at most n rewards.
      discount: float32 `[N]`: discount of the next observation's value; 0 where the episode terminated.
      next_observation: `[N, ...]`: the observation after those timesteps.
      valid: bool `[N]`: False where the action was discarded; nothing else of such a transition means anything.
    """

    observation: Array
    action: Array
    reward: Array
    discount: Array
    next_observation: Array
    valid: Array

    def map_observations(self, function: Callable[[Array], Array]) -> "Batch":
        """The batch with what a function makes of its observations."""
        return self._replace(observation=function(self.observation), next_observation=function(self.next_observation))


def init(num_rows: int, num_envs: int, spec: EnvSpec) -> Replay:
    """A ring of zeros.

    Args:
      num_rows: C.
      num_envs: B.
      spec: the environments.

    Returns:
      `Replay`.
    """

    def zeros(*shape: int, dtype: Any = jnp.float32) -> Array:
        return jnp.zeros((num_rows, num_envs, *shape), dtype)

    action = ((), jnp.int32) if spec.num_actions is not None else (spec.action_shape or (), jnp.float32)
    return Replay(
        observation=zeros(*spec.observation_shape, dtype=spec.observation_dtype),
        action=zeros(*action[0], dtype=action[1]),
        reward=zeros(),
        first=zeros(dtype=bool),
        terminated=zeros(dtype=bool),
        truncated=zeros(dtype=bool),
        rows=jnp.int32(0),
    )


def num_rows(replay_size: int, num_envs: int, *, batch_size: int, n_step: int) -> int:
    """Whole rows of `num_envs` environments in a replay of `replay_size` timesteps.

    Raises:
      ValueError: they do not suffice for a batch.
    """
    least = max(-(-batch_size // num_envs), n_step + 1) * num_envs
    if replay_size < least:
        raise ValueError(
            f"replay_size={replay_size} is too small: in whole rows of a learner's {num_envs} environments a batch of "
            f"{batch_size} and targets of {n_step} timesteps need {least}."
        )
    return replay_size // num_envs


def add(replay: Replay, timestep: TimeStep, action: Array) -> Replay:
    """Adds what was seen and done at one beat.

    Args:
      replay: rows of these environments.
      timestep: fields `[B, ...]`.
      action: `[B, ...]`.

    Returns:
      The replay; without its oldest row, if it was full.
    """
    place = replay.rows % replay.reward.shape[0]

    def put(rows: Array, row: Array) -> Array:
        # One update slice stays in place inside a compiled loop.
        chex.assert_shape(row, rows.shape[1:])
        return jax.lax.dynamic_update_index_in_dim(rows, row.astype(rows.dtype), place, 0)

    return Replay(
        observation=put(replay.observation, timestep.observation),
        action=put(replay.action, action),
        reward=put(replay.reward, timestep.reward),
        first=put(replay.first, timestep.first),
        terminated=put(replay.terminated, timestep.terminated),
        truncated=put(replay.truncated, timestep.truncated),
        rows=replay.rows + 1,
    )


def num_starts(replay: Replay, n_step: int) -> Array:
    """Rows in which a transition of `n_step` timesteps may begin, int32 scalar."""
    held = jnp.minimum(replay.rows, replay.reward.shape[0])
    return jnp.maximum(held - n_step, 0)


def sample(
    key: Array,
    replay: Replay,
    size: int,
    *,
    discount: float,
    n_step: int = 1,
    envs: tuple[int | Array, int | Array] | None = None,
) -> Batch:
    """Draws transitions uniformly, with repetition.

    Args:
      key: random key.
      replay: rows, of which `num_starts` is positive.
      size: N.
      discount: γ.
      n_step: n, timesteps of a transition.
      envs: (begin, end) of the environments that are drawn from; None: all.

    Returns:
      `Batch`.
    """
    capacity = replay.reward.shape[0]
    begin, end = (0, replay.reward.shape[1]) if envs is None else envs
    # One draw for both: making random numbers takes a loop each time. Remainders are even to n in 2**32.
    bits = jax.random.bits(key, (2, size))
    starts = num_starts(replay, n_step)
    oldest = replay.rows - jnp.minimum(replay.rows, capacity)
    row = oldest + (bits[0] % jnp.maximum(starts, 1).astype(jnp.uint32)).astype(jnp.int32)
    env = begin + (bits[1] % jnp.asarray(end - begin, jnp.uint32)).astype(jnp.int32)

    def at(field: Array, step: int | Array) -> Array:
        return field[(row + step) % capacity, env]

    reward, going_on = jnp.zeros(size), jnp.ones(size, bool)
    weight, bootstraps, steps = jnp.ones(size), jnp.ones(size, bool), jnp.zeros(size, jnp.int32)
    for step in range(1, n_step + 1):
        if step > 1:  # where a run was resumed, an episode begins although none has ended before
            going_on &= ~at(replay.first, step)
        reward += jnp.where(going_on, weight * at(replay.reward, step), 0.0)
        weight = jnp.where(going_on, weight * discount, weight)
        steps = jnp.where(going_on, step, steps)
        terminated = at(replay.terminated, step)
        bootstraps &= ~(going_on & terminated)
        going_on &= ~(terminated | at(replay.truncated, step))
    return Batch(
        observation=at(replay.observation, 0),
        action=at(replay.action, 0),
        reward=reward,
        discount=jnp.where(bootstraps, weight, 0.0),
        next_observation=at(replay.observation, steps),
        valid=~at(replay.first, 1),
    )


def sample_batches(
    keys: Array, replays: Sequence[Replay], batch_size: int, num_batches: int, *, discount: float, n_step: int = 1
) -> Batch:
    """Draws batches for several learners, each from its share of the environments, from all groups alike.

    Args:
      keys: `[S]`, a random key for each learner.
      replays: one a group; environments of a learner stand side by side.
      batch_size: N, a multiple of the number of groups.
      num_batches: U.
      discount: γ.
      n_step: n, timesteps of a transition.

    Returns:
      `Batch`, leaves `[U, S, N, ...]`.
    """
    chex.assert_rank(keys, 1)
    draw = partial(sample, size=num_batches * (batch_size // len(replays)), discount=discount, n_step=n_step)

    def of_learner(key: Array, learner: Array) -> Batch:
        parts = []
        for g, replay in enumerate(replays):
            width = replay.reward.shape[1] // len(keys)
            envs = (learner * width, (learner + 1) * width)
            part = draw(jax.random.fold_in(key, g), replay, envs=envs)
            parts.append(jax.tree.map(lambda x: x.reshape(num_batches, -1, *x.shape[1:]), part))
        return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *parts)

    return jax.vmap(of_learner, out_axes=1)(keys, jnp.arange(len(keys)))


def filled(replays: Sequence[Replay], timesteps: int, n_step: int) -> Array:
    """Whether replays together hold so many timesteps, or are full, and each has transitions of `n_step` timesteps."""
    capacity = sum(replay.reward.size for replay in replays)
    held = sum(jnp.minimum(x.rows, x.reward.shape[0]) * x.reward.shape[1] for x in replays)
    enough = jnp.asarray(held >= min(timesteps, capacity))
    for replay in replays:
        enough &= num_starts(replay, n_step) > 0
    return enough


def latest(replay: Replay) -> Array:
    """Observations `[B, ...]` of the latest row."""
    place = (replay.rows - 1) % replay.reward.shape[0]
    return jax.lax.dynamic_index_in_dim(replay.observation, place, keepdims=False)
