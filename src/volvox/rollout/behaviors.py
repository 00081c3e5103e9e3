"""Behaviours: an episode as a short vector, computed while it is played, so that no trajectory is stored.

Novelty search compares these vectors (`volvox.Novelty`).

    Last("position", 2)                             # the final position
    Trajectory("ram", 128, every=50, length=12)     # the RAM, at twelve timesteps of the episode
"""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from volvox._checks import check_has, integer, integers
from volvox.ops.batching import where_rows
from volvox.types import Array, ArrayTree, EnvSpec, TimeStep


class Behavior(Protocol):
    """A record of one episode of one environment, of fixed size: a frozen dataclass with pure methods."""

    @property
    def size(self) -> int:
        """D, the length of the vector."""
        ...

    @property
    def extras(self) -> tuple[str, ...]:
        """The names in `TimeStep.extras` that are read."""
        ...

    def init(self) -> ArrayTree:
        """Returns the record before the first timestep."""
        ...

    def update(self, record: ArrayTree, timestep: TimeStep) -> ArrayTree:
        """Returns the record after one more timestep, with the same shapes and dtypes.

        It is called for every timestep of an episode, including the first and the last.
        """
        ...

    def final(self, record: ArrayTree) -> Array:
        """Returns the vector, float32 `[D]`, of an episode whose last timestep left this record."""
        ...


@dataclasses.dataclass(frozen=True)
class Nothing:
    """No record: `size` is 0."""

    size: int = dataclasses.field(default=0, init=False)
    extras: tuple[str, ...] = dataclasses.field(default=(), init=False)

    def init(self) -> ArrayTree:
        """Returns an empty record."""
        return ()

    def update(self, record: ArrayTree, timestep: TimeStep) -> ArrayTree:
        """Returns the empty record."""
        return record

    def final(self, record: ArrayTree) -> Array:
        """Returns an empty vector."""
        return jnp.zeros(0, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Last:
    """The last value of one of the environment's extras: a final position, a final RAM.

    Attributes:
      extra: Name of the extra, for example `"position"` or `"ram"`.
      size: Number of values in it.
    """

    extra: str
    size: int

    def __post_init__(self):
        integer("size", self.size, low=1)

    @property
    def extras(self) -> tuple[str, ...]:
        """The extra."""
        return (self.extra,)

    def init(self) -> Array:
        """See `Behavior.init`."""
        return jnp.zeros(self.size, jnp.float32)

    def update(self, record: Array, timestep: TimeStep) -> Array:
        """See `Behavior.update`."""
        return _value(timestep, self.extra, self.size)

    def final(self, record: Array) -> Array:
        """See `Behavior.final`."""
        return record


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One of the environment's extras, sampled through the episode: `length` values, one every `every` timesteps.

    Samples after the end of the episode repeat the last value. (Conti et al. 2018, arXiv 1712.06560, compare two
    trajectories up to the end of the longer one.) Values after the last sample are dropped, so `evolve` refuses a
    trajectory with `every * length` below the cutoff of its episodes.

    Attributes:
      extra: Name of the extra, for example `"ram"`.
      sample_size: Number of values in it.
      every: Timesteps from one sample to the next.
      length: Samples, at least 2; the vector has `length * sample_size` entries.
    """

    extra: str
    sample_size: int
    _: dataclasses.KW_ONLY
    every: int
    length: int

    def __post_init__(self):
        integers(self, "sample_size", "every", low=1)
        integers(self, "length", low=2)  # the first sample is the beginning of the episode

    @property
    def size(self) -> int:
        """D, the length of the vector."""
        return self.length * self.sample_size

    @property
    def extras(self) -> tuple[str, ...]:
        """The extra."""
        return (self.extra,)

    def init(self) -> tuple[Array, Array]:
        """See `Behavior.init`."""
        return jnp.int32(0), jnp.zeros((self.length, self.sample_size), jnp.float32)

    def update(self, record: tuple[Array, Array], timestep: TimeStep) -> tuple[Array, Array]:
        """See `Behavior.update`."""
        step, samples = record
        value = _value(timestep, self.extra, self.sample_size)
        # Written to this sample and all later ones, so that samples after the end repeat the last value.
        return step + 1, jnp.where(jnp.arange(self.length)[:, None] * self.every >= step, value, samples)

    def final(self, record: tuple[Array, Array]) -> Array:
        """See `Behavior.final`."""
        return record[1].reshape(-1)


def check_kind(name: str, behavior: Any) -> None:
    """Raises TypeError if the argument `name` is not a behaviour."""
    attributes = ("size", "extras", "init", "update", "final")
    check_has(name, behavior, attributes, "a behaviour, such as vx.rollout.Last(...) or vx.rollout.Trajectory(...)")


def check(behavior: Behavior, spec: EnvSpec, max_episode_steps: int) -> None:
    """Raises ValueError if a behaviour and an environment do not fit.

    The behaviour may read an extra that the environment lacks, end before the episodes, or return another shape.

    Args:
      behavior: The behaviour.
      spec: The environment's spec.
      max_episode_steps: The largest cutoff of episodes, timesteps. The intervals of a `Trajectory` must cover it,
        because it would not distinguish two episodes that part later.
    """
    shape = jax.eval_shape(lambda: behavior.final(behavior.init())).shape
    if shape != (behavior.size,):
        raise ValueError(f"{behavior}.final returns the shape {list(shape)}, and its size is {behavior.size}.")
    missing = [name for name in behavior.extras if name not in spec.extras]
    if missing:
        raise ValueError(f"{behavior} reads {missing[0]!r}, but {spec.name} provides only {list(spec.extras)}.")
    if isinstance(behavior, Trajectory) and behavior.every * behavior.length < max_episode_steps:
        raise ValueError(
            f"{behavior} covers every * length = {behavior.every * behavior.length} timesteps, and episodes last up to "
            f"{max_episode_steps}: use length={-(-max_episode_steps // behavior.every)}, or a larger every."
        )


def start(behavior: Behavior, num_envs: int) -> ArrayTree:
    """Returns records before the first timestep, leaves `[B, ...]`."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *jnp.shape(x))), behavior.init())


def advance(behavior: Behavior, records: ArrayTree, timestep: TimeStep) -> ArrayTree:
    """Records one timestep, fields `[B, ...]`; where it is `first`, a new record begins."""
    before = where_rows(timestep.first, start(behavior, timestep.first.shape[0]), records)
    return jax.vmap(behavior.update)(before, timestep)


def _value(timestep: TimeStep, extra: str, size: int) -> Array:
    value: Any = timestep.extras[extra]
    if value.size != size:
        raise ValueError(f"the behaviour reads {size} numbers of {extra!r}, but the environment gives {value.size}.")
    return jnp.ravel(value).astype(jnp.float32)
