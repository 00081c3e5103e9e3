"""What an evolutionary strategy is: a generation as a sequence of phases, each of them ask, evaluate, tell."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import nearest
from volvox.population.decoding import Encoding
from volvox.population.vectors import explicit
from volvox.rollout.behaviors import Behavior
from volvox.types import Array, ArrayTree, Evaluation, Population

Role = Literal["training", "validation", "test"]
"""In which environments a phase is played: training and validation share a cutoff, test has its own."""
Metrics = dict[str, Array]
"""Scalars by name."""


class Phase(NamedTuple):
    """One `ask -> evaluate -> tell` of a generation. Both functions are pure: what changes is passed and returned.

    Attributes:
      role: In which environments the phase is played.
      num_members: N, of the population that is asked for.
      num_episodes: E, the largest number of episodes of a member.
      ask: (key, state, encoding) -> (Population, state).
      tell: (key, state, population, evaluation, encoding) -> (state, metrics), with a key of its own. Higher returns
        are better.
      traceable: `ask` and `tell` can be compiled; otherwise Python calls them.
    """

    role: Role
    num_members: int
    num_episodes: int
    ask: Callable[[Array, Any, Encoding], tuple[Population, Any]]
    tell: Callable[[Array, Any, Population, Evaluation, Encoding], tuple[Any, Metrics]]
    traceable: bool = True


class Strategy(Protocol):
    """An evolutionary strategy: settings with pure methods.

    `GA` and `ES` are strategies, and so is any frozen dataclass that has these members. Where there is one phase of
    training and no lineage, `init`, `ask` and `tell` are all that has to be written (`AskTell`), and `Elitism` adds the
    rest. The state is a NamedTuple and a pytree of arrays of fixed shapes and dtypes. It has at least these fields:

    - `bases`: the parameters of the bases, leaves `[P, ...]`.
    - `score`: the `EliteScore` of the elite, which is what the run reports.
    - `survivors`: a `Member`, how each base `[P]` came from the bases before the generation: the next row of the
      lineage. None if bases do not descend from single members. Then there is no lineage, and checkpoints hold the
      bases; otherwise they hold the lineage, from which the bases are computed anew, and the bases of every population
      that is asked for are those of the state.
    """

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a generation, in order; at least one of them is a training or validation phase."""
        ...

    @property
    def behavior(self) -> Behavior:
        """What is recorded of each training and validation episode."""
        ...

    @property
    def elite(self) -> int:
        """Index of the elite among the bases."""
        ...

    def init(self, key: Array, encoding: Encoding) -> Any:
        """Makes the first state; raises ValueError where the noise does not fit the strategy."""
        ...

    def forget_scores(self, state: Any) -> Any:
        """Drops all that returns were compared by: the cutoff has grown, and longer episodes have other returns."""
        ...


def rows(tree: ArrayTree, index: Array | int | slice) -> ArrayTree:
    """The rows of each leaf `[P, ...]` at these places."""
    return jax.tree.map(lambda x: x[index], tree)


def unchanged(state: Any, index: Array, episodes: Array) -> Population:
    """A population of the bases themselves.

    Args:
      state: The state of a strategy, with fields `bases` and `expected_length` (float32 `[P]` timesteps).
      index: int32 `[N]`: Which bases.
      episodes: int32 `[N]`: Episodes each of them plays.
    """
    return explicit(state.bases, parent=index, episodes=episodes, priority=state.expected_length[index])


def test_phase(num_episodes: int, base: Callable[[Any], Array]) -> tuple[Phase, ...]:
    """The phase in which one base plays test episodes; its metrics are `test_score`, `_standard_error` and `_best`.

    Args:
      num_episodes: E; 0 for no test.
      base: state -> int32: which base; the state is one that `unchanged` takes.

    Returns:
      One phase, or none.
    """

    def ask(key: Array, state: Any, encoding: Encoding) -> tuple[Population, Any]:
        return unchanged(state, base(state)[None], jnp.array([num_episodes], jnp.int32)), state

    return (Phase("test", 1, num_episodes, ask, _tell_test),) if num_episodes else ()


def _tell_test(
    key: Array, state: Any, population: Population, evaluation: Evaluation, encoding: Encoding
) -> tuple[Any, Metrics]:
    returns = evaluation.returns[0]
    return state, {
        "test_score": fitness(evaluation)[0],
        "test_standard_error": standard_error(returns),
        "test_best": returns.max(),
    }


def mean_over_episodes(values: Array, valid: Array) -> Array:
    """Mean of `values` `[N, E]` over valid episodes, `[N]`; -inf where it is NaN or nothing was played."""
    mean = _mean(values, valid)
    return jnp.where(valid.any(axis=1) & ~jnp.isnan(mean), mean, -jnp.inf)


def _mean(values: Array, valid: Array) -> Array:
    return jnp.sum(values, axis=1, where=valid) / jnp.maximum(valid.sum(axis=1), 1)


def fitness(evaluation: Evaluation) -> Array:
    """Mean return over valid episodes, `[N]`; -inf, so last in any ranking, where it is NaN or nothing was played."""
    return mean_over_episodes(evaluation.returns, evaluation.valid)


def mean_length(evaluation: Evaluation) -> Array:
    """Mean length of valid episodes, float32 `[N]` timesteps; 0 where nothing was played."""
    return _mean(evaluation.lengths, evaluation.valid)


def num_nan(evaluation: Evaluation) -> Array:
    """Members with a NaN return in a valid episode, int32."""
    return (evaluation.valid & jnp.isnan(evaluation.returns)).any(axis=1).sum()


def check_returns(evaluation: Evaluation, where: str) -> None:
    """Checks that an environment gave returns by which members can be ranked.

    A member whose episodes have NaN returns is ranked last, as long as others have a return.

    Args:
      evaluation: What was played.
      where: Environment, phase and generation, for the message.

    Raises:
      FloatingPointError: A return is infinite, or all are NaN.
    """
    returns = np.asarray(evaluation.returns)[np.asarray(evaluation.valid)]
    nan, infinite = int(np.isnan(returns).sum()), int(np.isinf(returns).sum())
    counted = f"{where}: of {returns.size} returns {nan} are NaN and {infinite} infinite"
    if infinite or nan == returns.size:
        raise FloatingPointError(
            f"{counted}. Rewards must be finite; a reward or an observation that is NaN makes a return NaN."
        )
    if nan:
        warnings.warn(f"{counted}; these members are ranked last", UserWarning, stacklevel=2)


def check_behaviors(evaluation: Evaluation, where: str) -> None:
    """Checks that members can be compared by their behaviours: one that is not finite would spoil the archive.

    Args:
      evaluation: What was played.
      where: Environment, phase and generation, for the message.

    Raises:
      FloatingPointError: The behaviour of a valid episode is not finite.
    """
    ranked = np.asarray(evaluation.valid) & ~np.isnan(np.asarray(evaluation.returns))  # others are last anyway
    behaviors = np.asarray(evaluation.behaviors)[ranked]
    if wrong := int((~np.isfinite(behaviors)).any(axis=-1).sum()):
        raise FloatingPointError(
            f"{where}: of {len(behaviors)} behaviours {wrong} are not finite. What the behaviour reads of the "
            "environment must be finite in every timestep."
        )


def check_bases(bases: ArrayTree, where: str) -> None:
    """Raises FloatingPointError if parameters are no longer finite."""
    if not _finite(bases):
        raise FloatingPointError(
            f"parameters are no longer finite after {where}; nothing of it is kept. Lower learning_rate or noise_std."
        )


def check_shared(bases: ArrayTree, known: ArrayTree, where: str) -> None:
    """Raises ValueError if a population's bases are not those of the state, from which lineages lead to its members.

    Arrays that `ask` passed on are not compared.
    """
    pairs = zip(jax.tree.leaves(bases), jax.tree.leaves(known), strict=True)
    if not all(a is b or np.array_equal(a, b) for a, b in pairs):
        raise ValueError(
            f"{where}: a strategy with survivors asks for a population of its state's bases, from which lineages lead "
            "to each network; ask returned others. Leave survivors out (None), or return state.bases."
        )


@jax.jit
def _finite(tree: ArrayTree) -> Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()


def standard_error(returns: Array) -> Array:
    """Standard error of the mean of `[E]` returns; NaN for a single episode."""
    return jnp.std(returns, ddof=1) / jnp.sqrt(returns.shape[0]) if returns.shape[0] > 1 else jnp.float32(jnp.nan)


def summary(evaluation: Evaluation) -> dict[str, Array]:
    """The metrics of a training phase: `training_best`, `_mean`, `_std`, `_median` of fitness, lengths, and `num_nan`.

    Members without a fitness are left out, and counted in `num_nan` where a NaN is the reason. Where none has one, mean
    and spread are NaN.
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


class EliteScore(NamedTuple):
    """The score of the elite in validation, at one cutoff.

    The elite and its challengers play fresh validation episodes side by side, and the best mean return makes the elite,
    as published. A mean by which a network was chosen is biased upwards, so it is kept apart: the score is the mean
    over all validation episodes that the elite has played since. When the cutoff grows, all of it is dropped, so that
    scores of different cutoffs are never compared. (An elite stays only if it wins again, so a smaller bias remains.)

    Attributes:
      selecting: float32: Mean return in the validation that chose it; NaN if that was at another cutoff.
      total: float32: Sum of the returns in its validations since.
      episodes: int32: Episodes in `total`.
    """

    selecting: Array
    total: Array
    episodes: Array

    @property
    def mean(self) -> Array:
        """The score; NaN before there are episodes."""
        return jnp.where(self.episodes > 0, self.total / self.episodes, jnp.nan)


def no_score() -> EliteScore:
    """The score of an elite that has not been validated at this cutoff."""
    return EliteScore(jnp.float32(jnp.nan), jnp.float32(0), jnp.int32(0))


def extended(score: EliteScore, evaluation: Evaluation, elite: Array | int) -> EliteScore:
    """Adds to a score the episodes that the elite played, which is row `elite` of an evaluation."""
    returns = evaluation.returns[elite]
    valid = evaluation.valid[elite] & ~jnp.isnan(returns)
    episodes = score.episodes + valid.sum(dtype=jnp.int32)
    return score._replace(total=score.total + returns.sum(where=valid), episodes=episodes)


def validated(score: EliteScore, evaluation: Evaluation, winner: Array, is_new: Array) -> tuple[EliteScore, Metrics]:
    """Adds a generation's validation to what is known of the elite.

    Args:
      score: Of the elite before.
      evaluation: Of the elite and its challengers.
      winner: Index of the elite in it.
      is_new: Whether it takes the place of another.

    Returns:
      (`EliteScore`, metrics): `validation_mean` of the elite with its standard error, `elite_score` with
      `elite_episodes`, `elite_selecting_score`, `elite_is_new`, and `validation_num_nan`.
    """
    mean = fitness(evaluation)[winner]
    new = no_score()._replace(selecting=mean)
    score = jax.tree.map(lambda new, old: jnp.where(is_new, new, old), new, extended(score, evaluation, winner))
    return score, {
        "validation_mean": mean,
        "validation_standard_error": standard_error(evaluation.returns[winner]),
        "elite_score": score.mean,
        "elite_episodes": score.episodes,
        "elite_selecting_score": score.selecting,
        "elite_is_new": is_new,
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


Shaping = Literal["centered_ranks", "z_scores", "raw"]
"""Names of the fitness shapings."""
SHAPINGS: dict[str, Callable[[Array], Array]] = {"centered_ranks": centered_ranks, "z_scores": z_scores, "raw": raw}
"""Fitness `[N]`, -inf where there is none -> finite float32 `[N]` in the same order."""


def shaping(name: str) -> Callable[[Array], Array]:
    """The fitness shaping of that name; raises ValueError for an unknown one."""
    if name not in SHAPINGS:
        known = f"{', '.join(SHAPINGS)}{nearest(name, SHAPINGS)}"
        raise ValueError(f"fitness_shaping={name!r} is unknown; there are {known}")
    return SHAPINGS[name]
