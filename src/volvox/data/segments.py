"""Segments: the latest rounds of a group of environments, from which on-policy learners learn.

A ring holds `R` segments of `L` timesteps of `B` environments. A timestep is added when its action is chosen. Its
reward comes with the next timestep, for the last one of a segment in the next round.

    ring = segments.init(num_segments=2, length=20, num_envs=32, spec=env.spec, recurrent=())
    ring = segments.add(ring, round_, beat, timestep, action=action, log_prob=log_prob, ...)  # at every beat
    segment = segments.take(ring, slot, start=0, num_envs=4, length=20)  # [20, 4, ...]
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from volvox.types import Array, ArrayTree, EnvSpec, TimeStep, zeros

_BY_SEGMENT = ("bootstrap", "recurrent")
"""Fields that have no time axis."""


class Segment(NamedTuple):
    """`T` timesteps of `B` environments, time first. In a ring, the leaves have a leading axis `R`.

    Attributes:
      observation: `[T, B, ...]`: Observation that the policy saw. `take` may add the next one, `[T + 1, B, ...]`.
      first: bool, as many as observations: The observation begins an episode; recurrent state is reset before it.
      action: `[T, B, ...]`: Action that the policy chose.
      log_prob: float32 `[T, B]`: Logarithm of the probability with which the action was drawn.
      reward: float32 `[T, B]`: Reward of the action.
      terminated: bool `[T, B]`: The action ended the episode.
      truncated: bool `[T, B]`: A time limit ended the episode after the action.
      valid: bool `[T, B]`: False where the action was discarded, because the observation was an episode's last.
      version: int32 `[T]`: Number of updates made before the policy acted.
      bootstrap: float32 `[B]`: Value of the observation after the last timestep, predicted when it was received.
      recurrent: Recurrent state before the first timestep, leaves `[B, ...]`.
      value: float32 `[T, B]`: Value of the observation, predicted when the policy acted; () unless it is kept.
    """

    observation: ArrayTree
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
    value: ArrayTree = ()


def init(
    num_segments: int, length: int, num_envs: int, spec: EnvSpec, recurrent: ArrayTree, *, with_values: bool = False
) -> Segment:
    """Returns a ring of `num_segments` segments (R) of `length` timesteps (L), all zeros and not valid.

    Recurrent states of the policy are shaped as `recurrent`. Predicted values are kept if `with_values`.
    """
    shape = (num_segments, length, num_envs)
    observation, action = zeros((spec.observation, spec.action), *shape)
    floats, flags = (lambda: jnp.zeros(shape, jnp.float32)), (lambda: jnp.zeros(shape, bool))
    return Segment(
        observation=observation,
        first=flags(),
        action=action,
        log_prob=floats(),
        reward=floats(),
        terminated=flags(),
        truncated=flags(),
        valid=flags(),
        version=jnp.zeros((num_segments, length), jnp.int32),
        bootstrap=jnp.zeros((num_segments, num_envs), jnp.float32),
        recurrent=zeros(recurrent, num_segments),
        value=floats() if with_values else (),
    )


def add(
    ring: Segment,
    round_: Array,
    beat: Array,
    timestep: TimeStep,
    *,
    reward: Array,
    value: Array,
    action: Array,
    log_prob: Array,
    version: Array,
    recurrent: ArrayTree,
) -> Segment:
    """Completes the timestep before this beat, and adds this one.

    Args:
      ring: Segments of the group.
      round_: Index of this round, int32 scalar.
      beat: Index of this beat in the round, int32 scalar.
      timestep: Timestep of this beat. Its `terminated` may include ends that only the learner sees, e.g. lost lives.
      reward: float32 `[B]`: Reward of the previous action, as it is learned from.
      value: float32 `[B]`: Predicted value of the observation.
      action: `[B, ...]`: Action that was chosen in this beat.
      log_prob: float32 `[B]`: Logarithm of its probability.
      version: int32 scalar: Number of updates so far.
      recurrent: Recurrent state before the policy acted, leaves `[B, ...]`; the state of the first beat is kept.

    Returns:
      The ring. The very first beat completes a timestep that was never added; it is overwritten later.
    """
    num_segments, length = ring.version.shape
    before = ((round_ - (beat == 0)) % num_segments, (beat - 1) % length)
    slot = round_ % num_segments
    ring = ring._replace(
        reward=_put(ring.reward, reward, *before),
        terminated=_put(ring.terminated, timestep.terminated, *before),
        truncated=_put(ring.truncated, timestep.truncated, *before),
        valid=_put(ring.valid, ~timestep.first, *before),
        # Written at every beat; the value after the segment's last timestep remains.
        bootstrap=_put(ring.bootstrap, value, before[0]),
    )

    def keep_first(rows: Array, row: Array) -> Array:
        return _put(rows, jnp.where(beat == 0, row, rows[slot]), slot)

    return ring._replace(
        observation=jax.tree.map(lambda rows, row: _put(rows, row, slot, beat), ring.observation, timestep.observation),
        first=_put(ring.first, timestep.first, slot, beat),
        action=_put(ring.action, action, slot, beat),
        log_prob=_put(ring.log_prob, log_prob, slot, beat),
        version=_put(ring.version, version, slot, beat),
        recurrent=jax.tree.map(keep_first, ring.recurrent, recurrent),
        value=jax.tree.map(lambda rows: _put(rows, value, slot, beat), ring.value),
    )


def _put(rows: Array, row: Array, *place: Array) -> Array:
    # One update slice stays in place inside a compiled loop; a scatter would be a loop of its own.
    chex.assert_shape(row, rows.shape[len(place) :])
    row = row.astype(rows.dtype)[(None,) * len(place)]
    return jax.lax.dynamic_update_slice(rows, row, (*place, *[jnp.int32(0)] * (rows.ndim - len(place))))


def take(ring: Segment, slot: Array, start: Array, num_envs: int, length: int, with_next: bool = False) -> Segment:
    """Takes neighbouring environments of one segment.

    Args:
      ring: Segments of the group.
      slot: Index of the segment in the ring, int32 scalar.
      start: The first environment, int32 scalar.
      num_envs: Number of environments.
      length: T; the first T timesteps of the segment are taken.
      with_next: Whether to add the first observation of the next segment in the ring, which must have begun. The
        segment must then be taken whole.

    Returns:
      `Segment`, leaves `[T, num_envs, ...]`; with `with_next`, `[T + 1, ...]` of `observation` and `first`.
    """
    slot, start = jnp.int32(slot), jnp.int32(start)

    def cut(rows: Array, slot: Array, length: int) -> Array:
        begin = (slot, jnp.int32(0), start, *[jnp.int32(0)] * (rows.ndim - 3))
        return jax.lax.dynamic_slice(rows, begin, (1, length, num_envs, *rows.shape[3:]))[0]

    def cut_segment(rows: Array) -> Array:
        begin = (slot, start, *[jnp.int32(0)] * (rows.ndim - 2))
        return jax.lax.dynamic_slice(rows, begin, (1, num_envs, *rows.shape[2:]))[0]

    segment = _map(ring, lambda rows: cut(rows, slot, length), cut_segment)
    segment = segment._replace(version=ring.version[slot, :length])
    if not with_next:
        return segment
    observation, first = jax.tree.map(
        lambda rows, x: jnp.concatenate([x, cut(rows, (slot + 1) % len(ring.version), 1)]),
        (ring.observation, ring.first),
        (segment.observation, segment.first),
    )
    return segment._replace(observation=observation, first=first)


def gather(ring: Segment, slot: Array, t: Array, b: Array) -> Segment:
    """Takes single timesteps of one segment, or single environments.

    Args:
      ring: Segments of the group.
      slot: Index of the segment in the ring, int32 scalar.
      t: int32 `[L, 1]`, or `[n]` for L = 1: Timesteps.
      b: int32 `[1, n]`: Environments.

    Returns:
      `Segment`, leaves `[L, n, ...]`, `version` too; `bootstrap` and `recurrent` `[n, ...]`.
    """
    t, b = jnp.broadcast_arrays(t, b)
    segment = _map(ring, lambda rows: rows[slot, t, b], lambda rows: rows[slot, b[0]])
    return segment._replace(version=ring.version[slot, t])


def _map(ring: Segment, of_timesteps, of_segment) -> Segment:
    fields = ring._replace(version=())._asdict()
    return Segment(
        **{name: jax.tree.map(of_segment if name in _BY_SEGMENT else of_timesteps, x) for name, x in fields.items()}
    )
