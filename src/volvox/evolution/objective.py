"""What a strategy follows: returns, novelty, or both.

    GA()                                                                          # returns
    GA(objective=Novelty(behavior=Last("position", 2)))                           # novelty search
    ES(objective=Novelty.nsr_es(behavior=Last("position", 2)), num_bases=3)       # NSR-ES

Novelty is the distance of a behaviour to the nearest of an archive (Lehman & Stanley 2011). With evolution strategies
it is the family of Conti et al. 2018 (arXiv 1712.06560), in which a small meta-population takes turns: NS-ES follows
novelty alone, NSR-ES novelty and returns evenly, and NSRA-ES weighs them by how returns develop.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp

from volvox._checks import integers, numbers
from volvox._settings import describe
from volvox.evolution.strategy import Metrics, centered_ranks, fitness, mean_over_episodes
from volvox.rollout.behaviors import Behavior, Nothing, check_kind
from volvox.types import Array, Evaluation

_MOST_GIGABYTES = 1.0


class Archive(NamedTuple):
    """The last `C` behaviours that were added.

    Attributes:
      behaviors: float32 `[C, D]`.
      added: int32: Behaviours ever added; the archive holds the last `min(added, C)` of them.
    """

    behaviors: Array
    added: Array

    @property
    def held(self) -> Array:
        """Which rows are in use, bool `[C]`."""
        return jnp.arange(self.behaviors.shape[0]) < self.added

    def add(self, behaviors: Array, mask: Array) -> "Archive":
        """Adds the behaviours `[M, D]` for which `mask`, bool `[M]`, holds; a full archive drops its oldest. M <= C."""
        chex.assert_shape(mask, behaviors.shape[:1])
        chex.assert_equal_shape_suffix([self.behaviors, behaviors], 1)
        capacity = self.behaviors.shape[0]
        place = (self.added + jnp.cumsum(mask, dtype=jnp.int32) - 1) % capacity
        place = jnp.where(mask, place, capacity)  # out of range: dropped
        return Archive(self.behaviors.at[place].set(behaviors, mode="drop"), self.added + mask.sum(dtype=jnp.int32))


def novelty(behaviors: Array, others: Array, held: Array, k: int) -> Array:
    """Mean Euclidean distance to the `k` nearest other behaviours; to all if there are fewer, 0 if there are none.

    The nearest are found by `|a|^2 + |b|^2 - 2ab`, one matmul; the distances to them are then computed from their
    differences, without cancellation. Behaviours that are not finite are nobody's neighbours and have no novelty.

    Args:
      behaviors: `[M, D]`.
      others: `[C, D]`, C at least k.
      held: bool `[C]` or `[M, C]`: Which of the others count.
      k: Number of neighbours.

    Returns:
      float32 `[M]`; -inf where the behaviour is not finite.
    """
    chex.assert_rank([behaviors, others], 2)
    known, usable = (jnp.isfinite(x).all(axis=1) for x in (behaviors, others))
    behaviors, others = jnp.where(known[:, None], behaviors, 0.0), jnp.where(usable[:, None], others, 0.0)
    held = jnp.broadcast_to(held & usable, (behaviors.shape[0], others.shape[0]))
    count = jnp.maximum(held.any(axis=0).sum(), 1)
    center = jnp.where(held.any(axis=0)[:, None], others, 0.0).sum(axis=0) / count
    a, b = behaviors - center, others - center
    # At full precision: an accelerator's default would confuse neighbours.
    squared = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * jnp.matmul(a, b.T, precision="highest")
    squared = jnp.where(held, squared, jnp.inf)
    # The barrier keeps XLA on a CPU from making a sort of all distances out of it, which takes thirty times as long.
    near, index = jax.lax.optimization_barrier(jax.lax.top_k(-squared, k))
    counts = jnp.isfinite(near)

    def to_nearest(one):
        behavior, index = one
        return jnp.sqrt(((behavior - others[index]) ** 2).sum(-1))

    # A few at a time: all neighbours of all of them together may be gigabytes.
    distance = jax.lax.map(to_nearest, (behaviors, index), batch_size=64)
    mean = jnp.where(counts, distance, 0.0).sum(1) / jnp.maximum(counts.sum(1), 1)
    return jnp.where(known, mean, -jnp.inf)


def novelty_in(archive: Archive, behaviors: Array, k: int) -> Array:
    """Novelty `[M]` of behaviours `[M, D]` among those the archive holds; see `novelty`."""
    return novelty(behaviors, archive.behaviors, archive.held, k)


class Objective(Protocol):
    """What a strategy follows, as settings with pure methods over a state of its own.

    A genetic algorithm ranks its members (`rank`). An evolution strategy shows its bases after validation (`observe`),
    lets one of them be chosen (`choose`), and weighs the members around it (`weigh`).

    Attributes:
      elite_is_parent: Whether the member of the best validation return is also one of the next generation's parents.
    """

    elite_is_parent: ClassVar[bool]

    @property
    def behavior(self) -> Behavior:
        """What is recorded of each episode."""
        ...

    def check(self, *, num_members: int, num_bases: int) -> None:
        """Raises ValueError where the settings do not fit `num_members` that are ranked, or `num_bases` observed."""
        ...

    def init(self, num_bases: int) -> Any:
        """Makes the state; `num_bases` (M) is 0 for a strategy that ranks its members."""
        ...

    def rank(self, state: Any, seed: Array, evaluation: Evaluation) -> tuple[Array, Any, Metrics]:
        """Scores the members of a generation: (score float32 `[N]`, higher is better, state, metrics)."""
        ...

    def observe(self, state: Any, played: Array, evaluation: Evaluation) -> tuple[Any, Metrics]:
        """Takes in the validation of M bases, of which those `played` (bool `[M]`) count: (state, metrics)."""
        ...

    def forget_scores(self, state: Any) -> Any:
        """Drops all that returns were compared by; see `Strategy.forget_scores`."""
        ...

    def choose(self, key: Array, state: Any) -> Array:
        """Index of the base that is updated next, int32."""
        ...

    def weigh(self, state: Any, evaluation: Evaluation, shape: Callable[[Array], Array]) -> Array:
        """Shaped scores of the members around a base, finite float32 `[N]`; `shape` is the fitness shaping."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Returns:
    """The mean return of a member's episodes, unclipped and undiscounted."""

    elite_is_parent: ClassVar[bool] = True

    @property
    def behavior(self) -> Behavior:
        """Nothing is recorded."""
        return Nothing()

    def check(self, *, num_members: int, num_bases: int) -> None:
        """See `Objective`."""
        if num_bases > 1:
            raise ValueError(
                f"num_bases={num_bases}: returns move one parameter vector only; leave num_bases at 1, or take a "
                "Novelty objective, which chooses among several."
            )

    def init(self, num_bases: int) -> tuple[()]:
        """No state."""
        return ()

    def rank(self, state: tuple[()], seed: Array, evaluation: Evaluation) -> tuple[Array, tuple[()], Metrics]:
        """See `Objective`."""
        return fitness(evaluation), state, {}

    def observe(self, state: tuple[()], played: Array, evaluation: Evaluation) -> tuple[tuple[()], Metrics]:
        """See `Objective`."""
        return state, {}

    def forget_scores(self, state: tuple[()]) -> tuple[()]:
        """See `Objective`."""
        return state

    def choose(self, key: Array, state: tuple[()]) -> Array:
        """See `Objective`."""
        return jnp.int32(0)

    def weigh(self, state: tuple[()], evaluation: Evaluation, shape: Callable[[Array], Array]) -> Array:
        """See `Objective`."""
        return shape(fitness(evaluation))


class NoveltyState(NamedTuple):
    """The state of novelty search with M bases; M is 0 for a genetic algorithm.

    Attributes:
      archive: Behaviours seen before.
      behaviors: float32 `[M, D]`: Of each base when it was last validated.
      reward_weight: float32: The share of returns in what is followed; the rest is novelty.
      best_score: float32: The best mean return so far; NaN before the first, and where the cutoff has grown since.
      stagnant: int32: Generations since the best score or the weight last changed.
    """

    archive: Archive
    behaviors: Array
    reward_weight: Array
    best_score: Array
    stagnant: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Novelty:
    """The distance of a behaviour to the nearest ones of an archive, alone or weighed against returns.

    With a genetic algorithm, novelty is that of a member's first episode among the archive and the generation itself;
    the elite, which is the result, is chosen by returns all the same, but it is no parent for that. With evolution
    strategies, novelty is that of each episode in the archive, averaged, and each generation updates one base, drawn in
    proportion to its novelty.

    Example:
      >>> maze = Novelty(behavior=vx.rollout.Last("position", 2), num_archived=8)
      >>> strategy = GA(population_size=64, objective=maze)

    Attributes:
      behavior: What episodes are compared by.
      num_neighbors: k; novelty is the mean distance to the k nearest behaviours (published: 10).
      archive_size: Behaviours the archive holds; then new ones replace the oldest.
      num_archived: Members of each generation, drawn at random, whose behaviour is archived by a genetic algorithm
        (published: about a hundredth of the population). Evolution strategies archive each base that is validated.
      reward_weight: Share of returns in what is followed, from 0 (novelty alone) to 1; both are shaped before.
      reward_weight_step: How much the share changes at once: up when the best score improves, down when it stagnates.
        None: the share is fixed (published: 0.05).
      patience: Generations without a better score after which the share is lowered (published: 50).
    """

    behavior: Behavior
    num_neighbors: int = 10
    archive_size: int = 10_000
    num_archived: int = 1
    reward_weight: float = 0.0
    reward_weight_step: float | None = None
    patience: int = 50
    elite_is_parent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Raises ValueError for a setting out of range, or an archive that is too large or cannot hold k behaviours."""
        integers(self, "num_neighbors", "archive_size", "num_archived", "patience", low=1)
        numbers(self, "reward_weight", low=0, high=1)
        check_kind("behavior", self.behavior)
        numbers(self, "reward_weight_step", above=0, high=1)
        if self.reward_weight_step is None and self.patience != Novelty.patience:
            raise ValueError(f"patience={self.patience} needs a share that changes; give reward_weight_step too.")
        if self.behavior.size < 1:
            raise ValueError(
                f"the behaviour {describe(self.behavior)} has size {self.behavior.size}: nothing could be novel."
            )
        gigabytes = self.archive_size * self.behavior.size * 4 / 1e9
        if gigabytes > _MOST_GIGABYTES:
            raise ValueError(
                f"archive_size={self.archive_size} of behaviours of {self.behavior.size} numbers would take "
                f"{gigabytes:.1f} GB, in memory and in each checkpoint; {_MOST_GIGABYTES} GB are allowed: take a "
                "smaller archive or shorter behaviours."
            )
        if self.archive_size < self.num_neighbors:
            raise ValueError(
                f"archive_size={self.archive_size} is smaller than num_neighbors={self.num_neighbors}: novelty is the "
                "distance to that many behaviours in the archive."
            )

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

    def check(self, *, num_members: int, num_bases: int) -> None:
        """See `Objective`."""
        added = num_bases or self.num_archived
        if self.archive_size < added:
            raise ValueError(
                f"archive_size={self.archive_size}: it must hold the {added} behaviours that are added at once."
            )
        for name in ("num_neighbors", "num_archived"):
            if not num_bases and getattr(self, name) >= num_members:
                raise ValueError(
                    f"{name}={getattr(self, name)} must be below population_size={num_members}: neighbours are other "
                    "members of a generation, and only some of its members are archived."
                )

    def init(self, num_bases: int) -> NoveltyState:
        """An empty archive."""
        return NoveltyState(
            archive=Archive(jnp.zeros((self.archive_size, self.behavior.size)), jnp.int32(0)),
            behaviors=jnp.zeros((num_bases, self.behavior.size)),
            reward_weight=jnp.float32(self.reward_weight),
            best_score=jnp.float32(jnp.nan),
            stagnant=jnp.int32(0),
        )

    def rank(self, state: NoveltyState, seed: Array, evaluation: Evaluation) -> tuple[Array, NoveltyState, Metrics]:
        """Ranks members by their novelty among the archive and each other, and archives some of them."""
        behaviors, returns = evaluation.behaviors[:, 0], fitness(evaluation)
        played = evaluation.valid[:, 0] & jnp.isfinite(returns)  # without a return a member is last, however novel
        in_archive = jnp.broadcast_to(state.archive.held, (seed.shape[0], self.archive_size))
        held = jnp.concatenate([in_archive, played & ~jnp.eye(seed.shape[0], dtype=bool)], axis=1)
        others = jnp.concatenate([state.archive.behaviors, behaviors])
        values = jnp.where(played, novelty(behaviors, others, held, self.num_neighbors), -jnp.inf)
        scores = self._mixed(state, centered_ranks(returns), centered_ranks(values))
        # Seeds are drawn at random, so the lowest are a random choice.
        archived = jnp.argsort(seed)[: self.num_archived]
        archive = state.archive.add(behaviors[archived], played[archived])
        state = self._adapted(state._replace(archive=archive), returns.max())
        metrics = {"novelty_best": values.max(), "novelty_mean": jnp.mean(values, where=jnp.isfinite(values))}
        return scores, state, metrics | _metrics(state)

    def observe(self, state: NoveltyState, played: Array, evaluation: Evaluation) -> tuple[NoveltyState, Metrics]:
        """Archives the behaviours of the bases that played, each of its first episode.

        A base without a return has no behaviour that counts: it is not archived, and has no novelty.
        """
        returned = jnp.isfinite(fitness(evaluation))
        latest = jnp.where(returned[:, None], evaluation.behaviors[:, 0], jnp.nan)
        behaviors = jnp.where(played[:, None], latest, state.behaviors)
        archive = state.archive.add(behaviors, played & returned)
        state = self._adapted(state._replace(archive=archive, behaviors=behaviors), fitness(evaluation).max())
        values = novelty_in(archive, behaviors, self.num_neighbors)
        return state, {"novelty_mean": jnp.mean(values, where=jnp.isfinite(values))} | _metrics(state)

    def forget_scores(self, state: NoveltyState) -> NoveltyState:
        """The first score at a longer cutoff is the best there, but no improvement."""
        return state._replace(best_score=jnp.float32(jnp.nan), stagnant=jnp.int32(0))

    def choose(self, key: Array, state: NoveltyState) -> Array:
        """Draws a base in proportion to its novelty; evenly where nothing is novel."""
        novelty = self._novelty_of_bases(state)
        return jax.random.categorical(key, jnp.where(novelty.sum() > 0, jnp.log(novelty), 0.0)).astype(jnp.int32)

    def weigh(self, state: NoveltyState, evaluation: Evaluation, shape: Callable[[Array], Array]) -> Array:
        """Weighs members by shaped returns and shaped novelty in the archive."""
        (n, e, size), returns = evaluation.behaviors.shape, fitness(evaluation)
        values = novelty_in(state.archive, evaluation.behaviors.reshape(n * e, size), self.num_neighbors)
        values = mean_over_episodes(values.reshape(n, e), evaluation.valid & jnp.isfinite(returns)[:, None])
        return self._mixed(state, shape(returns), shape(values))

    def _mixed(self, state: NoveltyState, returns: Array, novelty: Array) -> Array:
        return state.reward_weight * returns + (1 - state.reward_weight) * novelty

    def _novelty_of_bases(self, state: NoveltyState) -> Array:
        return jnp.maximum(novelty_in(state.archive, state.behaviors, self.num_neighbors), 0.0)

    def _adapted(self, state: NoveltyState, score: Array) -> NoveltyState:
        """Counts the generations without a better score, and changes the weight of returns if it is not fixed."""
        improved, first = score > state.best_score, jnp.isnan(state.best_score)
        stagnant, weight = jnp.where(improved | first, 0, state.stagnant + 1), state.reward_weight
        if self.reward_weight_step is not None:
            lower = stagnant >= self.patience
            weight = weight + self.reward_weight_step * (improved.astype(jnp.float32) - lower)
            weight, stagnant = jnp.clip(weight, 0.0, 1.0), jnp.where(lower, 0, stagnant)
        return state._replace(reward_weight=weight, best_score=jnp.fmax(score, state.best_score), stagnant=stagnant)


def _metrics(state: NoveltyState) -> Metrics:
    return {"archive_size": state.archive.held.sum(), "reward_weight": state.reward_weight}
