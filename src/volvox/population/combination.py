"""Weighted sums of noise, streamed: what a gradient over a population is, without the population."""

import jax
import jax.numpy as jnp

from volvox.population.decoding import Encoding
from volvox.types import Array, ArrayTree

_AT_ONCE = 8
"""Noise vectors in one pass over the sum: it is read and written once for all of them."""


def weighted_noise(encoding: Encoding, seeds: Array, weights: Array) -> ArrayTree:
    """Computes `sum_k weights[k] * noise(seeds[k])`; a few noise vectors exist at a time.

    Args:
      encoding: of the network.
      seeds: int32 `[K]`.
      weights: float32 `[K]`.

    Returns:
      The sum, in the structure of `encoding.like`.
    """
    count = seeds.shape[0]
    chunks = -(-count // _AT_ONCE)
    pad = chunks * _AT_ONCE - count
    seeds = jnp.pad(seeds, (0, pad)).reshape(chunks, _AT_ONCE)
    weights = jnp.pad(weights, (0, pad)).reshape(chunks, _AT_ONCE)

    def add(i: Array, total: ArrayTree) -> ArrayTree:
        vectors = [encoding.sample(encoding.data, seeds[i, j], encoding.like) for j in range(_AT_ONCE)]
        return jax.tree.map(
            lambda sum_, *noise: sum_ + sum(weights[i, j] * x for j, x in enumerate(noise)), total, *vectors
        )

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), encoding.like)
    return jax.lax.fori_loop(0, chunks, add, zeros)
