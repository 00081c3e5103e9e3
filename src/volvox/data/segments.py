"""Segments: the latest rounds of a group of environments, from which on-policy learners learn.

A ring holds `R` segments of `L` timesteps of `B` environments. A timestep is added when its action is chosen. Its
reward comes with the next timestep; after the last timestep of a segment, this is the first of the next segment.

    ring = segments.init(num_segments=2, length=20, num_envs=32, spec=env.spec, recurrent=())
    ring = segments.add(ring, round_, beat, timestep, action=action, log_prob=log_prob, ...)  # at every beat
    segment = segments.take(ring, slot, start=0, num_envs=4)  # [20, 4, ...]
    target = jax.vmap(lambda_returns, 1, 1)(r_t, discount_t, v_t, lambda_t)  # all [T, B]
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from volvox.types import Array, ArrayTree, EnvSpec, TimeStep, zeros


class Segment(NamedTuple):
    """`T` timesteps of `B` environments, time first. In a ring, the leaves have a leading axis `R`.

    Attributes:
      observation: `[T, B, ...]`: Observation that the policy saw. `take` may add the next one, `[T + 1, B, ...]`.
      first: bool, as many as observations: The observation begins an episode; recurrent state is reset before it.
      action: `[T, B, ...]`: Action that the policy chose.
      log_prob: float32 `[T, B]`: Logarithm of the probability with which the action was drawn; 0 with PQN.
      reward: float32 `[T, B]`: Reward of the action.
      terminated: bool `[T, B]`: The action ended the episode.
      truncated: bool `[T, B]`: A time limit ended the episode after the action.
      valid: bool `[T, B]`: False where the action was discarded, because the observation was an episode's last.
      version: int32 `[T, B]`: Number of updates made before the policy acted.
      bootstrap: float32 `[B]`: Value of the observation after the last timestep, predicted when it was received.
      recurrent: Recurrent state before the first timestep, leaves `[B, ...]`.
      value: float32 `[T, B]`: Value of the observation, predicted when the policy acted.
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
    value: Array


def init(num_segments: int, length: int, num_envs: int, spec: EnvSpec, recurrent: ArrayTree) -> Segment:
    """Returns a ring of `num_segments` segments (R) of `length` timesteps (L), all zeros and not valid.

    Recurrent states of the policy are shaped as `recurrent`.
    """
    batch = (num_segments, length, num_envs)
    return Segment(
        observation=zeros(spec.observation, *batch),
        first=jnp.zeros(batch, bool),
        action=zeros(spec.action, *batch),
        log_prob=jnp.zeros(batch, jnp.float32),
        reward=jnp.zeros(batch, jnp.float32),
        terminated=jnp.zeros(batch, bool),
        truncated=jnp.zeros(batch, bool),
        valid=jnp.zeros(batch, bool),
        version=jnp.zeros(batch, jnp.int32),
        bootstrap=jnp.zeros((num_segments, num_envs), jnp.float32),
        recurrent=zeros(recurrent, num_segments),
        value=jnp.zeros(batch, jnp.float32),
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
      round_: Number of the segment, int32 scalar.
      beat: Index of the timestep in it, int32 scalar.
      timestep: The timestep. Its `terminated` may include ends that only the learner sees, e.g. lost lives.
      reward: float32 `[B]`: Reward of the previous action, as it is learned from.
      value: float32 `[B]`: Predicted value of the observation.
      action: `[B, ...]`: Action that was chosen in this beat.
      log_prob: float32 `[B]`: Logarithm of its probability.
      version: int32 scalar: Number of updates so far.
      recurrent: Recurrent state before the policy acted, leaves `[B, ...]`; the state of beat 0 is kept.

    Returns:
      The ring. The very first timestep completes one that was never added, which is not valid: it begins an episode.
    """
    num_segments, length, _ = ring.first.shape
    slot, last, before = round_ % num_segments, (round_ - (beat == 0)) % num_segments, (beat - 1) % length

    def put(rows: Array, row: Array, *place: Array) -> Array:
        # One update slice stays in place inside a compiled loop; a scatter would be a loop of its own.
        row = row.astype(rows.dtype)[(None,) * len(place)]
        return jax.lax.dynamic_update_slice(rows, row, (*place, *[jnp.int32(0)] * (rows.ndim - len(place))))

    def keep_first(rows: Array, row: Array) -> Array:
        return put(rows, jnp.where(beat == 0, row, rows[slot]), slot)

    return ring._replace(
        reward=put(ring.reward, reward, last, before),
        terminated=put(ring.terminated, timestep.terminated, last, before),
        truncated=put(ring.truncated, timestep.truncated, last, before),
        valid=put(ring.valid, ~timestep.first, last, before),
        # Written at every beat; the value after the segment's last timestep remains.
        bootstrap=put(ring.bootstrap, value, last),
        observation=jax.tree.map(lambda rows, row: put(rows, row, slot, beat), ring.observation, timestep.observation),
        first=put(ring.first, timestep.first, slot, beat),
        action=put(ring.action, action, slot, beat),
        log_prob=put(ring.log_prob, log_prob, slot, beat),
        version=put(ring.version, jnp.broadcast_to(version, timestep.first.shape), slot, beat),
        recurrent=jax.tree.map(keep_first, ring.recurrent, recurrent),
        value=put(ring.value, value, slot, beat),
    )


def take(ring: Segment, slot: Array, start: Array, num_envs: int, with_next: bool = False) -> Segment:
    """Takes neighbouring environments of one segment.

    Args:
      ring: Segments of the group.
      slot: Index of the segment in the ring, int32 scalar.
      start: The first environment, int32 scalar.
      num_envs: Number of environments.
      with_next: Whether to add the first observation of the next segment in the ring, which must have begun.

    Returns:
      `Segment`, leaves `[L, num_envs, ...]`; with `with_next`, `[L + 1, ...]` of `observation` and `first`.
    """

    def cut(rows: Array, begin: tuple[Array | int, ...], *sizes: int) -> Array:
        begin = tuple(jnp.int32(i) for i in (*begin, *[0] * (rows.ndim - len(begin))))
        return jax.lax.dynamic_slice(rows, begin, (1, *sizes, *rows.shape[len(sizes) + 1 :]))[0]

    def of_timesteps(rows: Array) -> Array:
        return cut(rows, (slot, 0, start), rows.shape[1], num_envs)

    def with_following(rows: Array) -> Array:
        following = cut(rows, ((slot + 1) % len(ring.first), 0, start), 1, num_envs)
        return jnp.concatenate([of_timesteps(rows), following])

    segment = _map(ring, of_timesteps, lambda rows: cut(rows, (slot, start), num_envs))
    if not with_next:
        return segment
    observation, first = jax.tree.map(with_following, (ring.observation, ring.first))
    return segment._replace(observation=observation, first=first)


def gather(ring: Segment, slot: Array, t: Array, b: Array) -> Segment:
    """Takes single timesteps of one segment, or single environments.

    Args:
      ring: Segments of the group.
      slot: Index of the segment in the ring, int32 scalar.
      t: int32 `[L, 1]`, or `[n]` for L = 1: Timesteps.
      b: int32 `[1, n]`: Environments.

    Returns:
      `Segment`, leaves `[L, n, ...]`; `bootstrap` and `recurrent` `[n, ...]`.
    """
    t, b = jnp.broadcast_arrays(t, b)
    return _map(ring, lambda rows: rows[slot, t, b], lambda rows: rows[slot, b[0]])


def _map(ring: Segment, of_timesteps: Callable[[Array], Array], of_segment: Callable[[Array], Array]) -> Segment:
    bootstrap, recurrent = jax.tree.map(of_segment, (ring.bootstrap, ring.recurrent))
    segment = jax.tree.map(of_timesteps, ring._replace(bootstrap=(), recurrent=()))
    return segment._replace(bootstrap=bootstrap, recurrent=recurrent)


def lambda_returns(r_t: Array, discount_t: Array, v_t: Array, lambda_t: Array) -> Array:
    """λ-returns of one trajectory: `G[t] = r[t] + discount[t] * ((1 - lambda[t]) * v[t] + lambda[t] * G[t + 1])`.

    `G[T]` is `v[T - 1]`. With `lambda_t` 1 everywhere this is the n-step return, with 0 the one-step target. A timestep
    with `lambda_t` 0 bootstraps from `v_t`: this expresses a time limit, and a discount of 0 expresses a termination.

    Args:
      r_t: `[T]`: Rewards.
      discount_t: `[T]`: Discounts of the next timestep: 0 where the episode terminated.
      v_t: `[T]`: Values of the observations that follow.
      lambda_t: `[T]`: Trace decays.

    Returns:
      `[T]`. (Sutton and Barto, Reinforcement Learning, 2nd edition, section 12.8.)
    """
    chex.assert_rank([r_t, discount_t, v_t, lambda_t], 1)
    chex.assert_equal_shape([r_t, discount_t, v_t, lambda_t])

    def backwards(g_t: Array, x: tuple[Array, Array, Array, Array]):
        r_t, discount_t, v_t, lambda_t = x
        g_tm1 = r_t + discount_t * ((1 - lambda_t) * v_t + lambda_t * g_t)
        return g_tm1, g_tm1

    _, returns = jax.lax.scan(backwards, v_t[-1], (r_t, discount_t, v_t, lambda_t), reverse=True)
    return returns
