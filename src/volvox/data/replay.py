"""Replay: the last steps of some environments, to learn from again and again.

A ring of `C` rows, each what `B` environments showed at one beat and what was then done. The reward of a step, and
where it led, stand in the row after it: no observation is held twice.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from volvox.types import Array, EnvSpec, TimeStep


class Replay(NamedTuple):
    """Rows of `B` environments, in a ring.

    Attributes:
      observation: `[C, B, ...]`.
      action: `[C, B, ...]`: done at that observation; discarded where the row after is `first`.
      reward: float32 `[C, B]`: of the step that led to the observation.
      first: bool `[C, B]`: the observation begins an episode.
      terminated: bool `[C, B]`: the observation is an episode's last, by the rules of the environment.
      truncated: bool `[C, B]`: a time limit made it the last.
      rows: int32: rows ever appended; row i stands at place `i % C`.
    """

    observation: Array
    action: Array
    reward: Array
    first: Array
    terminated: Array
    truncated: Array
    rows: Array


class Batch(NamedTuple):
    """`N` transitions of up to `n` steps each.

    Attributes:
      observation: `[N, ...]`.
      action: `[N, ...]`.
      reward: float32 `[N]`: discounted sum until the end of the episode, but of n steps at most.
      discount: float32 `[N]`: of the value of what follows; 0 where the episode ended by its rules.
      following: `[N, ...]`: the observation after those steps.
      valid: bool `[N]`: False where the action was discarded; nothing else of such a transition means anything.
    """

    observation: Array
    action: Array
    reward: Array
    discount: Array
    following: Array
    valid: Array


def empty(num_rows: int, num_envs: int, spec: EnvSpec) -> Replay:
    """A ring of zeros.

    Args:
      num_rows: C.
      num_envs: B.
      spec: of the environments.

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


def append(replay: Replay, timestep: TimeStep, action: Array) -> Replay:
    """Adds what was seen and done at one beat.

    Args:
      replay: of these environments.
      timestep: fields `[B, ...]`.
      action: `[B, ...]`.

    Returns:
      Replay; where it was full, without its oldest row.
    """
    place = replay.rows % replay.reward.shape[0]

    def put(rows: Array, row: Array) -> Array:
        # One update slice stays in place inside a compiled loop.
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


def num_starts(replay: Replay, num_steps: int) -> Array:
    """Rows in which a transition of `num_steps` steps may begin, int32."""
    held = jnp.minimum(replay.rows, replay.reward.shape[0])
    return jnp.maximum(held - num_steps, 0)


def sample(
    key: Array,
    replay: Replay,
    size: int,
    *,
    discount: float,
    num_steps: int = 1,
    envs: tuple[int | Array, int | Array] | None = None,
) -> Batch:
    """Draws transitions uniformly, with repetition.

    Args:
      key: of the draw.
      replay: of which `num_starts` is positive.
      size: N.
      discount: γ.
      num_steps: n, of a transition.
      envs: (begin, end) of the environments that are drawn from; None: all.

    Returns:
      `Batch`.
    """
    capacity = replay.reward.shape[0]
    begin, end = (0, replay.reward.shape[1]) if envs is None else envs
    # One draw for both: making random numbers takes a loop each time. Remainders are even to n in 2**32.
    bits = jax.random.bits(key, (2, size))
    starts = num_starts(replay, num_steps)
    oldest = replay.rows - jnp.minimum(replay.rows, capacity)
    row = oldest + (bits[0] % jnp.maximum(starts, 1).astype(jnp.uint32)).astype(jnp.int32)
    env = begin + (bits[1] % jnp.asarray(end - begin, jnp.uint32)).astype(jnp.int32)

    def at(field: Array, step: int | Array) -> Array:
        return field[(row + step) % capacity, env]

    reward, going_on = jnp.zeros(size), jnp.ones(size, bool)
    weight, bootstraps, steps = jnp.ones(size), jnp.ones(size, bool), jnp.zeros(size, jnp.int32)
    for step in range(1, num_steps + 1):
        if step > 1:  # where a run was resumed, an episode begins that none ended before
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
        following=at(replay.observation, steps),
        valid=~at(replay.first, 1),
    )
