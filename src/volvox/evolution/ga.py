"""The deep genetic algorithm, and random search (Such et al. 2017, arXiv 1712.06567, algorithm 1).

All members of a generation are new offspring: each copies a parent drawn uniformly and adds noise. The best of them
play validation episodes against the elite so far. Parents of the next generation are the best of training by an
objective: returns (then the elite is one of them), or novelty. Random search has no parents.

The result is the elite, with its score (`volvox.evolution.EliteScore`). The published code reports another: it replaces
its solution by a generation's elite when the mean over all candidates' validation exceeds that of every generation
before, whatever their cutoffs.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from volvox._arguments import check_part
from volvox._checks import integers
from volvox.evolution.objective import Objective, Returns
from volvox.evolution.schedules import Scheduled, schedule
from volvox.evolution.strategy import (
    EliteScore,
    Metrics,
    Phase,
    extended,
    fitness,
    mean_length,
    no_score,
    rows,
    summary,
    test_phase,
    validated,
)
from volvox.population.decoding import Encoding, Member, decode_many, draw_seeds, first_ancestors, members_of
from volvox.rollout.behaviors import Behavior
from volvox.types import Array, ArrayTree, Evaluation, Population


class GAState(NamedTuple):
    """T parents, the elite behind them, and what training leaves for validation.

    Attributes:
      bases: Parameters, leaves `[T + 1, ...]`; the last is the elite.
      expected_length: float32 `[T + 1]`: Mean episode length of each base in training, timesteps.
      generation: int32: Generations completed.
      score: What validation says of the elite.
      candidates: Those for the elite, each field `[C]`: the elite so far, once there is one, and the members of the
        highest returns in training, best first.
      candidate_lengths: float32 `[C]`: Their mean episode lengths, timesteps.
      parents: The members that the objective ranks highest, each field `[T]`.
      parent_lengths: float32 `[T]`: Their mean episode lengths, timesteps.
      survivors: How each base `[T + 1]` came from the bases before.
      objective: The objective's own state.
    """

    bases: ArrayTree
    expected_length: Array
    generation: Array
    score: EliteScore
    candidates: Member
    candidate_lengths: Array
    parents: Member
    parent_lengths: Array
    survivors: Member
    objective: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class GA:
    """The deep genetic algorithm with truncation selection (Such et al. 2017, arXiv 1712.06567, algorithm 1).

    The defaults suit an hour of two cores; `paper` has the published settings. Without parents it is random search.

    Example:
      >>> strategy = vx.GA(population_size=64, mutation_std=0.01)
      >>> algorithm = vx.evolve(strategy, vx.networks.DeepGA(env.spec.num_outputs), env)
      >>> novelty_search = vx.GA(objective=vx.Novelty(behavior=vx.rollout.Last("ram", 128)))

    Attributes:
      population_size: N, offspring in each generation.
      num_parents: T, the best of a generation, from which the next one descends. 0 is random search: every member of
        every generation is a fresh initialisation, and `mutation_std` and `objective` stay at their defaults.
      mutation_std: Standard deviation of the noise that is added to every parameter ("mutation power"): a number, or a
        schedule over generations (see `volvox.evolution.schedule`).
      objective: What parents are chosen by: `Returns()` or `Novelty(...)`.
      num_elite_candidates: C, candidates for the elite: the elite so far, and the best of training; at least 2.
      num_validation_episodes: Validation episodes of each candidate in each generation; the best mean return makes the
        elite, and those of an elite that stays make its score (see `volvox.evolution.EliteScore`).
      pool_validations: Whether the elite so far counts with the mean over all its validations since it was chosen.
        By default it counts with the latest alone, as published, so that a few unlucky episodes can displace it.
      num_test_episodes: Episodes the elite then plays in the test environments (published: 200); 0 for no test.
      num_episodes: Training episodes of each member; fitness is their mean return.
    """

    population_size: int = 128
    num_parents: int = 10
    mutation_std: Scheduled = 0.005
    objective: Objective = Returns()  # noqa: RUF009  # frozen
    num_elite_candidates: int = 4
    num_validation_episodes: int = 8
    pool_validations: bool = False
    num_test_episodes: int = 0
    num_episodes: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError for a setting out of range, or more parents or candidates than members."""
        integers(self, "population_size", "num_validation_episodes", "num_episodes", low=1)
        integers(self, "num_elite_candidates", low=2)
        integers(self, "num_test_episodes", "num_parents", low=0)
        schedule("mutation_std", self.mutation_std)
        for name in ("num_parents", "num_elite_candidates"):
            if getattr(self, name) > self.population_size:
                raise ValueError(
                    f"{name}={getattr(self, name)} exceeds population_size={self.population_size}; parents and "
                    "candidates are the best members of a generation."
                )
        if not self.num_parents and (self.mutation_std, self.objective) != (GA.mutation_std, GA.objective):
            raise ValueError(
                f"mutation_std={self.mutation_std} and objective={self.objective}: random search (num_parents=0) has "
                "neither mutations nor parents to choose; leave both out."
            )
        check_part("objective", self.objective, ("init", "check", "behavior"), "vx.Returns(), or vx.Novelty(...)")
        self.objective.check(num_members=self.population_size, num_bases=0)

    @classmethod
    def paper(cls) -> "GA":
        """Such et al. 2017: 1 000 members, 300 validation episodes, and 200 test episodes of each elite."""
        return cls(
            population_size=1_000,
            num_parents=20,
            mutation_std=0.002,
            num_elite_candidates=10,
            num_validation_episodes=30,
            num_test_episodes=200,
        )

    @classmethod
    def quick(cls) -> "GA":
        """For two cores and five minutes: a small population, and validations that are pooled since they are short."""
        return cls(
            population_size=32,
            num_parents=6,
            mutation_std=0.01,
            num_elite_candidates=3,
            num_validation_episodes=4,
            pool_validations=True,
        )

    @classmethod
    def random_search(cls, **settings: Any) -> "GA":
        """Random search (Such et al. 2017, section 4.1): no parents. `settings` are other fields."""
        return cls(num_parents=0, **settings)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Training of offspring, then validation of candidates, then test of the elite."""
        validation_episodes = self.num_validation_episodes
        return (
            Phase("training", self.population_size, self.num_episodes, self.ask_offspring, self.tell_offspring),
            Phase(
                "validation", self.num_elite_candidates, validation_episodes, self.ask_candidates, self.tell_candidates
            ),
            *test_phase(self.num_test_episodes, lambda state: jnp.int32(self.elite)),
        )

    @property
    def behavior(self) -> Behavior:
        """What the objective compares episodes by."""
        return self.objective.behavior

    @property
    def elite(self) -> int:
        """The last base, behind the parents."""
        return self.num_parents

    def init(self, key: Array, encoding: Encoding) -> GAState:
        """Makes the state before the first generation; raises ValueError for random search with low-rank noise."""
        t, c = self.num_parents, self.num_elite_candidates
        if encoding.rank is not None and not t:
            raise ValueError(
                "num_parents=0: random search knows first ancestors only, which share no base: low-rank noise has no "
                "use for it."
            )
        return GAState(
            bases=encoding.zeros(t + 1),
            expected_length=jnp.zeros(t + 1),
            generation=jnp.int32(0),
            score=no_score(),
            candidates=first_ancestors(jnp.zeros(c, jnp.int32)),
            candidate_lengths=jnp.zeros(c),
            parents=first_ancestors(jnp.zeros(t, jnp.int32)),
            parent_lengths=jnp.zeros(t),
            survivors=first_ancestors(jnp.zeros(t + 1, jnp.int32)),
            objective=self.objective.init(0),
        )

    def forget_scores(self, state: GAState) -> GAState:
        """See `Strategy`."""
        return state._replace(score=no_score(), objective=self.objective.forget_scores(state.objective))

    def ask_offspring(self, key: Array, state: GAState, encoding: Encoding) -> tuple[Population, GAState]:
        """Training: N mutated copies of parents drawn uniformly; first ancestors at first, or without parents."""
        n, (key_parent, key_seed) = self.population_size, jax.random.split(key)
        initial = jnp.full(n, (state.generation == 0) | (self.num_parents == 0))
        parent = jax.random.randint(key_parent, (n,), 0, max(self.num_parents, 1), jnp.int32)
        std = schedule("mutation_std", self.mutation_std)(state.generation)
        population = Population(
            bases=state.bases,
            parent=parent,
            seed=draw_seeds(encoding, key_seed, (n,)),
            scale=jnp.full(n, std, jnp.float32),
            initial=initial,
            episodes=jnp.full(n, self.num_episodes, jnp.int32),
            priority=jnp.where(initial, 0.0, state.expected_length[parent]),
        )
        return population, state

    def tell_offspring(
        self, key: Array, state: GAState, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[GAState, Metrics]:
        """Truncation selection: the T members that the objective ranks highest become parents."""
        lengths, members = mean_length(evaluation), members_of(population)
        scores, objective, metrics = self.objective.rank(state.objective, population.seed, evaluation)
        best = jnp.argsort(-scores, stable=True)[: self.num_parents]
        top = jnp.argsort(-fitness(evaluation), stable=True)[: self.num_elite_candidates]
        elite = Member(jnp.int32(self.elite), jnp.int32(0), jnp.float32(0), jnp.bool_(False))

        def behind(first, others):
            return jnp.where(state.generation > 0, jnp.concatenate([first[None], others[:-1]]), others)

        state = state._replace(
            candidates=jax.tree.map(behind, elite, rows(members, top)),
            candidate_lengths=behind(state.expected_length[self.elite], lengths[top]),
            parents=rows(members, best),
            parent_lengths=lengths[best],
            objective=objective,
        )
        if self.num_parents:
            metrics |= {"parents_mean": fitness(evaluation)[best].mean()}
        return state, summary(evaluation) | metrics

    def ask_candidates(self, key: Array, state: GAState, encoding: Encoding) -> tuple[Population, GAState]:
        """Validation: the elite so far, and the best of training."""
        episodes = jnp.full(self.num_elite_candidates, self.num_validation_episodes, jnp.int32)
        members = state.candidates._asdict()
        return Population(bases=state.bases, **members, episodes=episodes, priority=state.candidate_lengths), state

    def tell_candidates(
        self, key: Array, state: GAState, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[GAState, Metrics]:
        """Elitism: the candidate of the best mean return is the elite; with returns it is also a parent."""
        scores, t = fitness(evaluation), self.num_parents
        compared = scores
        if self.pool_validations:
            known = extended(state.score, evaluation, 0)
            # A validation with a NaN ranks it last, as without pooling.
            pooled = (state.generation > 0) & (known.episodes > 0) & jnp.isfinite(scores[0])
            compared = scores.at[0].set(jnp.where(pooled, known.mean, scores[0]))
        winner = jnp.argmax(compared)  # the first of equals: the elite gives way only to a better one
        elite = rows((state.candidates, state.candidate_lengths), winner)
        place = winner - (state.generation > 0)  # in training; negative if it was the elite before
        parents = state.parents, state.parent_lengths
        if self.objective.elite_is_parent:
            # The elite may be one of the parents already: they are ordered by the objective, not by returns.
            alike = [mine == one for mine, one in zip(state.parents, elite[0], strict=True)]
            replaced = (jnp.arange(t) == t - 1) & ~jnp.stack(alike).all(axis=0).any()
            parents = jax.tree.map(lambda one, all_: jnp.where(replaced, one, all_), elite, parents)
        survivors, lengths = jax.tree.map(jnp.append, parents, elite)
        score, metrics = validated(state.score, evaluation, winner, place >= 0)
        metrics |= {"candidates_mean": jnp.mean(scores, where=jnp.isfinite(scores))}
        state = state._replace(
            bases=decode_many(encoding, state.bases, survivors),
            expected_length=lengths,
            generation=state.generation + 1,
            score=score,
            survivors=survivors,
        )
        return state, metrics
