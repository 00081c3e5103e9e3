"""Populations of explicit parameters: networks small enough that all members exist at once.

vectors = mean + std * jax.random.normal(key, (64, encoding.num_parameters))
population = explicit(from_vectors(encoding, vectors))
"""

import chex
import jax
import jax.numpy as jnp

from volvox.ops import flat
from volvox.population.decoding import Encoding
from volvox.types import Array, ArrayTree, Population


def explicit(
    params: ArrayTree, *, parent: Array | None = None, episodes: Array | int = 1, priority: Array | float = 0.0
) -> Population:
    """Makes a population of explicit parameters: members are bases without noise.

    Args:
      params: Parameters, leaves `[P, ...]`.
      parent: int32 `[N]`: Row of each member; None: member i is row i, and N is P.
      episodes: int32 `[N]`, or one number for all: Episodes to play.
      priority: float32 `[N]`, or one number for all: Members with a higher priority start earlier.

    Returns:
      `Population` of N members.
    """
    leaves = jax.tree.leaves(params)
    chex.assert_equal_shape_prefix(leaves, 1)
    if parent is None:
        parent = jnp.arange(leaves[0].shape[0], dtype=jnp.int32)
    shape = parent.shape
    return Population(
        bases=params,
        parent=parent,
        seed=jnp.zeros(shape, jnp.int32),
        scale=jnp.zeros(shape, jnp.float32),
        initial=jnp.zeros(shape, bool),
        episodes=jnp.broadcast_to(jnp.asarray(episodes, jnp.int32), shape),
        priority=jnp.broadcast_to(jnp.asarray(priority, jnp.float32), shape),
    )


def to_vectors(params: ArrayTree) -> Array:
    """Joins the leaves `[N, ...]` of parameters to vectors `[N, D]`, in the order of `volvox.ops.flat`."""
    return jax.vmap(flat.flatten)(params)


def from_vectors(encoding: Encoding, vectors: Array) -> ArrayTree:
    """Cuts vectors `[N, D]` into parameters, leaves `[N, ...]`; D is `encoding.num_parameters`."""
    chex.assert_shape(vectors, (None, encoding.num_parameters))
    return jax.vmap(lambda vector: flat.unflatten(vector, encoding.like))(vectors)
