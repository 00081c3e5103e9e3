"""Running mean and variance of observations, by which they are normalised."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from volvox.types import Array

_LIMIT = 10.0
"""Largest absolute value of a normalised number."""


class Moments(NamedTuple):
    """Running moments of observations `[n...]`.

    Attributes:
      num: float32: Observations counted; 0 where they are left as they are.
      mean: float32 `[n...]`.
      squares: float32 `[n...]`: Sum of squared differences from the mean.
    """

    num: Array
    mean: Array
    squares: Array


def init(shape: tuple[int, ...]) -> Moments:
    """Returns the moments before any observation."""
    return Moments(jnp.float32(0), jnp.zeros(shape), jnp.zeros(shape))


def update(moments: Moments, observation: Array) -> Moments:
    """Adds observations `[B, n...]` (Chan et al. 1979, Updating formulae for computing sample variances)."""
    chex.assert_shape(observation, (None, *moments.mean.shape))
    b = observation.shape[0]
    mean = observation.mean(axis=0)
    squares = ((observation - mean) ** 2).sum(axis=0)
    count = moments.num + b
    difference = mean - moments.mean
    return Moments(
        num=count,
        mean=moments.mean + difference * (b / count),
        squares=moments.squares + squares + difference**2 * (moments.num * b / count),
    )


def normalize(moments: Moments, observation: Array) -> Array:
    """Returns observations `[..., n...]` with mean 0 and variance 1, clipped to ±10; unchanged before 2 are counted."""
    scaled = (observation - moments.mean) * jax.lax.rsqrt(moments.squares / jnp.maximum(moments.num, 1.0) + 1e-8)
    return jnp.where(moments.num > 1, jnp.clip(scaled, -_LIMIT, _LIMIT), observation)
