"""Weighted sums of noise, streamed: what a gradient over a population is, without the population."""

import chex
import jax
import jax.numpy as jnp

from volvox.population.decoding import Encoding, Factors, mutation_noise
from volvox.types import Array, ArrayTree

_AT_ONCE = 8
"""Noise vectors in one pass over the sum: it is read and written once for all of them."""
_FACTORS_AT_ONCE = 64
"""The same for factors, which are small."""


def weighted_noise(encoding: Encoding, seeds: Array, weights: Array) -> ArrayTree:
    """Computes `sum_k weights[k] * noise(seeds[k])`; a few noise vectors exist at a time.

    Args:
      encoding: of the network.
      seeds: int32 `[K]`.
      weights: float32 `[K]`.

    Returns:
      The sum, in the structure of `encoding.like`.
    """
    chex.assert_rank([seeds, weights], 1)
    chex.assert_equal_shape([seeds, weights])
    if encoding.rank is not None:
        return _weighted_factors(encoding, seeds, weights)
    seeds, weights = _chunks(seeds, _AT_ONCE), _chunks(weights, _AT_ONCE)

    def add(i: Array, total: ArrayTree) -> ArrayTree:
        vectors = [mutation_noise(encoding, seeds[i, j]) for j in range(_AT_ONCE)]
        return jax.tree.map(
            lambda sum_, *noise: sum_ + sum(weights[i, j] * x for j, x in enumerate(noise)), total, *vectors
        )

    return jax.lax.fori_loop(0, seeds.shape[0], add, _zeros(encoding))


def _weighted_factors(encoding: Encoding, seeds: Array, weights: Array) -> ArrayTree:
    """The same of low-rank noise: many outer products are one matrix product."""
    # Parameters that are not factored but have several dimensions may be as large as factored ones are small.
    large = any(
        len(shape) > 1 and not is_factored
        for shape, is_factored in zip(encoding.shapes, encoding.factored, strict=True)
    )
    at_once = _AT_ONCE if large else _FACTORS_AT_ONCE
    seeds, weights = _chunks(seeds, at_once), _chunks(weights, at_once)

    def add(i: Array, total: ArrayTree) -> ArrayTree:
        noise = jax.lax.map(lambda seed: mutation_noise(encoding, seed), seeds[i])

        def one(sum_, noise):
            if not isinstance(noise, Factors):
                return sum_ + jnp.tensordot(weights[i], noise, 1)
            product = jnp.einsum("jkr,jnr->kn", noise.a, weights[i, :, None, None] * noise.b)
            return sum_ + product.reshape(sum_.shape)

        return jax.tree.map(one, total, noise)

    return jax.lax.fori_loop(0, seeds.shape[0], add, _zeros(encoding))


def _chunks(x: Array, size: int) -> Array:
    """`[K]` -> `[chunks, size]`, filled up with zeros."""
    return jnp.pad(x, (0, -x.shape[0] % size)).reshape(-1, size)


def _zeros(encoding: Encoding) -> ArrayTree:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), encoding.like)
