"""The deep genetic algorithm, and random search (Such et al. 2017, arXiv 1712.06567, algorithm 1).

All members of a generation are new offspring: each copies a parent drawn uniformly and adds noise. The best of them
play validation episodes against the elite so far. Parents of the next generation are the best of training by an
objective: returns (then the elite is one of them), or novelty. Random search has no parents.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from volvox._checks import integers
from volvox.evolution.objective import Objective, Returns
from volvox.evolution.schedules import Scheduled, schedule
from volvox.evolution.strategy import Metrics, Phase, fitness, mean_length, summary, test_phase, validation_summary
from volvox.loop.behaviors import Behavior, Nothing
from volvox.population.decoding import Encoding, Member, decode_many, draw_seeds
from volvox.types import Array, ArrayTree, Evaluation, Population


class GAState(NamedTuple):
    """T parents, the elite behind them, and what training leaves for validation with C candidates.

    Attributes:
      bases: Parameters, leaves `[T + 1, ...]`; the last is the elite.
      expected_length: float32 `[T + 1]`: mean episode length of each base in training, timesteps.
      generation: int32: generations completed.
      score: float32: the elite's mean validation return; -inf before there is one.
      top: The members of the highest returns in training, best first, each field `[C]`.
      top_length: float32 `[C]`: their mean episode lengths, timesteps.
      parents: The members that the objective ranks highest, each field `[T]`.
      parents_length: float32 `[T]`: their mean episode lengths, timesteps.
      survivors: How each base `[T + 1]` came from the bases before.
      objective: The objective's own state.
    """

    bases: ArrayTree
    expected_length: Array
    generation: Array
    score: Array
    top: Member
    top_length: Array
    parents: Member
    parents_length: Array
    survivors: Member
    objective: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class GA:
    """The deep genetic algorithm with truncation selection (Such et al. 2017, arXiv 1712.06567, algorithm 1).

    The defaults are the published settings.

    Example:
      >>> strategy = vx.GA(population_size=128, num_parents=10, mutation_std=0.005)
      >>> algorithm = vx.evolve(strategy, vx.networks.DeepGA(env.spec.num_actions), env)
      >>> novelty_search = vx.GA(objective=vx.Novelty(behavior=vx.loop.Last("ram", 128)))

    Attributes:
      population_size: N, offspring in each generation.
      num_parents: T, the best of a generation, from which the next one descends.
      mutation_std: Standard deviation of the noise that is added to every parameter ("mutation power"): a number, or a
        schedule over generations (see `volvox.evolution.schedule`).
      objective: What parents are chosen by: `Returns()` or `Novelty(...)`.
      num_elite_candidates: C, how many play for elite: the elite so far, and the best of training; at least 2.
      num_validation_episodes: Validation episodes of each candidate; the best mean return makes the elite.
      num_test_episodes: Episodes the elite then plays in the test environments (published: 200); 0 for no test.
      num_episodes: Training episodes of each member; fitness is their mean return.
    """

    population_size: int = 1_000
    num_parents: int = 20
    mutation_std: Scheduled = 0.002
    objective: Objective = Returns()  # noqa: RUF009  # frozen
    num_elite_candidates: int = 10
    num_validation_episodes: int = 30
    num_test_episodes: int = 0
    num_episodes: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError for a setting out of range, or more parents or candidates than members."""
        _check(self)
        schedule("mutation_std", self.mutation_std)
        integers(self, "num_parents", low=1)
        if self.num_parents > self.population_size:
            raise ValueError(
                f"num_parents={self.num_parents} exceeds population_size={self.population_size}; parents are the best "
                "members of a generation."
            )
        self.objective.check(num_members=self.population_size, num_bases=0)

    @classmethod
    def paper(cls) -> "GA":
        """Such et al. 2017: the defaults, and 200 test episodes of each elite."""
        return cls(num_test_episodes=200)

    @classmethod
    def desktop(cls) -> "GA":
        """For two cores and an hour: fewer members, larger mutations."""
        return cls(
            population_size=128, num_parents=10, mutation_std=0.005, num_elite_candidates=4, num_validation_episodes=8
        )

    @classmethod
    def quick(cls) -> "GA":
        """For two cores and five minutes: a small population."""
        return cls(
            population_size=64, num_parents=8, mutation_std=0.01, num_elite_candidates=3, num_validation_episodes=6
        )

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Training of offspring, then validation of candidates, then test of the elite."""
        return _phases(self, elite_is_parent=self.objective.elite_is_parent)

    @property
    def behavior(self) -> Behavior:
        """What the objective compares episodes by."""
        return self.objective.behavior

    @property
    def elite(self) -> int:
        """The last base, behind the parents."""
        return self.num_parents

    def init(self, key: Array, encoding: Encoding) -> GAState:
        """Makes the state before the first generation.

        Members of the first generation are first ancestors. With low-rank noise the bases are, and members share them
        from the first generation on.
        """
        state = _init(encoding, self.num_parents, self.num_elite_candidates, self.objective.init(0))
        if encoding.rank is None:
            return state
        survivors = state.survivors._replace(seed=draw_seeds(encoding, key, (self.num_parents + 1,)))
        return state._replace(bases=decode_many(encoding, state.bases, survivors), survivors=survivors)

    def ask_offspring(self, key: Array, state: GAState, encoding: Encoding) -> Population:
        """Training: N mutated copies of parents that are drawn uniformly."""
        n, (key_parent, key_seed) = self.population_size, jax.random.split(key)
        initial = jnp.full(n, (state.generation == 0) & (encoding.rank is None))
        parent = jax.random.randint(key_parent, (n,), 0, self.num_parents, jnp.int32)
        std = schedule("mutation_std", self.mutation_std)(state.generation)
        return Population(
            bases=state.bases,
            parent=parent,
            seed=draw_seeds(encoding, key_seed, (n,)),
            scale=jnp.full(n, std, jnp.float32),
            initial=initial,
            episodes=jnp.full(n, self.num_episodes, jnp.int32),
            priority=jnp.where(initial, 0.0, state.expected_length[parent]),
        )

    def tell_offspring(self, state: GAState, population: Population, evaluation: Evaluation, encoding: Encoding):
        """Truncation selection: the T members that the objective ranks highest become parents."""
        del encoding
        scores, objective, metrics = self.objective.rank(state.objective, population.seed, evaluation)
        best = jnp.argsort(-scores, stable=True)[: self.num_parents]
        state = _with_top(state, population, evaluation)._replace(
            parents=_members(population, best), parents_length=mean_length(evaluation)[best], objective=objective
        )
        return state, summary(evaluation) | {"parents_mean": fitness(evaluation)[best].mean()} | metrics


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomSearch:
    """Random search: the genetic algorithm's loop without parents (Such et al. 2017, arXiv 1712.06567, section 4.1).

    Every member of every generation is a fresh initialisation; the best of all is kept as the elite.

    Example:
      >>> algorithm = vx.evolve(vx.RandomSearch(population_size=128), network, env)

    Attributes:
      population_size: N, members of each generation.
      num_elite_candidates: C, how many play for elite: the elite so far, and the best of training; at least 2.
      num_validation_episodes: Validation episodes of each candidate; the best mean return makes the elite.
      num_test_episodes: Episodes the elite then plays in the test environments; 0 for no test.
      num_episodes: Training episodes of each member; fitness is their mean return.
    """

    population_size: int = 1_000
    num_elite_candidates: int = 10
    num_validation_episodes: int = 30
    num_test_episodes: int = 0
    num_episodes: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError for a setting out of range, or more candidates than members."""
        _check(self)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Training of members, then validation of candidates, then test of the elite."""
        return _phases(self, elite_is_parent=False)

    @property
    def behavior(self) -> Behavior:
        """Nothing is compared."""
        return Nothing()

    @property
    def elite(self) -> int:
        """The only base."""
        return 0

    def init(self, key: Array, encoding: Encoding) -> GAState:
        """Makes the state before the first generation; raises ValueError for low-rank noise."""
        del key
        if encoding.rank is not None:
            raise ValueError(
                "RandomSearch knows first ancestors only, which share no base: low-rank noise has no use for it."
            )
        return _init(encoding, 0, self.num_elite_candidates, ())

    def ask_offspring(self, key: Array, state: GAState, encoding: Encoding) -> Population:
        """Training: N first ancestors."""
        n, (_, key_seed) = self.population_size, jax.random.split(key)
        return Population(
            bases=state.bases,
            parent=jnp.zeros(n, jnp.int32),
            seed=draw_seeds(encoding, key_seed, (n,)),
            scale=jnp.zeros(n, jnp.float32),
            initial=jnp.ones(n, bool),
            episodes=jnp.full(n, self.num_episodes, jnp.int32),
            priority=jnp.zeros(n, jnp.float32),
        )

    def tell_offspring(self, state: GAState, population: Population, evaluation: Evaluation, encoding: Encoding):
        """Keeps the best for validation."""
        del encoding
        metrics = summary(evaluation) | {"parents_mean": fitness(evaluation).max()}
        return _with_top(state, population, evaluation), metrics


# What both have in common: validation, in which the best of training play against the elite so far.


def _check(settings: GA | RandomSearch) -> None:
    integers(settings, "population_size", "num_validation_episodes", "num_episodes", low=1)
    integers(settings, "num_elite_candidates", low=2)
    integers(settings, "num_test_episodes", low=0)
    if settings.num_elite_candidates > settings.population_size:
        raise ValueError(
            f"num_elite_candidates={settings.num_elite_candidates} exceeds population_size={settings.population_size}; "
            "candidates are members of it."
        )


def _phases(s: GA | RandomSearch, *, elite_is_parent: bool) -> tuple[Phase, ...]:
    ask_candidates = partial(_ask_candidates, num_episodes=s.num_validation_episodes)
    tell_candidates = partial(_tell_candidates, elite_is_parent=elite_is_parent)
    return (
        Phase("training", s.population_size, s.num_episodes, s.ask_offspring, s.tell_offspring),
        Phase("validation", s.num_elite_candidates, s.num_validation_episodes, ask_candidates, tell_candidates),
        *test_phase(s.num_test_episodes, lambda state: jnp.int32(s.elite)),
    )


def _init(encoding: Encoding, num_parents: int, num_candidates: int, objective: Any) -> GAState:
    num_bases = num_parents + 1
    return GAState(
        bases=jax.tree.map(lambda x: jnp.zeros((num_bases, *x.shape), x.dtype), encoding.like),
        expected_length=jnp.zeros(num_bases),
        generation=jnp.int32(0),
        score=jnp.float32(-jnp.inf),
        top=_nobody(num_candidates),
        top_length=jnp.zeros(num_candidates),
        parents=_nobody(num_parents),
        parents_length=jnp.zeros(num_parents),
        survivors=_nobody(num_bases),
        objective=objective,
    )


def _nobody(*shape: int) -> Member:
    return Member(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32), jnp.zeros(shape), jnp.ones(shape, bool))


def _members(population: Population, index: Array) -> Member:
    return _take(Member(population.parent, population.seed, population.scale, population.initial), index)


def _take(tree: ArrayTree, index: Array) -> ArrayTree:
    return jax.tree.map(lambda x: x[index], tree)


def _with_top(state: GAState, population: Population, evaluation: Evaluation) -> GAState:
    """Keeps the best of training for validation."""
    best = jnp.argsort(-fitness(evaluation), stable=True)[: state.top_length.shape[0]]
    return state._replace(top=_members(population, best), top_length=mean_length(evaluation)[best])


def _candidates(state: GAState) -> tuple[Member, Array]:
    """`[C]`: the elite, once there is one, and the best of training behind it; and their expected lengths."""
    elite = state.expected_length.shape[0] - 1
    carried = Member(jnp.int32(elite), jnp.int32(0), jnp.float32(0), jnp.bool_(False))

    def behind(first, others):
        both = jnp.concatenate([first[None], others[:-1]])
        return jnp.where(state.generation > 0, both, others)

    return jax.tree.map(behind, carried, state.top), behind(state.expected_length[elite], state.top_length)


def _ask_candidates(key: Array, state: GAState, encoding: Encoding, *, num_episodes: int) -> Population:
    """Validation: the elite so far, and the best of training."""
    del key, encoding
    members, lengths = _candidates(state)
    episodes = jnp.full(lengths.shape, num_episodes, jnp.int32)
    return Population(state.bases, *members, episodes=episodes, priority=lengths)


def _tell_candidates(
    state: GAState, population: Population, evaluation: Evaluation, encoding: Encoding, *, elite_is_parent: bool
) -> tuple[GAState, Metrics]:
    """Elitism: the candidate of the best mean return is the elite; it takes the last parent's place if it is one."""
    del population
    scores, (candidates, candidate_lengths) = fitness(evaluation), _candidates(state)
    winner = jnp.argmax(scores)  # the first of equals: the elite gives way only to a better one
    elite, elite_length = _take(candidates, winner), candidate_lengths[winner]
    place = winner - (state.generation > 0)  # in training; negative if it was the elite before
    parents, lengths, t = state.parents, state.parents_length, state.parents_length.shape[0]
    if elite_is_parent:
        # It is one of the parents already if it is among the best T of training.
        replaced = (jnp.arange(t) == t - 1) & ((place < 0) | (place >= t))
        parents = jax.tree.map(lambda one, all_: jnp.where(replaced, one, all_), elite, parents)
        lengths = jnp.where(replaced, elite_length, lengths)
    survivors = jax.tree.map(jnp.append, parents, elite)
    metrics = validation_summary(evaluation, winner) | {
        "elite_is_new": place >= 0,
        "candidates_mean": jnp.where(jnp.isfinite(scores), scores, 0.0).mean(),
    }
    state = state._replace(
        bases=decode_many(encoding, state.bases, survivors),
        expected_length=jnp.append(lengths, elite_length),
        generation=state.generation + 1,
        score=scores[winner],
        survivors=survivors,
    )
    return state, metrics
