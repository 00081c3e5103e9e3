"""The strategy interface, and functions of an `Evaluation` that strategies share."""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import jax.numpy as jnp

from volvox.population.decoding import Encoding
from volvox.types import Array, Evaluation, Population

Metrics = dict[str, Array]
"""Scalars by name."""


class Strategy(Protocol):
    """An evolutionary strategy: settings with pure methods, best a frozen dataclass.

    `volvox.evolve` plays the population of `ask`, gives its evaluation to `tell`, and owns everything else: validation,
    the elite, its score and test episodes (`volvox.Validation`). The state is any pytree of arrays with fixed shapes
    and dtypes. Random numbers come from the keys alone.

    These members may be added:

    - `num_episodes`: Training episodes of each member; 1 by default.
    - `behavior`: The record of each episode (`volvox.rollout.Behavior`), which `tell` finds in `evaluation.behaviors`.
    - `candidates(state, population, evaluation, encoding) -> Population`: The challengers that play validation with
      the elite so far. `episodes` of 0 leaves a challenger out; other values are ignored. By default (or if it returns
      None) the challengers are the best members of the generation.
    - `adopt(state, candidates, evaluation, winner, encoding) -> (state, metrics)`: Called after validation, which all
      `candidates` played; `winner` is the index of the elite among them.
    - `forget_scores(state) -> state`: Drops everything that returns were compared with, because the cutoff has grown.
    - `validates_first = True`: Validation precedes training: the challengers are the current parameters instead of the
      members, `candidates` gets None for population and evaluation, and test episodes are played by the best challenger
      instead of the elite.
    - `traceable = False`: The methods are called from Python instead of being compiled.

    A strategy whose parents each descend from a single member can leave the parameters to `evolve`, which then keeps
    their lineages: the state has a field `survivors`, a `Member` `[T]` that says after `tell` and `adopt` how each
    parent of the next generation descends from the current bases. Its populations have `bases=None`: base i < T is
    parent i, and base T is the elite.
    """

    @property
    def population_size(self) -> int:
        """N, members of a generation."""
        ...

    def init(self, key: Array, encoding: Encoding) -> Any:
        """Returns the first state."""
        ...

    def ask(self, key: Array, state: Any, encoding: Encoding) -> tuple[Population, Any]:
        """Returns N members, for example by `volvox.population.explicit`, and the state."""
        ...

    def tell(
        self, key: Array, state: Any, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[Any, Metrics]:
        """Returns the state after the evaluation of a population, and scalars by name for the row of metrics."""
        ...


def mean_over_episodes(values: Array, valid: Array) -> Array:
    """Mean of `values` `[N, E]` over valid episodes, `[N]`; -inf if it is NaN or no episode was played."""
    mean = _mean(values, valid)
    return jnp.where(valid.any(axis=1) & ~jnp.isnan(mean), mean, -jnp.inf)


def _mean(values: Array, valid: Array) -> Array:
    return jnp.sum(values, axis=1, where=valid) / jnp.maximum(valid.sum(axis=1, dtype=jnp.int32), 1).astype(jnp.float32)


def fitness(evaluation: Evaluation) -> Array:
    """Mean return over valid episodes, `[N]`; -inf, the lowest rank, if it is NaN or no episode was played."""
    return mean_over_episodes(evaluation.returns, evaluation.valid)


def mean_length(evaluation: Evaluation) -> Array:
    """Mean length of valid episodes, float32 `[N]` timesteps; 0 if no episode was played."""
    return _mean(evaluation.lengths, evaluation.valid)


def num_nan(evaluation: Evaluation) -> Array:
    """Number of members with a NaN return in a valid episode, int32."""
    return (evaluation.valid & jnp.isnan(evaluation.returns)).any(axis=1).sum(dtype=jnp.int32)


def summary(evaluation: Evaluation) -> Metrics:
    """Metrics of training: `training_best`, `_mean`, `_std`, `_median` of fitness, lengths, and `num_nan`.

    Members without a fitness are left out, and counted in `num_nan` if their return is NaN.
    """
    scores, lengths = fitness(evaluation), mean_length(evaluation)
    ranked = jnp.isfinite(scores)
    return {
        "training_best": scores.max(),
        "training_mean": jnp.mean(scores, where=ranked),
        "training_std": jnp.std(scores, where=ranked),
        "training_median": jnp.nanmedian(jnp.where(ranked, scores, jnp.nan)),
        "training_length_mean": lengths.mean(),
        "training_length_max": lengths.max(),
        "num_nan": num_nan(evaluation),
    }


def centered_ranks(fitness: Array) -> Array:
    """Ranks, scaled to [-0.5, 0.5] (Salimans et al. 2017, arXiv 1703.03864, section 2.1).

    Members of equal fitness share the mean of their ranks. If many members tie, as in games with rare rewards, their
    order would otherwise add noise to the gradient.

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
      fitness: `[N]`; -inf and inf are replaced by the lowest and highest finite values.

    Returns:
      float32 `[N]`.
    """
    finite = raw(fitness)
    spread = finite.std()
    return jnp.where(spread > 0, (finite - finite.mean()) / jnp.where(spread > 0, spread, 1.0), 0.0)


def raw(fitness: Array) -> Array:
    """Fitness without shaping.

    Args:
      fitness: `[N]`; -inf and inf are replaced by the lowest and highest finite values, or by 0 if there are none.

    Returns:
      float32 `[N]`.
    """
    finite = jnp.isfinite(fitness)
    lowest, highest = jnp.where(finite, fitness, jnp.inf).min(), jnp.where(finite, fitness, -jnp.inf).max()
    return jnp.where(finite.any(), jnp.clip(fitness, lowest, highest), 0.0).astype(jnp.float32)


Shaping = Literal["centered_ranks", "z_scores", "raw"]
"""Names of the fitness shapings."""
SHAPINGS: dict[str, Callable[[Array], Array]] = {"centered_ranks": centered_ranks, "z_scores": z_scores, "raw": raw}
"""Fitness `[N]`, -inf for a member without one -> finite float32 `[N]` in the same order."""
