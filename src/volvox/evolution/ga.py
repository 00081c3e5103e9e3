"""The deep genetic algorithm, and random search (Such et al. 2017, arXiv 1712.06567, algorithm 1).

All members of a generation are new offspring: each copies a parent drawn uniformly and adds noise. The best members
play validation episodes against the elite so far (`volvox.Validation`). The parents of the next generation are the best
members by their returns, and the elite is one of them; with a novelty objective they are the most novel members. Random
search has no parents.

The published code reports another result than the elite: it replaces its solution by a generation's elite when the mean
over the validation of all candidates exceeds that of every earlier generation, even at another cutoff.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from volvox._checks import check_type, integers
from volvox.evolution.novelty import Novelty
from volvox.evolution.strategy import Scalars, Scheduled, fitness, mean_length, schedule
from volvox.population.decoding import Encoding, Member, first_ancestors, members_of
from volvox.rollout.behaviors import Behavior, Nothing
from volvox.types import Array, Evaluation, Population, pick


class GAState(NamedTuple):
    """The T parents, as seeds; `evolve` keeps their parameters.

    Attributes:
      expected_length: float32 `[T]`: Mean episode length of each parent, timesteps.
      generation: int32: Generations completed.
      survivors: How each parent `[T]` descends from the bases of the previous generation.
      novelty: The state of the novelty objective, or ().
    """

    expected_length: Array
    generation: Array
    survivors: Member
    novelty: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class GA:
    """The deep genetic algorithm with truncation selection (Such et al. 2017, arXiv 1712.06567, algorithm 1).

    The defaults are for about one hour on two cores; `paper` has the published settings. Without parents it is random
    search.

    Example:
      >>> strategy = vx.GA(population_size=64, mutation_std=0.01)
      >>> algorithm = vx.evolve(strategy, vx.networks.DeepGA(env.spec.num_outputs), env)
      >>> novelty_search = vx.GA(objective=vx.Novelty(behavior=vx.rollout.Last("ram", 128)))

    Attributes:
      population_size: Number N of offspring in each generation.
      num_parents: Number T of parents: the best of a generation, from which the next one descends. 0 is random search:
        every member of every generation is a fresh initialisation, and `mutation_std` and `objective` stay at their
        defaults.
      mutation_std: Standard deviation of the noise that is added to every parameter ("mutation power"): a number, or a
        schedule over generations (see `volvox.evolution.strategy.schedule`).
      objective: None: parents are the members with the highest returns. `Novelty(...)`: the most novel members.
      num_episodes: Training episodes of each member; fitness is their mean return.
    """

    population_size: int = 128
    num_parents: int = 10
    mutation_std: Scheduled = 0.005
    objective: Novelty | None = None
    num_episodes: int = 1

    def __post_init__(self) -> None:
        integers(self, "population_size", low=2)
        integers(self, "num_episodes", low=1)
        integers(self, "num_parents", low=0, high=self.population_size)
        schedule("mutation_std", self.mutation_std)
        if not self.num_parents and (self.mutation_std, self.objective) != (GA.mutation_std, GA.objective):
            raise ValueError("random search (num_parents=0) takes no mutation_std and no objective: leave both out.")
        check_type("objective", self.objective, (Novelty, type(None)), "vx.Novelty(...), or None for returns")

    @classmethod
    def paper(cls) -> "GA":
        """Such et al. 2017: 1 000 members; `Validation.paper()` has their validation and test episodes."""
        return cls(population_size=1_000, num_parents=20, mutation_std=0.002)

    @classmethod
    def random_search(cls, **settings: Any) -> "GA":
        """Random search (Such et al. 2017, section 4.1): no parents. `settings` are other fields."""
        return cls(num_parents=0, **settings)

    @property
    def behavior(self) -> Behavior:
        """The behaviour that the objective compares."""
        return Nothing() if self.objective is None else self.objective.behavior

    def init(self, key: Array, encoding: Encoding) -> GAState:
        """Returns the first state, without parents."""
        return GAState(
            expected_length=jnp.zeros(self.num_parents, jnp.float32),
            generation=jnp.int32(0),
            survivors=first_ancestors(jnp.zeros(self.num_parents, jnp.int32)),
            novelty=() if self.objective is None else self.objective.init(0),
        )

    def forget_scores(self, state: GAState) -> GAState:
        """Drops the scores that novelty compares with, because the cutoff has grown."""
        return state if self.objective is None else state._replace(novelty=self.objective.forget_scores(state.novelty))

    def ask(self, key: Array, state: GAState, encoding: Encoding) -> tuple[Population, GAState]:
        """Returns mutated copies of parents drawn uniformly, or first ancestors while there are no parents."""
        n = self.population_size
        key_parent, key_seed = jax.random.split(key)
        parent = jax.random.randint(key_parent, (n,), 0, max(self.num_parents, 1), jnp.int32)
        population = Population(
            bases=None,
            parent=parent,
            seed=encoding.draw_seeds(key_seed, (n,)),
            scale=jnp.full(n, schedule("mutation_std", self.mutation_std)(state.generation), jnp.float32),
            initial=jnp.full(n, (state.generation == 0) | (self.num_parents == 0)),
            episodes=jnp.full(n, self.num_episodes, jnp.int32),
            priority=state.expected_length[parent] if self.num_parents else jnp.zeros(n, jnp.float32),
        )
        return population, state

    def tell(
        self, key: Array, state: GAState, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[GAState, Scalars]:
        """Truncation selection: the T members with the highest returns, or the most novel, become parents."""
        scores, state_of_novelty, metrics = fitness(evaluation), state.novelty, {}
        if self.objective is not None:
            scores, state_of_novelty, metrics = self.objective.rank(state.novelty, population.seed, evaluation)
        best = jnp.argsort(-scores, stable=True)[: self.num_parents]
        if self.num_parents:
            metrics |= {"parents_mean": fitness(evaluation)[best].mean()}
        state = state._replace(
            expected_length=mean_length(evaluation)[best],
            generation=state.generation + 1,
            survivors=pick(members_of(population), best),
            novelty=state_of_novelty,
        )
        return state, metrics

    def adopt(
        self, state: GAState, candidates: Population, evaluation: Evaluation, winner: Array, encoding: Encoding
    ) -> tuple[GAState, Scalars]:
        """Elitism: the elite takes the place of the last parent, unless it is a parent already."""
        t = self.num_parents
        if self.objective is not None or not t:
            return state, {}
        elite = pick(members_of(candidates), winner)
        alike = [field == value for field, value in zip(state.survivors, elite, strict=True)]
        replaced = (jnp.arange(t) == t - 1) & ~jnp.stack(alike).all(axis=0).any()
        survivors, lengths = optax.tree.where(
            replaced, (elite, candidates.priority[winner]), (state.survivors, state.expected_length)
        )
        return state._replace(survivors=survivors, expected_length=lengths), {}
