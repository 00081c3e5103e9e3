"""An archive of behaviours, and novelty as the distance to the nearest of them (Lehman & Stanley 2011)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from volvox._checks import integer
from volvox.loop.behaviors import Behavior
from volvox.types import Array

_MOST_GIGABYTES = 1.0


class Archive(NamedTuple):
    """Behaviours of fixed room; when it is full, the oldest make way.

    Attributes:
      behaviors: float32 `[C, D]`.
      added: int32: behaviours ever added; the archive holds the last `min(added, C)` of them.
    """

    behaviors: Array
    added: Array


def empty(capacity: int, size: int) -> Archive:
    """An archive that holds nothing, with room for `capacity` behaviours of `size` numbers."""
    return Archive(jnp.zeros((capacity, size)), jnp.int32(0))


def add(archive: Archive, behaviors: Array, wanted: Array) -> Archive:
    """Adds those behaviours that are wanted.

    Args:
      archive: of capacity C.
      behaviors: `[M, D]`, M at most C.
      wanted: bool `[M]`.

    Returns:
      The archive.
    """
    capacity = archive.behaviors.shape[0]
    place = (archive.added + jnp.cumsum(wanted, dtype=jnp.int32) - 1) % capacity
    place = jnp.where(wanted, place, capacity)
    return Archive(archive.behaviors.at[place].set(behaviors, mode="drop"), archive.added + wanted.sum(dtype=jnp.int32))


def held(archive: Archive) -> Array:
    """Which rows of the archive are in use, bool `[C]`."""
    return jnp.arange(archive.behaviors.shape[0]) < archive.added


def novelty(behaviors: Array, others: Array, held: Array, k: int) -> Array:
    """Mean Euclidean distance to the `k` nearest of some others; to all if there are fewer, 0 if there are none.

    The nearest are found by `|a|^2 + |b|^2 - 2ab`, one matmul; the distances to them are then computed from their
    differences, without cancellation. Behaviours that are not finite are nobody's neighbours, and have no novelty.

    Args:
      behaviors: `[M, D]`.
      others: `[C, D]`, C at least k.
      held: bool `[C]` or `[M, C]`: which of the others count.
      k: neighbours.

    Returns:
      float32 `[M]`; -inf where the behaviour is not finite.
    """
    known, usable = (jnp.isfinite(x).all(axis=1) for x in (behaviors, others))
    behaviors, others = jnp.where(known[:, None], behaviors, 0.0), jnp.where(usable[:, None], others, 0.0)
    held = jnp.broadcast_to(held & usable, (behaviors.shape[0], others.shape[0]))
    count = jnp.maximum(held.any(axis=0).sum(), 1)
    center = jnp.where(held.any(axis=0)[:, None], others, 0.0).sum(axis=0) / count
    a, b = behaviors - center, others - center
    # At full precision: an accelerator's default would confuse neighbours.
    squared = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * jnp.matmul(a, b.T, precision="highest")
    squared = jnp.where(held, squared, jnp.inf)
    # The barrier keeps XLA on a CPU from making a sort of all distances out of it, which takes thirty times as long.
    near, index = jax.lax.optimization_barrier(jax.lax.top_k(-squared, k))
    counts = jnp.isfinite(near)

    def to_nearest(one):
        behavior, index = one
        return jnp.sqrt(((behavior - others[index]) ** 2).sum(-1))

    # A few at a time: all neighbours of all of them together may be gigabytes.
    distance = jax.lax.map(to_nearest, (behaviors, index), batch_size=64)
    mean = jnp.where(counts, distance, 0.0).sum(1) / jnp.maximum(counts.sum(1), 1)
    return jnp.where(known, mean, -jnp.inf)


def novelty_in(archive: Archive, behaviors: Array, k: int) -> Array:
    """Novelty `[M]` of behaviours `[M, D]` among those the archive holds; see `novelty`."""
    return novelty(behaviors, archive.behaviors, held(archive), k)


def check_archive(behavior: Behavior, archive_size: int, num_neighbors: int, *, at_least: int) -> None:
    """Raises ValueError for an archive that is too small for its neighbours or additions, or nothing to compare."""
    integer("num_neighbors", num_neighbors, low=1)
    integer("archive_size", archive_size, low=1)
    if behavior.size < 1:
        raise ValueError(f"the behaviour {dict(behavior.config)} has size {behavior.size}: nothing could be novel.")
    gigabytes = archive_size * behavior.size * 4 / 1e9
    if gigabytes > _MOST_GIGABYTES:
        raise ValueError(
            f"archive_size={archive_size} of behaviours of {behavior.size} numbers would take {gigabytes:.1f} GB, here "
            f"and in each checkpoint; {_MOST_GIGABYTES} GB are allowed: take a smaller archive or shorter behaviours."
        )
    if archive_size < num_neighbors:
        raise ValueError(
            f"archive_size={archive_size} is smaller than num_neighbors={num_neighbors}: novelty is the distance to so "
            "many behaviours in the archive."
        )
    if archive_size < at_least:
        raise ValueError(f"archive_size={archive_size}: it must hold the {at_least} behaviours that are added at once.")
