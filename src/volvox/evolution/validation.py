"""Validation: how the elite of a run is chosen, scored and tested, for all strategies."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from volvox._checks import integers

_LOWEST = float(np.finfo(np.float32).min)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validation:
    """How the elite, which is the result of a run, is chosen, scored and tested.

    In each generation the elite so far and its challengers play fresh validation episodes side by side. The best mean
    return makes the elite (Such et al. 2017, arXiv 1712.06567). The challengers are the best members of the generation,
    or those that the strategy names (`volvox.evolution.Strategy`).

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

    @classmethod
    def quick(cls) -> "Validation":
        """For two cores and five minutes: few episodes, hence pooled."""
        return cls(num_elite_candidates=3, num_validation_episodes=4, pool_validations=True)


class EliteScore(NamedTuple):
    """The score of the elite in validation, at one cutoff; numbers of the host.

    A mean by which a network was chosen is biased upwards, so it is kept apart: the score is the mean over all
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


class Choice(NamedTuple):
    """The result of a validation.

    Attributes:
      challenger: Index of the best challenger among the candidates.
      winner: Index of the elite: `challenger`, or the elite so far.
      score: The score of the elite.
      metrics: Numbers for the row of the generation.
    """

    challenger: int
    winner: int
    score: EliteScore
    metrics: dict[str, Any]


def choose(
    validation: Validation,
    score: EliteScore,
    elite: int | None,
    *,
    returns: np.ndarray,
    valid: np.ndarray,
    fitness: np.ndarray,
    lengths: np.ndarray,
    errors: np.ndarray,
) -> Choice:
    """Chooses the elite. The elite so far gives way only to a better challenger.

    Args:
      validation: The settings.
      score: The score of the elite so far.
      elite: Index of the elite so far among the candidates; None if there is none.
      returns: float32 `[C, V]`.
      valid: bool `[C, V]`: Episodes that were played.
      fitness: float32 `[C]`: Mean returns; -inf if a return is NaN.
      lengths: float32 `[C]`: Expected lengths, timesteps.
      errors: float32 `[C]`: Standard errors of the mean returns.

    Returns:
      `Choice`; its metrics are `validation_mean` of the elite with its standard error, `elite_score` with
      `elite_episodes`, `elite_selecting_score`, `elite_is_new`, `validation_num_nan` and `candidates_mean`.
    """
    compared = fitness.copy()
    # A challenger that played is ahead of the others even without a mean return.
    challengers = np.where(valid.any(axis=1), np.maximum(fitness, _LOWEST), -np.inf)
    if elite is not None:
        challengers[elite] = -np.inf
        pooled = score.extended(returns[elite][valid[elite]])
        if validation.pool_validations and pooled.episodes and np.isfinite(fitness[elite]):
            compared[elite] = pooled.mean
    challenger = int(challengers.argmax())
    is_new = elite is None or bool(compared[challenger] > compared[elite])
    winner = challenger if is_new or elite is None else elite
    won = returns[winner][valid[winner]]
    score = EliteScore(selecting=float(fitness[winner])) if is_new else score.extended(won)
    score = score._replace(length=float(lengths[winner]))
    ranked = fitness[np.isfinite(fitness)]
    return Choice(
        challenger,
        winner,
        score,
        {
            "validation_mean": float(fitness[winner]),
            "validation_standard_error": float(errors[winner]),
            "elite_score": score.mean,
            "elite_episodes": score.episodes,
            "elite_selecting_score": score.selecting,
            "elite_is_new": is_new,
            "validation_num_nan": int((valid & np.isnan(returns)).any(axis=1).sum()),
            "candidates_mean": float(ranked.mean()) if ranked.size else float("nan"),
        },
    )
