"""Evolution strategies with antithetic noise (OpenAI-ES; Salimans et al. 2017, arXiv 1703.03864).

A base is a parameter vector. A generation first plays the base against the elite so far (validation). Then it plays
pairs of members, the base plus and minus the same noise, and moves the base by the sum of the noise, weighted by shaped
fitness. With a novelty objective this is NS-ES, NSR-ES or NSRA-ES (Conti et al. 2018, arXiv 1712.06560), in which
several bases take turns.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from volvox._checks import check_type, integers, numbers
from volvox.evolution.novelty import Novelty
from volvox.evolution.strategy import SHAPINGS, Scalars, Scheduled, Shaping, fitness, mean_length, schedule, summary
from volvox.population.decoding import Encoding, decode_many, explicit, first_ancestors, weighted_noise
from volvox.rollout.behaviors import Behavior, Nothing
from volvox.sparsity.optimizers import Optimizer, make_optimizer
from volvox.types import Array, ArrayTree, Evaluation, Population, pick


class ESState(NamedTuple):
    """State of M bases.

    Attributes:
      bases: Parameters, leaves `[M, ...]`.
      optimizer: The optimiser's state of each base, leaves `[M, ...]`.
      expected_length: float32 `[M]`: Mean episode length of each base in validation, timesteps.
      generation: int32: Generations completed.
      updated: int32: Index of the base that was updated last.
      novelty: The state of the novelty objective, or ().
    """

    bases: ArrayTree
    optimizer: ArrayTree
    expected_length: Array
    generation: Array
    updated: Array
    novelty: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class ES:
    """Evolution strategies with antithetic noise (OpenAI-ES; Salimans et al. 2017, arXiv 1703.03864).

    The defaults are for about one hour on two cores; `paper` has the published settings.

    Example:
      >>> algorithm = vx.evolve(vx.ES(population_size=64), network, env)
      >>> momentum = vx.ES(optimizer=functools.partial(optax.sgd, momentum=0.9), learning_rate="linear:0.1,0.01,200")
      >>> novelty_search = vx.ES(objective=vx.Novelty.ns_es(behavior=vx.rollout.Last("ram", 128)), num_bases=3)

    Attributes:
      population_size: N, members of a generation: N/2 pairs.
      noise_std: Standard deviation of the noise: a number, or a schedule over generations (see
        `volvox.evolution.strategy.schedule`).
      learning_rate: Learning rate: a number, or a schedule over the updates of each base. None: `optimizer` is
        ready-made.
      optimizer: A function of the learning rate that makes an optax transformation, or a ready-made transformation.
      l2_coefficient: Parameters times this are added to the gradient.
      fitness_shaping: How fitness becomes weights: `centered_ranks`, `z_scores` or `raw`.
      objective: None: returns. `Novelty(...)`: novelty, or a mixture of both.
      num_bases: M, bases. Several need a novelty objective, which chooses the base of each generation (published: 3 on
        Atari, 5 on Humanoid).
      num_episodes: Training episodes of each member; fitness is their mean return.
    """

    population_size: int = 128
    noise_std: Scheduled = 0.02
    learning_rate: Scheduled | None = 0.01
    optimizer: Optimizer = optax.adam
    l2_coefficient: float = 0.005
    fitness_shaping: Shaping = "centered_ranks"
    objective: Novelty | None = None
    num_bases: int = 1
    num_episodes: int = 1
    validates_first: ClassVar[bool] = True

    def __post_init__(self) -> None:
        integers(self, "population_size", low=2)
        integers(self, "num_bases", "num_episodes", low=1)
        numbers(self, "l2_coefficient", low=0)
        if self.population_size % 2:
            raise ValueError(f"population_size={self.population_size} is odd: antithetic members come in pairs.")
        if self.fitness_shaping not in SHAPINGS:
            raise ValueError(f"fitness_shaping={self.fitness_shaping!r}: use one of {', '.join(SHAPINGS)}.")
        schedule("noise_std", self.noise_std)
        _ = self.transformation  # raises ValueError if the learning rate does not fit
        check_type("objective", self.objective, (Novelty, type(None)), "vx.Novelty(...), or None for returns")
        if self.objective is None and self.num_bases > 1:
            raise ValueError(f"num_bases={self.num_bases}: several bases need a Novelty objective.")
        if self.objective is not None:  # the archive takes a behaviour of each base at once
            integers(self.objective, "archive_size", low=self.num_bases)

    @classmethod
    def paper(cls) -> "ES":
        """Salimans et al. 2017 as Such et al. 2017 ran it; `Validation.paper()` has their test episodes."""
        return cls(population_size=5_000)

    @property
    def transformation(self) -> optax.GradientTransformationExtraArgs:
        """The optimiser with its learning rate."""
        rate = self.learning_rate
        return make_optimizer(self.optimizer, rate if rate is None else schedule("learning_rate", rate))

    @property
    def behavior(self) -> Behavior:
        """The behaviour that the objective compares."""
        return Nothing() if self.objective is None else self.objective.behavior

    def init(self, key: Array, encoding: Encoding) -> ESState:
        """Returns the first state: M first ancestors."""
        m = self.num_bases
        bases = decode_many(encoding, encoding.zeros(1), first_ancestors(encoding.draw_seeds(key, (m,))))
        return ESState(
            bases=bases,
            optimizer=jax.vmap(self.transformation.init)(bases),
            expected_length=jnp.zeros(m, jnp.float32),
            generation=jnp.int32(0),
            updated=jnp.int32(0),
            novelty=() if self.objective is None else self.objective.init(m),
        )

    def forget_scores(self, state: ESState) -> ESState:
        """Drops the scores that novelty compares with, because the cutoff has grown."""
        return state if self.objective is None else state._replace(novelty=self.objective.forget_scores(state.novelty))

    def candidates(self, state: ESState, population: None, evaluation: None, encoding: Encoding) -> Population:
        """Returns the bases; all play in the first generation, then the base that was updated."""
        episodes = self._validated(state).astype(jnp.int32)
        return explicit(state.bases)._replace(episodes=episodes, priority=state.expected_length)

    def adopt(
        self, state: ESState, candidates: Population, evaluation: Evaluation, winner: Array, encoding: Encoding
    ) -> tuple[ESState, Scalars]:
        """Takes lengths and behaviours from the validation of the bases."""
        played = self._validated(state)
        evaluation = pick(evaluation, slice(self.num_bases))
        lengths = jnp.where(played, mean_length(evaluation), state.expected_length)
        state = state._replace(expected_length=lengths)
        if self.objective is None:
            return state, {}
        novelty, metrics = self.objective.observe(state.novelty, played, evaluation)
        return state._replace(novelty=novelty), metrics

    def ask(self, key: Array, state: ESState, encoding: Encoding) -> tuple[Population, ESState]:
        """Returns one base plus and minus the noise of N/2 seeds."""
        n = self.population_size
        key_choice, key_seed = jax.random.split(key)
        base = jnp.int32(0) if self.objective is None else self.objective.choose(key_choice, state.novelty)
        population = Population(
            bases=state.bases,
            parent=jnp.full(n, base, jnp.int32),
            seed=jnp.repeat(encoding.draw_seeds(key_seed, (n // 2,)), 2),
            scale=self._std(state) * jnp.tile(jnp.array([1.0, -1.0], jnp.float32), n // 2),
            initial=jnp.zeros(n, bool),
            episodes=jnp.full(n, self.num_episodes, jnp.int32),
            priority=jnp.full(n, state.expected_length[base]),
        )
        return population, state

    def tell(
        self, key: Array, state: ESState, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[ESState, Scalars]:
        """Updates the base by the gradient `l2_coefficient * base - 1/N sum_k (f_k+ - f_k-) noise_k`."""
        base = population.parent[0]
        shaping = SHAPINGS[self.fitness_shaping]
        if self.objective is None:
            weights = shaping(fitness(evaluation))
        else:
            weights = self.objective.weigh(state.novelty, evaluation, shaping)
        params, optimizer = pick((state.bases, state.optimizer), base)
        ascent = weighted_noise(encoding, population.seed[::2], (weights[::2] - weights[1::2]) / self.population_size)
        gradient = jax.tree.map(lambda up, x: self.l2_coefficient * x - up, ascent, params)
        mean_return = summary(evaluation)["training_mean"]
        updates, optimizer = self.transformation.update(gradient, optimizer, params, mean_return=mean_return)
        params = optax.apply_updates(params, updates)
        metrics = {
            "gradient_norm": optax.tree.norm(gradient),
            "update_norm": optax.tree.norm(updates),
            "parameter_norm": optax.tree.norm(params),
            "noise_std": self._std(state),
        }
        bases, optimizer = jax.tree.map(
            lambda x, new: x.at[base].set(new), (state.bases, state.optimizer), (params, optimizer)
        )
        generation = state.generation + 1
        return state._replace(bases=bases, optimizer=optimizer, generation=generation, updated=base), metrics

    def _validated(self, state: ESState) -> Array:
        """The bases that play validation, bool `[M]`: all in the first generation, then the base that was updated."""
        return (state.generation == 0) | (jnp.arange(self.num_bases) == state.updated)

    def _std(self, state: ESState) -> Array:
        return jnp.asarray(schedule("noise_std", self.noise_std)(state.generation), jnp.float32)
