"""Segments: what a group of environments did in the last few rounds, for a learner that looks at it later.

A ring of `R` segments of `L` steps of `B` environments. A step is appended when its action is chosen, and completed
when the next time step tells its reward; the last step of a segment is completed in the round after.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from volvox.types import Array, ArrayTree, EnvSpec, TimeStep


class Segment(NamedTuple):
    """`T` steps of `B` environments, time first; the ring holds the same with a leading axis `R`.

    Attributes:
      observation: `[T, B, ...]`: what the policy saw.
      first: bool `[T, B]`: the observation begins an episode; recurrent state is reset before it.
      action: `[T, B, ...]`: what it did.
      log_prob: float32 `[T, B]`: logarithm of the probability with which it did that.
      reward: float32 `[T, B]`: what came of it.
      terminated: bool `[T, B]`: the episode ended there.
      truncated: bool `[T, B]`: a time limit cut it there.
      valid: bool `[T, B]`: False where the action was discarded, because the observation was an episode's last.
      version: int32 `[T]`: updates made when the policy acted.
      bootstrap: float32 `[B]`: value of the observation after the last step, predicted when that was seen.
      recurrent: The policy's state before the first step, leaves `[B, ...]`.
    """

    observation: Array
    first: Array
    action: Array
    log_prob: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    version: Array
    bootstrap: Array
    recurrent: ArrayTree


def empty(num_segments: int, length: int, num_envs: int, spec: EnvSpec, recurrent: ArrayTree) -> Segment:
    """A ring of zeros, nothing valid.

    Args:
      num_segments: R.
      length: L, steps of a segment.
      num_envs: B.
      spec: of the environments.
      recurrent: a policy's state, leaves `[B, ...]`.

    Returns:
      `Segment`, leaves `[R, L, B, ...]`, `version` `[R, L]`, `bootstrap` `[R, B]`, `recurrent` `[R, B, ...]`.
    """

    def zeros(*shape: int, dtype: Any = jnp.float32) -> Array:
        return jnp.zeros((num_segments, *shape), dtype)

    of_step = (length, num_envs)
    action = ((), jnp.int32) if spec.num_actions is not None else (spec.action_shape or (), jnp.float32)
    return Segment(
        observation=zeros(*of_step, *spec.observation_shape, dtype=spec.observation_dtype),
        first=zeros(*of_step, dtype=bool),
        action=zeros(*of_step, *action[0], dtype=action[1]),
        log_prob=zeros(*of_step),
        reward=zeros(*of_step),
        terminated=zeros(*of_step, dtype=bool),
        truncated=zeros(*of_step, dtype=bool),
        valid=zeros(*of_step, dtype=bool),
        version=zeros(length, dtype=jnp.int32),
        bootstrap=zeros(num_envs),
        recurrent=jax.tree.map(lambda x: zeros(*x.shape, dtype=x.dtype), recurrent),
    )


def complete(ring: Segment, round_: Array, beat: Array, timestep: TimeStep, reward: Array, value: Array) -> Segment:
    """Books what the step before this beat brought, and the value of what it led to.

    Args:
      ring: of the group.
      round_: rounds begun before this one, int32 scalar.
      beat: of the round, int32 scalar.
      timestep: received in this beat. Its `terminated` may include what the learner takes for an end.
      reward: float32 `[B]`, as the learner is to see it.
      value: float32 `[B]`, of the observation.

    Returns:
      The ring. The first beat of all writes where nothing was appended yet, and is overwritten.
    """
    num_segments, length = ring.version.shape
    slot = (round_ - (beat == 0)) % num_segments
    t = (beat - 1) % length
    return ring._replace(
        reward=_put(ring.reward, reward, slot, t),
        terminated=_put(ring.terminated, timestep.terminated, slot, t),
        truncated=_put(ring.truncated, timestep.truncated, slot, t),
        valid=_put(ring.valid, ~timestep.first, slot, t),
        # Written at every beat: the last one, after the segment's last step, stays.
        bootstrap=_put(ring.bootstrap, value, slot),
    )


def _put(rows: Array, row: Array, *place: Array) -> Array:
    # One update slice stays in place inside a compiled loop; a scatter would be a loop of its own.
    row = row.astype(rows.dtype).reshape(*[1] * len(place), *rows.shape[len(place) :])
    return jax.lax.dynamic_update_slice(rows, row, (*place, *[0] * (rows.ndim - len(place))))


def append(
    ring: Segment,
    round_: Array,
    beat: Array,
    timestep: TimeStep,
    action: Array,
    log_prob: Array,
    version: Array,
    recurrent: ArrayTree,
) -> Segment:
    """Books what the policy saw and did in this beat.

    Args:
      ring: of the group.
      round_: rounds begun before this one, int32 scalar.
      beat: of the round, int32 scalar.
      timestep: received in this beat.
      action: `[B, ...]`.
      log_prob: float32 `[B]`.
      version: updates made so far, int32 scalar.
      recurrent: the policy's state before it acted, leaves `[B, ...]`; that of the round's first beat is kept.

    Returns:
      The ring.
    """
    slot = round_ % ring.version.shape[0]

    def keep(rows: Array, row: Array) -> Array:
        return _put(rows, jnp.where(beat == 0, row, rows[slot]), slot)

    return ring._replace(
        observation=_put(ring.observation, timestep.observation, slot, beat),
        first=_put(ring.first, timestep.first, slot, beat),
        action=_put(ring.action, action, slot, beat),
        log_prob=_put(ring.log_prob, log_prob, slot, beat),
        version=_put(ring.version, version, slot, beat),
        recurrent=jax.tree.map(keep, ring.recurrent, recurrent),
    )


def micro_batch(ring: Segment, slot: Array, start: Array, num_envs: int, length: int) -> Segment:
    """Some environments of one segment.

    Args:
      ring: of the group.
      slot: which segment of the ring, int32 scalar.
      start: first environment, int32 scalar.
      num_envs: how many.
      length: T, the first steps of the segment.

    Returns:
      `Segment`, leaves `[T, num_envs, ...]`.
    """

    def of_steps(rows: Array) -> Array:
        begin = (slot, 0, start, *[0] * (rows.ndim - 3))
        return jax.lax.dynamic_slice(rows, begin, (1, length, num_envs, *rows.shape[3:]))[0]

    def of_segment(rows: Array) -> Array:
        begin = (slot, start, *[0] * (rows.ndim - 2))
        return jax.lax.dynamic_slice(rows, begin, (1, num_envs, *rows.shape[2:]))[0]

    fields = {
        name: of_steps(rows)
        for name, rows in ring._asdict().items()
        if name not in ("version", "bootstrap", "recurrent")
    }
    return Segment(
        **fields,
        version=ring.version[slot, :length],
        bootstrap=of_segment(ring.bootstrap),
        recurrent=jax.tree.map(of_segment, ring.recurrent),
    )
