"""An archive of behaviours, and novelty as the distance to the nearest of them (Lehman & Stanley 2011)."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from volvox.types import Array


class Archive(NamedTuple):
    """The last `C` behaviours that were added.

    Attributes:
      behaviors: float32 `[C, D]`.
      added: int32: behaviours ever added; the archive holds the last `min(added, C)` of them.
    """

    behaviors: Array
    added: Array


def init(capacity: int, size: int) -> Archive:
    """An empty archive for `capacity` behaviours of `size` numbers."""
    return Archive(jnp.zeros((capacity, size)), jnp.int32(0))


def add(archive: Archive, behaviors: Array, mask: Array) -> Archive:
    """Adds behaviours to an archive; when it is full, they replace the oldest.

    Args:
      archive: of capacity C.
      behaviors: `[M, D]`, M at most C.
      mask: bool `[M]`: which of them are added.

    Returns:
      The archive.
    """
    chex.assert_shape(mask, behaviors.shape[:1])
    chex.assert_equal_shape_suffix([archive.behaviors, behaviors], 1)
    capacity = archive.behaviors.shape[0]
    place = (archive.added + jnp.cumsum(mask, dtype=jnp.int32) - 1) % capacity
    place = jnp.where(mask, place, capacity)  # out of range: dropped
    return Archive(archive.behaviors.at[place].set(behaviors, mode="drop"), archive.added + mask.sum(dtype=jnp.int32))


def held(archive: Archive) -> Array:
    """Which rows of the archive are in use, bool `[C]`."""
    return jnp.arange(archive.behaviors.shape[0]) < archive.added


def novelty(behaviors: Array, others: Array, held: Array, k: int) -> Array:
    """Mean Euclidean distance to the `k` nearest other behaviours; to all if there are fewer, 0 if there are none.

    The nearest are found by `|a|^2 + |b|^2 - 2ab`, one matmul; the distances to them are then computed from their
    differences, without cancellation. Behaviours that are not finite are nobody's neighbours and have no novelty.

    Args:
      behaviors: `[M, D]`.
      others: `[C, D]`, C at least k.
      held: bool `[C]` or `[M, C]`: which of the others count.
      k: number of neighbours.

    Returns:
      float32 `[M]`; -inf where the behaviour is not finite.
    """
    chex.assert_rank([behaviors, others], 2)
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
