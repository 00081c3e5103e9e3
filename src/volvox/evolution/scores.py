"""What strategies read from an evaluation: fitness, lengths, and fitness shaped into weights."""

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp

from volvox._checks import nearest
from volvox.types import Array, Evaluation

Shaping = Literal["centered_ranks", "z_scores", "raw"]
"""Names of the fitness shapings."""


def mean_over_episodes(values: Array, valid: Array) -> Array:
    """Mean of `values` `[N, E]` over valid episodes, `[N]`; -inf where it is NaN or nothing was played."""
    played = valid.sum(axis=1)
    mean = jnp.where(valid, values, 0.0).sum(axis=1) / jnp.maximum(played, 1)
    return jnp.where((played > 0) & ~jnp.isnan(mean), mean, -jnp.inf)


def fitness(evaluation: Evaluation) -> Array:
    """Mean return over valid episodes, `[N]`; -inf, so last in any ranking, where it is NaN or nothing was played."""
    return mean_over_episodes(evaluation.returns, evaluation.valid)


def mean_length(evaluation: Evaluation) -> Array:
    """Mean length of valid episodes, float32 `[N]` timesteps; 0 where nothing was played."""
    played = jnp.maximum(evaluation.valid.sum(axis=1), 1)
    return jnp.where(evaluation.valid, evaluation.lengths, 0).sum(axis=1) / played


def num_nan(evaluation: Evaluation) -> Array:
    """Members with a NaN return in a valid episode, int32."""
    return (evaluation.valid & jnp.isnan(evaluation.returns)).any(axis=1).sum()


def standard_error(returns: Array) -> Array:
    """Standard error of the mean of `[E]` returns; NaN for one episode, which says nothing of it."""
    return jnp.std(returns, ddof=1) / jnp.sqrt(returns.shape[0]) if returns.shape[0] > 1 else jnp.float32(jnp.nan)


def summary(evaluation: Evaluation) -> dict[str, Array]:
    """The metrics of a training phase: `training_best`, `_mean`, `_std`, `_median` of fitness, lengths, and `num_nan`.

    Members without a fitness are left out, and counted in `num_nan` where a NaN is the reason.
    """
    scores, lengths = fitness(evaluation), mean_length(evaluation)
    ranked = jnp.isfinite(scores)
    count = jnp.maximum(ranked.sum(), 1)
    mean = jnp.where(ranked, scores, 0.0).sum() / count
    spread = jnp.where(ranked, (scores - mean) ** 2, 0.0).sum() / count
    return {
        "training_best": scores.max(),
        "training_mean": mean,
        "training_std": jnp.sqrt(spread),
        "training_median": jnp.nanmedian(jnp.where(ranked, scores, jnp.nan)),
        "training_length_mean": lengths.mean(),
        "training_length_max": lengths.max(),
        "num_nan": num_nan(evaluation),
    }


def validation_summary(evaluation: Evaluation, winner: Array) -> dict[str, Array]:
    """The metrics of a validation phase: the score of the winner (an index), its standard error, and NaNs."""
    return {
        "elite_score": fitness(evaluation)[winner],
        "elite_standard_error": standard_error(evaluation.returns[winner]),
        "validation_num_nan": num_nan(evaluation),
    }


def centered_ranks(fitness: Array) -> Array:
    """Ranks, scaled to [-0.5, 0.5] (Salimans et al. 2017, arXiv 1703.03864, section 2.1).

    Members of equal fitness share the mean of the ranks they take up. Where many members tie, as in games with rare
    rewards, their order would otherwise add noise to the gradient.

    Args:
      fitness: `[N]`; -inf is the lowest.

    Returns:
      float32 `[N]` of mean 0.
    """
    in_order = jnp.sort(fitness)
    below = jnp.searchsorted(in_order, fitness, side="left")
    up_to = jnp.searchsorted(in_order, fitness, side="right")
    rank = (below + up_to - 1) / 2
    return rank.astype(jnp.float32) / max(fitness.shape[0] - 1, 1) - (0.5 if fitness.shape[0] > 1 else 0.0)


def z_scores(fitness: Array) -> Array:
    """Fitness minus its mean, over its standard deviation; 0 everywhere if all members are equal.

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


SHAPINGS: dict[str, Callable[[Array], Array]] = {"centered_ranks": centered_ranks, "z_scores": z_scores, "raw": raw}
"""Fitness `[N]`, -inf where there is none -> finite float32 `[N]` in the same order."""


def shaping(name: str) -> Callable[[Array], Array]:
    """The fitness shaping of that name; raises ValueError for an unknown one."""
    if name not in SHAPINGS:
        raise ValueError(
            f"fitness_shaping={name!r} is unknown; there are {', '.join(SHAPINGS)}{nearest(str(name), SHAPINGS)}."
        )
    return SHAPINGS[name]
