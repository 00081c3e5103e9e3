"""The strategy interface, functions and settings that strategies share, validation, and cutoffs of episodes."""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import jax.scipy.stats
import numpy as np
import optax

from volvox._checks import INT32, integers
from volvox.population.decoding import Encoding
from volvox.types import Array, Evaluation, Population

Scalars = dict[str, Array]
"""Scalars by name."""
_LOWEST = float(np.finfo(np.float32).min)


class Strategy(Protocol):
    """An evolutionary strategy: a dataclass of settings with pure methods.

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
    - `traceable = False`: All methods but `init` are called from Python instead of being compiled.

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
        """Returns N members, for example by `volvox.population.explicit`, and the state.

        Members with `episodes` of 0 do not play; other values are ignored.
        """
        ...

    def tell(
        self, key: Array, state: Any, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[Any, Scalars]:
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


_fitness = jax.jit(fitness)
_standard_errors = jax.jit(lambda returns: jnp.std(returns, axis=1, ddof=1) / jnp.sqrt(returns.shape[1]))


def scores_and_errors(evaluation: Evaluation) -> tuple[np.ndarray, np.ndarray]:
    """Fitness, and standard errors of the mean returns, float32 `[N]`; errors are NaN for one episode."""
    n, e = evaluation.returns.shape
    # With one episode the device would compute NaN, which is an error under jax_debug_nans.
    errors = np.asarray(_standard_errors(evaluation.returns)) if e > 1 else np.full(n, np.nan)
    return np.asarray(_fitness(evaluation)), errors


def mean_length(evaluation: Evaluation) -> Array:
    """Mean length of valid episodes, float32 `[N]` timesteps; 0 if no episode was played."""
    return _mean(evaluation.lengths, evaluation.valid)


@jax.jit
def summary(evaluation: Evaluation) -> Scalars:
    """Metrics of training: `training_best`, `_mean`, `_std`, `_median` of fitness, lengths, and `num_nan`.

    Members without a fitness do not count for the fitness; `num_nan` counts those whose return is NaN.
    """
    scores, lengths = fitness(evaluation), mean_length(evaluation)
    ranked = jnp.isfinite(scores)
    return {
        "training_best": scores.max(),
        "training_mean": jnp.mean(scores, where=ranked),
        "training_std": jnp.std(scores, where=ranked),
        "training_median": jnp.nanmedian(jnp.where(ranked, scores, jnp.nan)),
        "training_length_mean": jnp.mean(lengths, where=evaluation.valid.any(axis=1)),
        "training_length_max": lengths.max(),
        "num_nan": (evaluation.valid & jnp.isnan(evaluation.returns)).any(axis=1).sum(dtype=jnp.int32),
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
    ranks, n = jax.scipy.stats.rankdata(fitness).astype(jnp.float32) - 1, len(fitness)
    return ranks / (n - 1) - 0.5 if n > 1 else ranks


def z_scores(fitness: Array) -> Array:
    """`raw` fitness `[N]` minus its mean, over its standard deviation; 0 everywhere if all members are equal."""
    finite = raw(fitness)
    spread = finite.std()
    return jnp.where(spread > 0, (finite - finite.mean()) / jnp.where(spread > 0, spread, 1.0), 0.0)


def raw(fitness: Array) -> Array:
    """Fitness `[N]`; -inf and inf become the lowest and highest finite values, or 0 if there are none."""
    finite = jnp.isfinite(fitness)
    lowest, highest = jnp.where(finite, fitness, jnp.inf).min(), jnp.where(finite, fitness, -jnp.inf).max()
    return jnp.where(finite.any(), jnp.clip(fitness, lowest, highest), 0.0).astype(jnp.float32)


Shaping = Literal["centered_ranks", "z_scores", "raw"]
"""Names of the fitness shapings."""
SHAPINGS: dict[str, Callable[[Array], Array]] = {"centered_ranks": centered_ranks, "z_scores": z_scores, "raw": raw}
"""Fitness `[N]`, -inf for a member without one -> finite float32 `[N]` in the same order."""


Scheduled = float | str | optax.Schedule
"""A positive number, `"linear:start,end,generations"`, `"exponential:start,end,generations"`, or an optax schedule."""


def schedule(name: str, value: Scheduled) -> optax.Schedule:
    """Returns the optax schedule of a setting.

    Example:
      >>> schedule("mutation_std", "linear:0.01,0.002,100")(50)
      Array(0.006, dtype=float32, weak_type=True)

    Args:
      name: Name of the setting, for messages.
      value: A positive number; `"linear:start,end,generations"` (from `start` to `end` in that many generations, then
        constant); `"exponential:start,end,generations"` (the same, with a constant factor a generation); or any optax
        schedule, which is returned unchanged.

    Returns:
      The schedule, count -> value; the first count is 0.

    Raises:
      ValueError: `value` has another form, or a number is not positive and finite.
    """
    if callable(value):
        return value
    kind, start, end, generations = None, value, value, 1
    try:
        if isinstance(value, str) and ":" in value:
            kind, numbers = value.split(":")
            start, end, generations = numbers.split(",")
        start, end, generations = float(start), float(end), int(generations)
    except (TypeError, ValueError):
        start = end = generations = 0
    # The device computes in float32 and int32.
    positive = 1e-38 < start < 3e38 and 1e-38 < end < 3e38 and 1 <= generations <= INT32
    if not positive or kind not in (None, "linear", "exponential"):
        raise ValueError(
            f'{name}={value!r}: give a positive number, "linear:start,end,generations" or '
            '"exponential:start,end,generations"; all numbers are positive and fit into 32 bits.'
        )
    if kind == "linear":
        return optax.linear_schedule(start, end, generations)
    if kind == "exponential":
        return optax.exponential_decay(start, generations, end / start, end_value=end)
    return optax.constant_schedule(start)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validation:
    """How the elite, which is the result of a run, is chosen, scored and tested.

    In each generation the elite so far and its challengers play fresh validation episodes side by side. The one with
    the best mean return becomes the elite (Such et al. 2017, arXiv 1712.06567). The challengers are the best members of
    the generation, or those that the strategy names (`volvox.evolution.Strategy`).

    Attributes:
      num_elite_candidates: C, candidates for the elite: the elite so far and the best C - 1 members; at least 2. A
        strategy that names challengers itself, such as `ES`, ignores it.
      num_validation_episodes: Validation episodes of each candidate.
      pool_validations: Compare the elite so far by the mean over all its validations since it was chosen. By default it
        is compared by the latest alone, as published, so that a few unlucky episodes can displace it.
      num_test_episodes: Episodes that the elite then plays in the test environments (published: 200); 0 for no test. A
        strategy that validates its current parameters, such as `ES`, tests these instead.
    """

    num_elite_candidates: int = 4
    num_validation_episodes: int = 8
    pool_validations: bool = False
    num_test_episodes: int = 0

    def __post_init__(self) -> None:
        integers(self, "num_elite_candidates", low=2)
        integers(self, "num_validation_episodes", low=1)
        integers(self, "num_test_episodes", low=0)

    @classmethod
    def paper(cls) -> "Validation":
        """Such et al. 2017: 10 candidates, 30 validation episodes of each, and 200 test episodes."""
        return cls(num_elite_candidates=10, num_validation_episodes=30, num_test_episodes=200)


class EliteScore(NamedTuple):
    """The score of the elite in validation at one cutoff, as Python numbers.

    The mean that chose a network is biased upwards, so the score excludes it: the score is the mean over all
    validation episodes that the elite has played since. When the cutoff grows, the score is dropped, so that scores of
    different cutoffs are never compared. (An elite stays only if it wins again, so a smaller bias remains.)

    Attributes:
      selecting: Mean return in the validation that chose the elite; NaN if that was at another cutoff.
      total: Sum of the returns in its validations since.
      episodes: Episodes in `total`.
      length: The expected length of its episodes when it was chosen, timesteps.
    """

    selecting: float = float("nan")
    total: float = 0.0
    episodes: int = 0
    length: float = 0.0

    @property
    def mean(self) -> float:
        """The score; NaN before there are episodes."""
        return float(np.float32(self.total) / np.float32(self.episodes)) if self.episodes else float("nan")

    def extended(self, returns: np.ndarray) -> "EliteScore":
        """Adds the returns of further validation episodes."""
        returns = returns[~np.isnan(returns)]
        total = np.float32(self.total) + returns.sum(dtype=np.float32)
        return self._replace(total=float(total), episodes=self.episodes + returns.size)


def choose(
    validation: Validation, score: EliteScore, elite: int | None, evaluation: Evaluation
) -> tuple[int, int, EliteScore, dict[str, Any]]:
    """Chooses the elite. The elite so far gives way only to a better challenger.

    Args:
      validation: The settings.
      score: The score of the elite so far.
      elite: Index of the elite so far among the candidates; None if there is none.
      evaluation: Validation episodes of the C candidates.

    Returns:
      (index of the best challenger, index of the elite, score of the elite, metrics). The metrics are
      `validation_mean` of the elite with its standard error, `elite_score` with `elite_episodes`,
      `elite_selecting_score`, `elite_is_new`, `validation_num_nan` and `candidates_mean`.
    """
    returns, valid = np.asarray(evaluation.returns), np.asarray(evaluation.valid)
    scores, errors = scores_and_errors(evaluation)
    compared = scores.copy()
    # A challenger that played ranks above one that did not, even if its mean return is -inf.
    challengers = np.where(valid.any(axis=1), np.maximum(scores, _LOWEST), -np.inf)
    if elite is not None:
        challengers[elite] = -np.inf
        pooled = score.extended(returns[elite][valid[elite]])
        if validation.pool_validations and pooled.episodes and np.isfinite(scores[elite]):
            compared[elite] = pooled.mean
    challenger = int(challengers.argmax())
    is_new = elite is None or bool(compared[challenger] > compared[elite])
    winner = challenger if is_new or elite is None else elite
    won = returns[winner][valid[winner]]
    score = EliteScore(selecting=float(scores[winner])) if is_new else score.extended(won)
    ranked = scores[np.isfinite(scores)]
    metrics = {
        "validation_mean": float(scores[winner]),
        "validation_standard_error": float(errors[winner]),
        "elite_score": score.mean,
        "elite_episodes": score.episodes,
        "elite_selecting_score": score.selecting,
        "elite_is_new": is_new,
        "validation_num_nan": int((valid & np.isnan(returns)).any(axis=1).sum()),
        "candidates_mean": float(ranked.mean()) if ranked.size else float("nan"),
    }
    return challenger, winner, score, metrics


class Cutoff(NamedTuple):
    """Timesteps after which training and validation episodes are cut; fixed if `fraction` is 1.

    Attributes:
      start: Timesteps in the first generation.
      fraction: The cutoff grows when more than this fraction of training episodes reach it.
      ratio: Factor between the cutoff and the next one.
      max: Timesteps it never exceeds; 0 means `start`.
    """

    start: int
    fraction: float = 1.0
    ratio: float = 1.0
    max: int = 0

    def grown(self, current: int, fraction_cut: float) -> int:
        """The cutoff of the next generation, in timesteps.

        Args:
          current: Timesteps in this generation.
          fraction_cut: Fraction of this generation's training episodes that reached the cutoff.
        """
        if self.fraction >= 1 or fraction_cut <= self.fraction:
            return current
        return min(max(int(min(current * self.ratio, self.max)), current + 1), self.max)


def parse_cutoff(value: int | str) -> Cutoff:
    """Reads a cutoff: timesteps, or `"adaptive:start,fraction,ratio,max"`.

    Example:
      >>> parse_cutoff("adaptive:400,0.1,1.5,5000")
      Cutoff(start=400, fraction=0.1, ratio=1.5, max=5000)

    Args:
      value: For example `5000`, `"5000"` or `"adaptive:400,0.1,1.5,5000"` (start at 400 timesteps; grow by half when
        more than a tenth of the episodes reach the cutoff; never exceed 5 000).

    Raises:
      ValueError: The text has another form, timesteps are not positive, the fraction is outside [0, 1), the ratio is
        not above 1, or the maximum is below the start.
    """
    try:
        if isinstance(value, str) and value.startswith("adaptive:"):
            start, fraction, ratio, top = value.removeprefix("adaptive:").split(",")
            cutoff = Cutoff(int(start), float(fraction), float(ratio), int(top))
            is_valid = 0 <= cutoff.fraction < 1 < cutoff.ratio < float("inf") and cutoff.start <= cutoff.max
        else:
            cutoff, is_valid = Cutoff(int(value) if isinstance(value, str) else operator.index(value)), True
    except (TypeError, ValueError):
        cutoff, is_valid = Cutoff(0), False
    if not is_valid or cutoff.start < 1 or max(cutoff.start, cutoff.max) > INT32:
        raise ValueError(
            f'max_episode_steps={value!r}: give timesteps (e.g. 5000), or "adaptive:start,fraction,ratio,max" with a '
            'fraction in [0, 1), a ratio above 1, and a max of at least start (e.g. "adaptive:400,0.1,1.5,5000").'
        )
    return cutoff
