"""What strategies read from an evaluation."""

import jax.numpy as jnp

from volvox.types import Array, Evaluation


def mean_over_episodes(values: Array, valid: Array) -> Array:
    """Mean of `values` `[N, E]` over valid episodes, `[N]`; -inf where it is NaN or nothing was played."""
    played = valid.sum(axis=1)
    mean = jnp.where(valid, values, 0.0).sum(axis=1) / jnp.maximum(played, 1)
    return jnp.where((played > 0) & ~jnp.isnan(mean), mean, -jnp.inf)


def fitness(evaluation: Evaluation) -> Array:
    """Mean return over valid episodes, `[N]`; -inf, so last in any ranking, where it is NaN or nothing was played."""
    return mean_over_episodes(evaluation.returns, evaluation.valid)


def mean_length(evaluation: Evaluation) -> Array:
    """Mean length of valid episodes, float32 `[N]` steps; 0 where nothing was played."""
    played = jnp.maximum(evaluation.valid.sum(axis=1), 1)
    return jnp.where(evaluation.valid, evaluation.lengths, 0).sum(axis=1) / played


def num_nan(evaluation: Evaluation) -> Array:
    """Members with a NaN return in a valid episode, int32."""
    return (evaluation.valid & jnp.isnan(evaluation.returns)).any(axis=1).sum()


def standard_error(returns: Array) -> Array:
    """Of the mean of `[E]` returns; NaN for one episode, which says nothing of it."""
    return jnp.std(returns, ddof=1) / jnp.sqrt(returns.shape[0]) if returns.shape[0] > 1 else jnp.float32(jnp.nan)


def summary(evaluation: Evaluation) -> dict[str, Array]:
    """The metrics of a training round: `training_best`, `_mean`, `_std`, `_median` of fitness, lengths, and `num_nan`.

    Members without a fitness are left out, and counted in `num_nan` where a NaN is why.
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
