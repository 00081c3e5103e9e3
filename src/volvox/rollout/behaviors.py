"""What an episode was like, as a short vector: streamed while it is played, so that no trajectory is stored.

Novelty search compares these vectors (`volvox.evolution.Novelty`).

    Last("position", 2)                             # where the episode ended
    Trajectory("ram", 128, every=50, length=12)     # the RAM, twelve times in the episode
"""

import dataclasses
from typing import Any, Protocol

import chex
import jax
import jax.numpy as jnp

from volvox._arguments import check_part
from volvox._checks import integer, integers
from volvox._settings import describe
from volvox.ops.batching import where_rows
from volvox.types import Array, ArrayTree, EnvSpec, TimeStep


class Behavior(Protocol):
    """A record of one episode of one environment, of fixed size: settings, and pure functions of them.

    Any object will do that has these. A dataclass is described in `config.json` by its fields.
    """

    @property
    def size(self) -> int:
        """D, of the vector."""
        ...

    @property
    def extras(self) -> tuple[str, ...]:
        """Names in `TimeStep.extras` that it reads."""
        ...

    def init(self) -> ArrayTree:
        """Returns the record before the first timestep."""
        ...

    def update(self, record: ArrayTree, timestep: TimeStep) -> ArrayTree:
        """Returns the record, of the same shapes and dtypes, after one more timestep of one environment.

        It is called for every timestep of an episode, its first and its last included.
        """
        ...

    def final(self, record: ArrayTree) -> Array:
        """Returns the vector, float32 `[D]`, of an episode whose last timestep left this record."""
        ...


@dataclasses.dataclass(frozen=True)
class Nothing:
    """No record.

    Attributes:
      size: 0.
      extras: Empty: it reads none.
    """

    size: int = dataclasses.field(default=0, init=False)
    extras: tuple[str, ...] = dataclasses.field(default=(), init=False)

    def init(self) -> ArrayTree:
        """Returns an empty record."""
        return ()

    def update(self, record: ArrayTree, timestep: TimeStep) -> ArrayTree:
        """Returns the empty record."""
        del timestep
        return record

    def final(self, record: ArrayTree) -> Array:
        """Returns an empty vector."""
        del record
        return jnp.zeros(0)


@dataclasses.dataclass(frozen=True)
class Last:
    """The value that one of the environment's extras had at the end: a final position, a final RAM.

    Attributes:
      extra: Its name, for example `"position"` or `"ram"`.
      size: Numbers in it. Recording raises ValueError where the environment gives another number of numbers.
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
        return jnp.zeros(self.size)

    def update(self, record: Array, timestep: TimeStep) -> Array:
        """See `Behavior.update`."""
        del record
        return _value(timestep, self.extra, self.size)

    def final(self, record: Array) -> Array:
        """See `Behavior.final`."""
        return record


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One of the environment's extras, sampled through the episode: `length` values, one every `every` timesteps.

    Samples after the end repeat the last value, so the distance of two trajectories is that of their common part and of
    the longer one's rest to the shorter one's last value, and then of the two last values, up to `length` samples.
    (Conti et al. 2018, arXiv 1712.06560, stop where the longer one ends.) What comes after `length` samples is dropped,
    so `evolve` refuses a trajectory that does not cover the cutoff of its episodes.

    Attributes:
      extra: Its name, for example `"ram"`.
      sample_size: Numbers in it.
      every: Timesteps from one sample to the next.
      length: Samples, at least 2; the vector has `length * sample_size` numbers.
    """

    extra: str
    sample_size: int
    _: dataclasses.KW_ONLY
    every: int
    length: int

    def __post_init__(self):
        integers(self, "sample_size", "every", low=1)
        integers(self, "length", low=2)  # the first is where the episode began

    @property
    def size(self) -> int:
        """Numbers in the vector."""
        return self.length * self.sample_size

    @property
    def extras(self) -> tuple[str, ...]:
        """The extra."""
        return (self.extra,)

    def init(self) -> tuple[Array, Array]:
        """See `Behavior.init`."""
        return jnp.int32(0), jnp.zeros((self.length, self.sample_size))

    def update(self, record: tuple[Array, Array], timestep: TimeStep) -> tuple[Array, Array]:
        """See `Behavior.update`."""
        step, samples = record
        value = _value(timestep, self.extra, self.sample_size)
        # Written to this sample and all later ones, so that those that never come repeat the last value.
        return step + 1, jnp.where(jnp.arange(self.length)[:, None] * self.every >= step, value, samples)

    def final(self, record: tuple[Array, Array]) -> Array:
        """See `Behavior.final`."""
        return record[1].reshape(-1)


def check_kind(name: str, behavior: Any) -> None:
    """Raises TypeError for what is no behaviour; `name` is the argument's."""
    uses = ("size", "extras", "init", "update", "final")
    check_part(name, behavior, uses, "a behaviour, such as vx.rollout.Last(...) or vx.rollout.Trajectory(...)")


def check(behavior: Behavior, spec: EnvSpec, max_episode_steps: int) -> None:
    """Raises ValueError where a behaviour reads what the environment does not give, or ends before episodes do.

    Args:
      behavior: what is recorded.
      spec: of the environment.
      max_episode_steps: the largest cutoff of episodes, timesteps. A `Trajectory` must cover it, but for fewer
        timesteps than lie between two of its values: of two episodes that part later, it would record the same.
    """
    missing = [name for name in behavior.extras if name not in spec.extras]
    if missing:
        raise ValueError(
            f"the behaviour {describe(behavior)} reads {missing[0]!r}, but {spec.name} gives only {list(spec.extras)}."
        )
    if isinstance(behavior, Trajectory) and behavior.every * behavior.length < max_episode_steps:
        raise ValueError(
            f"the behaviour {describe(behavior)} covers every * length = {behavior.every * behavior.length} timesteps, "
            f"and episodes last up to {max_episode_steps}: take length={-(-max_episode_steps // behavior.every)}, or a "
            "larger every."
        )


def start(behavior: Behavior, num_envs: int) -> ArrayTree:
    """Returns records before the first timestep, leaves `[B, ...]`."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *jnp.shape(x))), behavior.init())


def advance(behavior: Behavior, records: ArrayTree, timestep: TimeStep) -> ArrayTree:
    """Records one timestep of `B` environments.

    Args:
      behavior: What is recorded.
      records: Leaves `[B, ...]`.
      timestep: Fields `[B, ...]`; where it is `first`, the record begins anew.

    Returns:
      Records.

    Raises:
      ValueError: `update` changes the record's shapes or dtypes.
    """
    before = where_rows(timestep.first, start(behavior, timestep.first.shape[0]), records)
    updated = jax.vmap(behavior.update)(before, timestep)
    try:
        chex.assert_trees_all_equal_shapes_and_dtypes(before, updated)
    except AssertionError as error:
        raise ValueError(
            f"update of the behaviour {describe(behavior)} must keep the record's shapes and dtypes: {error}"
        ) from error
    return updated


def vector(behavior: Behavior, record: ArrayTree) -> Array:
    """Returns the behaviour of an episode that ended with this record: float32 `[D]`.

    Raises:
      ValueError: `final` gives another size than the behaviour says.
    """
    found = behavior.final(record)
    if found.shape != (behavior.size,):
        raise ValueError(
            f"final of the behaviour {describe(behavior)} gives shape {found.shape}; it says it has "
            f"size={behavior.size}."
        )
    return found.astype(jnp.float32)


def _value(timestep: TimeStep, extra: str, size: int) -> Array:
    value: Any = timestep.extras[extra]
    if value.size != size:
        raise ValueError(
            f"the behaviour reads {size} numbers of {extra!r}, and the environment gives {value.size}: take "
            f"size={value.size}."
        )
    return jnp.ravel(value).astype(jnp.float32)
