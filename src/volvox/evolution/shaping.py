"""Fitness shaping: what a strategy makes of the returns of a population before it weighs its members by them."""

from collections.abc import Callable

import jax.numpy as jnp

from volvox._checks import nearest
from volvox.types import Array

Shaping = Callable[[Array], Array]
"""fitness `[N]`, -inf where there is none -> finite float32 `[N]`, order kept (infinite counts as the extreme)."""


def centered_ranks(fitness: Array) -> Array:
    """Ranks, scaled to [-0.5, 0.5] (Salimans et al. 2017, arXiv 1703.03864, section 2.1).

    Equal fitness has equal rank, the mean of those it takes up: where many members tie, as in games with rare rewards,
    their order would otherwise be noise in the gradient.

    Args:
      fitness: `[N]`; -inf is the lowest.

    Returns:
      float32 `[N]`, of mean 0.
    """
    in_order = jnp.sort(fitness)
    below = jnp.searchsorted(in_order, fitness, side="left")
    up_to = jnp.searchsorted(in_order, fitness, side="right")
    rank = (below + up_to - 1) / 2
    return rank.astype(jnp.float32) / max(fitness.shape[0] - 1, 1) - (0.5 if fitness.shape[0] > 1 else 0.0)


def z_scores(fitness: Array) -> Array:
    """Fitness minus its mean, over its standard deviation; all 0 where all are equal.

    Args:
      fitness: `[N]`; -inf and inf count as the lowest and highest finite ones.

    Returns:
      float32 `[N]`.
    """
    finite = raw(fitness)
    spread = finite.std()
    return jnp.where(spread > 0, (finite - finite.mean()) / jnp.where(spread > 0, spread, 1.0), 0.0)


def raw(fitness: Array) -> Array:
    """Fitness as it is.

    Args:
      fitness: `[N]`; -inf and inf count as the lowest and highest finite ones, or 0 where there are none.

    Returns:
      float32 `[N]`.
    """
    finite = jnp.isfinite(fitness)
    lowest, highest = jnp.where(finite, fitness, jnp.inf).min(), jnp.where(finite, fitness, -jnp.inf).max()
    return jnp.where(finite.any(), jnp.clip(fitness, lowest, highest), 0.0).astype(jnp.float32)


SHAPINGS: dict[str, Shaping] = {"centered_ranks": centered_ranks, "z_scores": z_scores, "raw": raw}


def shaping(name: str) -> Shaping:
    """The shaping of a name; raises ValueError for an unknown one."""
    if name not in SHAPINGS:
        raise ValueError(
            f"fitness_shaping={name!r} is unknown; there are {', '.join(SHAPINGS)}{nearest(str(name), SHAPINGS)}."
        )
    return SHAPINGS[name]
