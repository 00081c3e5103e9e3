"""What an episode was like, as a short vector: streamed while it is played, so that no trajectory is stored.

Novelty search compares these vectors (`volvox.evolution.novelty`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from volvox._checks import integer
from volvox.ops.batching import where_rows
from volvox.types import Array, ArrayTree, Config, EnvSpec, TimeStep


class Behavior(NamedTuple):
    """A record of one episode of one environment, of fixed size.

    Attributes:
      size: D, of the vector.
      extras: Names in `TimeStep.extras` that it reads.
      init: () -> record, before the first time step.
      update: (record, time step of one environment, no batch axis) -> record of the same shapes and dtypes. Called for
        every time step of an episode, its first and its last included.
      final: record after the last time step -> float32 `[D]`.
    """

    size: int
    extras: tuple[str, ...]
    init: Callable[[], ArrayTree]
    update: Callable[[ArrayTree, TimeStep], ArrayTree]
    final: Callable[[ArrayTree], Array]
    config: Config


def nothing() -> Behavior:
    """No record: a vector of size 0."""
    return Behavior(
        0, (), lambda: (), lambda record, timestep: record, lambda record: jnp.zeros(0), {"kind": "nothing"}
    )


def last(extra: str, size: int) -> Behavior:
    """The value that one of the environment's extras had at the end: a final position, a final RAM.

    Args:
      extra: its name, for example `"position"` or `"ram"`.
      size: numbers in it.

    Returns:
      `Behavior` of that size. Its `update` raises ValueError where the environment gives another number of numbers.

    Raises:
      ValueError: `size` is not positive.
    """
    integer("size", size, low=1)

    def update(record: Array, timestep: TimeStep) -> Array:
        del record
        return _value(timestep, extra, size)

    config = {"kind": "last", "extra": extra, "size": int(size)}
    return Behavior(int(size), (extra,), lambda: jnp.zeros(size), update, lambda record: record, config)


def trajectory(extra: str, size: int, *, every: int, length: int) -> Behavior:
    """One of the environment's extras, sampled through the episode: `length` values, one every `every` steps.

    Samples after the end repeat the last value, so the distance of two trajectories is that of their common part and of
    the longer one's rest to the shorter one's last value, and then of the two last values, up to `length` samples.
    (Conti et al. 2018, arXiv 1712.06560, stop where the longer one ends.) What comes after `length` samples is dropped.

    Args:
      extra: its name, for example `"ram"`.
      size: numbers in it.
      every: steps from one sample to the next.
      length: samples; the vector has `length * size` numbers.

    Returns:
      `Behavior`.

    Raises:
      ValueError: a number is not positive.
    """
    for name, value in (("size", size), ("every", every), ("length", length)):
        integer(name, value, low=1)

    def init():
        return jnp.int32(0), jnp.zeros((length, size))

    def update(record, timestep: TimeStep):
        step, samples = record
        value = _value(timestep, extra, size)
        # Everything from this sample on, so that what never comes repeats the last value.
        return step + 1, jnp.where(jnp.arange(length)[:, None] * every >= step, value, samples)

    config = {"kind": "trajectory", "extra": extra, "size": int(size), "every": int(every), "length": int(length)}
    return Behavior(length * size, (extra,), init, update, lambda record: record[1].reshape(-1), config)


def check(behavior: Behavior, spec: EnvSpec) -> None:
    """Raises ValueError where a behaviour cannot be recorded in an environment, as far as its description tells."""
    missing = [name for name in behavior.extras if name not in spec.extras]
    if missing:
        raise ValueError(
            f"the behaviour {dict(behavior.config)} reads {missing[0]!r}, but {spec.name} gives only "
            f"{list(spec.extras)}."
        )


def start(behavior: Behavior, num_envs: int) -> ArrayTree:
    """Records before the first time step, leaves `[B, ...]`."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *jnp.shape(x))), behavior.init())


def advance(behavior: Behavior, records: ArrayTree, timestep: TimeStep) -> ArrayTree:
    """One time step of `B` environments.

    Args:
      behavior: what is recorded.
      records: leaves `[B, ...]`.
      timestep: fields `[B, ...]`; where it is `first`, the record begins anew.

    Returns:
      Records.

    Raises:
      ValueError: `update` changes the record's shapes or dtypes.
    """
    begun = where_rows(timestep.first, start(behavior, timestep.first.shape[0]), records)
    updated = jax.vmap(behavior.update)(begun, timestep)
    described = [_described(tree) for tree in (begun, updated)]
    if described[0] != described[1]:
        raise ValueError(
            f"update of the behaviour {dict(behavior.config)} must keep the record's shapes and dtypes: "
            f"got {described[1]} from {described[0]}."
        )
    return updated


def vector(behavior: Behavior, record: ArrayTree) -> Array:
    """The behaviour of an episode that ended with this record: float32 `[D]`.

    Raises:
      ValueError: `final` gives another size than the behaviour says.
    """
    found = behavior.final(record)
    if found.shape != (behavior.size,):
        raise ValueError(
            f"final of the behaviour {dict(behavior.config)} gives shape {found.shape}; it says it has "
            f"size={behavior.size}."
        )
    return found.astype(jnp.float32)


def _value(timestep: TimeStep, extra: str, size: int) -> Array:
    value = timestep.extras[extra]
    if value.size != size:
        raise ValueError(
            f"the behaviour reads {size} numbers of {extra!r}, and the environment gives {value.size}: take "
            f"size={value.size}."
        )
    return jnp.ravel(value).astype(jnp.float32)


def _described(tree: ArrayTree) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    return [(leaf.shape[1:], str(leaf.dtype)) for leaf in leaves], treedef
