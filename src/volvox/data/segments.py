"""Segments: what a group of environments did in the latest rounds, for a learner that looks at it later.

A ring of `R` segments of `L` timesteps of `B` environments. A timestep is added when its action is chosen, and is
completed when the next timestep brings its reward; the last one of a segment is completed in the round after.

    ring = segments.init(num_segments=2, length=20, num_envs=32, spec=env.spec, recurrent=())
    ring = segments.complete(ring, round_, beat, timestep, timestep.reward, value)
    ring = segments.add(ring, round_, beat, timestep, action, log_prob, version, ())
    segment = segments.take(ring, slot, start=0, num_envs=4, length=20)  # [20, 4, ...]
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from volvox.types import Array, ArrayTree, EnvSpec, TimeStep, zeros

_MICRO_BATCH_TRANSITIONS = 64


class Segment(NamedTuple):
    """`T` timesteps of `B` environments, time first; the ring holds the same with a leading axis `R`.

    Attributes:
      observation: `[T, B, ...]`: What the policy saw. `take` may add the observation that followed, `[T + 1, B, ...]`.
      first: bool, as many as observations: The observation begins an episode; recurrent state is reset before it.
      action: `[T, B, ...]`: What the policy did.
      log_prob: float32 `[T, B]`: Logarithm of the probability with which it did that.
      reward: float32 `[T, B]`: Reward of the action.
      terminated: bool `[T, B]`: The action ended the episode.
      truncated: bool `[T, B]`: A time limit cut the episode after the action.
      valid: bool `[T, B]`: False where the action was discarded, because the observation was an episode's last.
      version: int32 `[T]`: Updates made when the policy acted.
      bootstrap: float32 `[B]`: Value of the observation after the last timestep, predicted when that was seen.
      recurrent: The policy's state before the first timestep, leaves `[B, ...]`.
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
    """Returns a ring of zeros, in which nothing is valid.

    Args:
      num_segments: R.
      length: L, timesteps of a segment.
      num_envs: B.
      spec: The environments.
      recurrent: The policy's state, leaves `[B, ...]`.
      with_values: Whether predicted values are kept.

    Returns:
      `Segment`, leaves `[R, L, B, ...]`, `version` `[R, L]`, `bootstrap` `[R, B]`, `recurrent` `[R, B, ...]`.
    """
    per_timestep = (num_segments, length, num_envs)
    observation, action = zeros((spec.observation, spec.action), *per_timestep)
    return Segment(
        observation=observation,
        first=jnp.zeros(per_timestep, bool),
        action=action,
        log_prob=jnp.zeros(per_timestep, jnp.float32),
        reward=jnp.zeros(per_timestep, jnp.float32),
        terminated=jnp.zeros(per_timestep, bool),
        truncated=jnp.zeros(per_timestep, bool),
        valid=jnp.zeros(per_timestep, bool),
        version=jnp.zeros((num_segments, length), jnp.int32),
        bootstrap=jnp.zeros((num_segments, num_envs), jnp.float32),
        recurrent=zeros(recurrent, num_segments),
        value=jnp.zeros(per_timestep, jnp.float32) if with_values else (),
    )


def complete(ring: Segment, round_: Array, beat: Array, timestep: TimeStep, reward: Array, value: Array) -> Segment:
    """Completes the timestep before this beat: its reward, its end, and the value of the observation that followed.

    Args:
      ring: The group's segments.
      round_: Rounds begun before this one, int32 scalar.
      beat: Beats of this round before this one, int32 scalar.
      timestep: Received in this beat. Its `terminated` may include ends that only the learner sees, such as lost lives.
      reward: float32 `[B]`: Reward that is learned from.
      value: float32 `[B]`: Value of the observation.

    Returns:
      The ring. The very first beat completes a timestep that was never added; it is overwritten later.
    """
    num_segments, length = ring.version.shape
    slot = (round_ - (beat == 0)) % num_segments
    t = (beat - 1) % length
    return ring._replace(
        reward=_put(ring.reward, reward, slot, t),
        terminated=_put(ring.terminated, timestep.terminated, slot, t),
        truncated=_put(ring.truncated, timestep.truncated, slot, t),
        valid=_put(ring.valid, ~timestep.first, slot, t),
        # Written at every beat: the last value, after the segment's last timestep, stays.
        bootstrap=_put(ring.bootstrap, value, slot),
    )


def _put(rows: Array, row: Array, *place: Array) -> Array:
    # One update slice stays in place inside a compiled loop; a scatter would be a loop of its own.
    chex.assert_shape(row, rows.shape[len(place) :])
    row = row.astype(rows.dtype)[(None,) * len(place)]
    return jax.lax.dynamic_update_slice(rows, row, (*place, *[jnp.int32(0)] * (rows.ndim - len(place))))


def end_with_lives(timestep: TimeStep, lives: Array) -> tuple[TimeStep, Array]:
    """Makes a termination of the loss of a life.

    Args:
      timestep: It has the extra `lives`.
      lives: int32 `[B]`: Lives left at the timestep before.

    Returns:
      (timestep, lives left, int32 `[B]`).
    """
    left = timestep.extras["lives"].astype(jnp.int32)
    lost = ~timestep.first & (left < lives)
    ended = {"terminated": timestep.terminated | lost, "truncated": timestep.truncated & ~lost}
    return timestep._replace(**ended), left


def add(
    ring: Segment,
    round_: Array,
    beat: Array,
    timestep: TimeStep,
    action: Array,
    log_prob: Array,
    version: Array,
    recurrent: ArrayTree,
    value: ArrayTree = (),
) -> Segment:
    """Adds what the policy saw and did in this beat.

    Args:
      ring: The group's segments.
      round_: Rounds begun before this one, int32 scalar.
      beat: Beats of this round before this one, int32 scalar.
      timestep: Received in this beat.
      action: `[B, ...]`.
      log_prob: float32 `[B]`.
      version: Updates made so far, int32 scalar.
      recurrent: The policy's state before it acted, leaves `[B, ...]`; that of the round's first beat is kept.
      value: float32 `[B]`: Predicted value of the observation, where values are kept; otherwise ().

    Returns:
      The ring.
    """
    slot = round_ % ring.version.shape[0]

    def keep(rows: Array, row: Array) -> Array:
        return _put(rows, jnp.where(beat == 0, row, rows[slot]), slot)

    def put(rows: Array, row: Array) -> Array:
        return _put(rows, row, slot, beat)

    return ring._replace(
        observation=jax.tree.map(put, ring.observation, timestep.observation),
        first=_put(ring.first, timestep.first, slot, beat),
        action=_put(ring.action, action, slot, beat),
        log_prob=_put(ring.log_prob, log_prob, slot, beat),
        version=_put(ring.version, version, slot, beat),
        recurrent=jax.tree.map(keep, ring.recurrent, recurrent),
        value=jax.tree.map(lambda rows, row: _put(rows, row, slot, beat), ring.value, value),
    )


def micro_batch_size(given: int | None, num_envs: int, length: int) -> int:
    """Returns the environments in a micro-batch of segments: as given, or as many as have about 64 transitions.

    Micro-batches of 32 to 64 transitions stay in a CPU's cache.

    Raises:
      ValueError: `given` does not divide `num_envs`.
    """
    divisors = [m for m in range(1, num_envs + 1) if num_envs % m == 0]
    if given is not None and given not in divisors:
        raise ValueError(
            f"micro_batch={given} does not divide a group of {num_envs} environments; take one of {divisors}."
        )
    return given or max((m for m in divisors if m * length <= _MICRO_BATCH_TRANSITIONS), default=1)


def take(ring: Segment, slot: Array, start: Array, num_envs: int, length: int, with_next: bool = False) -> Segment:
    """Takes some environments of one segment.

    Args:
      ring: The group's segments.
      slot: Place of the segment in the ring, int32 scalar.
      start: The first environment, int32 scalar.
      num_envs: Number of environments.
      length: T; the first T timesteps of the segment are taken.
      with_next: Whether observations go on with the first one of the next segment in the ring, which must have begun;
        all T timesteps of a segment must then be taken.

    Returns:
      `Segment`, leaves `[T, num_envs, ...]`; with `with_next`, `[T + 1, ...]` of `observation` and `first`.
    """
    if with_next:
        segment = take(ring, slot, start, num_envs, length)
        after = take(ring, (slot + 1) % len(ring.version), start, num_envs, 1)
        return segment._replace(
            observation=jax.tree.map(lambda *x: jnp.concatenate(x), segment.observation, after.observation),
            first=jnp.concatenate([segment.first, after.first]),
        )

    slot, start = jnp.int32(slot), jnp.int32(start)

    def of_timesteps(rows: Array) -> Array:
        begin = (slot, jnp.int32(0), start, *[jnp.int32(0)] * (rows.ndim - 3))
        return jax.lax.dynamic_slice(rows, begin, (1, length, num_envs, *rows.shape[3:]))[0]

    def of_segment(rows: Array) -> Array:
        begin = (slot, start, *[jnp.int32(0)] * (rows.ndim - 2))
        return jax.lax.dynamic_slice(rows, begin, (1, num_envs, *rows.shape[2:]))[0]

    fields = {
        name: jax.tree.map(of_timesteps, rows)
        for name, rows in ring._asdict().items()
        if name not in ("version", "bootstrap", "recurrent")
    }
    return Segment(
        **fields,
        version=ring.version[slot, :length],
        bootstrap=of_segment(ring.bootstrap),
        recurrent=jax.tree.map(of_segment, ring.recurrent),
    )


def gather(ring: Segment, slot: Array, t: Array, b: Array) -> Segment:
    """Takes single timesteps of one segment, or single environments.

    Args:
      ring: The group's segments.
      slot: Place of the segment in the ring, int32 scalar.
      t: int32 `[L, 1]` or `[L, n]`: Timesteps.
      b: int32 `[1, n]`: Environments.

    Returns:
      `Segment`, leaves `[L, n, ...]`, `version` too; `bootstrap` and `recurrent` `[n, ...]` of the environments.
    """
    t, b = jnp.broadcast_arrays(t, b)
    of_segment = ("bootstrap", "recurrent")
    fields = {
        name: jax.tree.map(lambda rows: rows[slot, t, b], rows)
        for name, rows in ring._asdict().items()
        if name not in ("version", *of_segment)
    }
    whole = {name: jax.tree.map(lambda rows: rows[slot, b[0]], getattr(ring, name)) for name in of_segment}
    return Segment(**fields, **whole, version=ring.version[slot, t])
