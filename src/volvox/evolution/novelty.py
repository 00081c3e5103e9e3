"""Novelty search: the distance of a behaviour to the nearest ones of an archive (Lehman & Stanley 2011).

    GA(objective=Novelty(behavior=Last("position", 2)))                           # novelty search
    ES(objective=Novelty.nsr_es(behavior=Last("position", 2)), num_bases=3)       # NSR-ES

With evolution strategies it is the family of Conti et al. 2018 (arXiv 1712.06560), in which a few bases take turns:
NS-ES follows novelty alone, NSR-ES novelty and returns evenly, and NSRA-ES adapts their weights.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from volvox._checks import integers, numbers
from volvox.evolution.strategy import Scalars, centered_ranks, fitness, mean_over_episodes
from volvox.rollout.behaviors import Behavior, check_kind
from volvox.types import Array, Evaluation


class Archive(NamedTuple):
    """The last `C` behaviours that were added.

    Attributes:
      behaviors: float32 `[C, D]`.
      added: int32: Number of behaviours that were ever added; the archive holds the last `min(added, C)`.
    """

    behaviors: Array
    added: Array

    @property
    def held(self) -> Array:
        """Rows in use, bool `[C]`."""
        return jnp.arange(self.behaviors.shape[0]) < self.added

    def add(self, behaviors: Array, mask: Array) -> "Archive":
        """Adds the behaviours `[M, D]` for which `mask`, bool `[M]`, holds; a full archive drops its oldest. M <= C."""
        capacity = self.behaviors.shape[0]
        place = (self.added + jnp.cumsum(mask, dtype=jnp.int32) - 1) % capacity
        place = jnp.where(mask, place, capacity)  # out of range: dropped
        return Archive(self.behaviors.at[place].set(behaviors, mode="drop"), self.added + mask.sum(dtype=jnp.int32))


def novelty(behaviors: Array, others: Array, held: Array, k: int) -> Array:
    """Mean Euclidean distance to the `k` nearest other behaviours; to all if there are fewer, 0 if there are none.

    The nearest neighbours are found by `|a|^2 + |b|^2 - 2ab`, one matmul. Their distances are then computed from the
    differences, without cancellation. Behaviours that are not finite are ignored as neighbours and have no novelty.

    Args:
      behaviors: `[M, D]`.
      others: `[C, D]`, C at least k.
      held: bool `[C]` or `[M, C]`: The others that count.
      k: Number of neighbours.

    Returns:
      float32 `[M]`; -inf if the behaviour is not finite.
    """
    known, usable = (jnp.isfinite(x).all(axis=1) for x in (behaviors, others))
    behaviors, others = jnp.where(known[:, None], behaviors, 0.0), jnp.where(usable[:, None], others, 0.0)
    held = jnp.broadcast_to(held & usable, (behaviors.shape[0], others.shape[0]))
    count = jnp.maximum(held.any(axis=0).sum(), 1)
    center = jnp.where(held.any(axis=0)[:, None], others, 0.0).sum(axis=0) / count
    a, b = behaviors - center, others - center
    # At full precision: the default of accelerators would confuse neighbours.
    squared = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * jnp.matmul(a, b.T, precision="highest")
    squared = jnp.where(held, squared, jnp.inf)
    # Without the barrier XLA on a CPU sorts all distances, which takes thirty times as long.
    near, index = jax.lax.optimization_barrier(jax.lax.top_k(-squared, k))
    counts = jnp.isfinite(near)

    def to_nearest(one):
        behavior, index = one
        return jnp.sqrt(((behavior - others[index]) ** 2).sum(-1))

    # A few at a time: all neighbours of all members may take gigabytes.
    distance = jax.lax.map(to_nearest, (behaviors, index), batch_size=64)
    mean = jnp.where(counts, distance, 0.0).sum(1) / jnp.maximum(counts.sum(1), 1)
    return jnp.where(known, mean, -jnp.inf)


class NoveltyState(NamedTuple):
    """The state of novelty search with M bases; M is 0 for a genetic algorithm.

    Attributes:
      archive: The archive.
      behaviors: float32 `[M, D]`: The behaviour of each base in its last validation.
      reward_weight: float32: The share of returns; the rest is novelty.
      best_score: float32: The best mean return so far; -inf before the first, and after the cutoff has grown.
      stagnant: int32: Generations since the best score or the weight last changed.
    """

    archive: Archive
    behaviors: Array
    reward_weight: Array
    best_score: Array
    stagnant: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Novelty:
    """The distance of a behaviour to the nearest ones of an archive, alone or mixed with returns.

    With a genetic algorithm, novelty is the distance of a member's first episode to the archive and to the generation
    itself. The elite is chosen by returns all the same, but it is not made a parent. With evolution strategies, novelty
    is the distance of each episode to the archive, averaged, and each generation updates one base, drawn in
    proportion to its novelty.

    Example:
      >>> maze = Novelty(behavior=vx.rollout.Last("position", 2), num_archived=8)
      >>> strategy = GA(population_size=64, objective=maze)

    Attributes:
      behavior: The behaviour of an episode.
      num_neighbors: k; novelty is the mean distance to the k nearest behaviours (published: 10).
      archive_size: Behaviours that the archive holds; then new ones replace the oldest.
      num_archived: Members of each generation, drawn at random, whose behaviour a genetic algorithm archives
        (published: about a hundredth of the population). Evolution strategies archive each base that is validated.
      reward_weight: Share of returns, from 0 (novelty alone) to 1; both are shaped before.
      reward_weight_step: Change of the share: up when the best score improves, down when it stagnates. None: the share
        is fixed (published: 0.05).
      patience: Generations without a better score after which the share is lowered (published: 50).
    """

    behavior: Behavior
    num_neighbors: int = 10
    archive_size: int = 10_000
    num_archived: int = 1
    reward_weight: float = 0.0
    reward_weight_step: float | None = None
    patience: int = 50

    def __post_init__(self) -> None:
        integers(self, "num_neighbors", "num_archived", "patience", low=1)
        integers(self, "archive_size", low=max(self.num_neighbors, self.num_archived))
        numbers(self, "reward_weight", low=0, high=1)
        check_kind("behavior", self.behavior)
        numbers(self, "reward_weight_step", above=0, high=1)

    @classmethod
    def ns_es(cls, *, behavior: Behavior, **settings: Any) -> "Novelty":
        """NS-ES: novelty alone. `settings` are other fields."""
        return cls(behavior=behavior, **settings)

    @classmethod
    def nsr_es(cls, *, behavior: Behavior, **settings: Any) -> "Novelty":
        """NSR-ES: novelty and returns, evenly. `settings` are other fields."""
        return cls(behavior=behavior, reward_weight=0.5, **settings)

    @classmethod
    def nsra_es(cls, *, behavior: Behavior, reward_weight_step: float = 0.05, **settings: Any) -> "Novelty":
        """NSRA-ES: returns at first, then more novelty when they stagnate. `settings` are other fields."""
        return cls(behavior=behavior, reward_weight=1.0, reward_weight_step=reward_weight_step, **settings)

    def init(self, num_bases: int) -> NoveltyState:
        """Returns the first state, with an empty archive."""
        return NoveltyState(
            archive=Archive(jnp.zeros((self.archive_size, self.behavior.size), jnp.float32), jnp.int32(0)),
            behaviors=jnp.zeros((num_bases, self.behavior.size), jnp.float32),
            reward_weight=jnp.float32(self.reward_weight),
            best_score=jnp.float32(-jnp.inf),
            stagnant=jnp.int32(0),
        )

    def rank(self, state: NoveltyState, seed: Array, evaluation: Evaluation) -> tuple[Array, NoveltyState, Scalars]:
        """Scores members by their novelty in the archive and the generation, and archives some of them.

        Returns:
          (scores float32 `[N]`, state, metrics).
        """
        behaviors, returns = evaluation.behaviors[:, 0], fitness(evaluation)
        played = evaluation.valid[:, 0] & jnp.isfinite(returns)  # without a return a member is last, however novel
        in_archive = jnp.broadcast_to(state.archive.held, (seed.shape[0], self.archive_size))
        held = jnp.concatenate([in_archive, played & ~jnp.eye(seed.shape[0], dtype=bool)], axis=1)
        others = jnp.concatenate([state.archive.behaviors, behaviors])
        values = jnp.where(played, novelty(behaviors, others, held, self.num_neighbors), -jnp.inf)
        scores = self._mixed(state, centered_ranks(returns), centered_ranks(values))
        # Seeds are random, so the members with the lowest seeds are a random choice.
        archived = jnp.argsort(seed)[: self.num_archived]
        archive = state.archive.add(behaviors[archived], played[archived])
        state = self._adapted(state._replace(archive=archive), returns.max())
        metrics = {"novelty_best": values.max(), "novelty_mean": jnp.mean(values, where=jnp.isfinite(values))}
        return scores, state, metrics | _metrics(state)

    def observe(self, state: NoveltyState, played: Array, evaluation: Evaluation) -> tuple[NoveltyState, Scalars]:
        """Archives the first episode of each of the M bases that `played` (bool `[M]`) validation.

        A base without a return is not archived, and has no novelty.
        """
        returned = jnp.isfinite(fitness(evaluation))
        latest = jnp.where(returned[:, None], evaluation.behaviors[:, 0], jnp.nan)
        behaviors = jnp.where(played[:, None], latest, state.behaviors)
        archive = state.archive.add(behaviors, played & returned)
        state = self._adapted(state._replace(archive=archive, behaviors=behaviors), fitness(evaluation).max())
        values = novelty(behaviors, archive.behaviors, archive.held, self.num_neighbors)
        return state, {"novelty_mean": jnp.mean(values, where=jnp.isfinite(values))} | _metrics(state)

    def forget_scores(self, state: NoveltyState) -> NoveltyState:
        """Drops the best score, because the cutoff has grown."""
        return state._replace(best_score=jnp.float32(-jnp.inf), stagnant=jnp.int32(0))

    def choose(self, key: Array, state: NoveltyState) -> Array:
        """Draws the index of a base in proportion to its novelty; uniformly if nothing is novel."""
        values = novelty(state.behaviors, state.archive.behaviors, state.archive.held, self.num_neighbors)
        values = jnp.maximum(values, 0.0)
        return jax.random.categorical(key, jnp.where(values.sum() > 0, jnp.log(values), 0.0)).astype(jnp.int32)

    def weigh(self, state: NoveltyState, evaluation: Evaluation, shaping: Callable[[Array], Array]) -> Array:
        """Weighs the members around a base by shaped returns and shaped novelty; float32 `[N]`."""
        (n, e, size), returns = evaluation.behaviors.shape, fitness(evaluation)
        behaviors, archive = evaluation.behaviors.reshape(n * e, size), state.archive
        values = novelty(behaviors, archive.behaviors, archive.held, self.num_neighbors)
        values = mean_over_episodes(values.reshape(n, e), evaluation.valid & jnp.isfinite(returns)[:, None])
        return self._mixed(state, shaping(returns), shaping(values))

    def _mixed(self, state: NoveltyState, returns: Array, novelty: Array) -> Array:
        return state.reward_weight * returns + (1 - state.reward_weight) * novelty

    def _adapted(self, state: NoveltyState, score: Array) -> NoveltyState:
        """Counts the generations without a better score, and adapts the weight of returns."""
        first = jnp.isneginf(state.best_score)
        improved = (score > state.best_score) & ~first
        stagnant, weight = jnp.where(improved | first, 0, state.stagnant + 1), state.reward_weight
        if self.reward_weight_step is not None:
            lower = stagnant >= self.patience
            weight = weight + self.reward_weight_step * (improved.astype(jnp.float32) - lower)
            weight, stagnant = jnp.clip(weight, 0.0, 1.0), jnp.where(lower, 0, stagnant)
        return state._replace(reward_weight=weight, best_score=jnp.maximum(score, state.best_score), stagnant=stagnant)


def _metrics(state: NoveltyState) -> Scalars:
    return {"archive_size": state.archive.held.sum(), "reward_weight": state.reward_weight}
