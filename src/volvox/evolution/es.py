"""Evolution strategies with antithetic noise (OpenAI-ES; Salimans et al. 2017, arXiv 1703.03864).

A generation first plays the current parameters against the best so far (validation), then pairs of members on either
side of them, and moves them along the noise, weighted by shaped fitness. With a novelty objective these are NS-ES,
NSR-ES and NSRA-ES (Conti et al. 2018, arXiv 1712.06560): several parameter vectors take turns.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from volvox._arguments import check_part
from volvox._checks import gradient_transformation, integers, numbers
from volvox.evolution.objective import Objective, Returns
from volvox.evolution.schedules import Scheduled, schedule
from volvox.evolution.strategy import (
    EliteScore,
    Metrics,
    Phase,
    Shaping,
    fitness,
    mean_length,
    no_score,
    rows,
    shaping,
    summary,
    test_phase,
    unchanged,
    validated,
)
from volvox.population.decoding import Encoding, decode_many, draw_seeds, first_ancestors, weighted_noise
from volvox.rollout.behaviors import Behavior
from volvox.types import Array, ArrayTree, Evaluation, Population


class ESState(NamedTuple):
    """M parameter vectors, and the best so far behind them.

    Attributes:
      bases: Parameters, leaves `[M + 1, ...]`; the last is the best.
      optimizer: The optimiser's state of each, leaves `[M, ...]`.
      expected_length: float32 `[M + 1]`: Mean episode length of each in validation, timesteps.
      generation: int32: Generations completed.
      updated: int32: The one that was updated last.
      challenger: int32: The one of the best mean validation return in this generation.
      score: What validation says of the best.
      objective: The objective's own state.
      survivors: None: bases move along sums of noise, and descend from no single member.
    """

    bases: ArrayTree
    optimizer: ArrayTree
    expected_length: Array
    generation: Array
    updated: Array
    challenger: Array
    score: EliteScore
    objective: Any
    survivors: None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ES:
    """Evolution strategies with antithetic noise (OpenAI-ES; Salimans et al. 2017, arXiv 1703.03864).

    The defaults suit an hour of two cores; `paper` has the published settings.

    Example:
      >>> algorithm = vx.evolve(vx.ES(population_size=64), network, env)
      >>> momentum = vx.ES(optimizer=functools.partial(optax.sgd, momentum=0.9), learning_rate="linear:0.1,0.01,200")
      >>> novelty_search = vx.ES(objective=vx.Novelty.ns_es(behavior=vx.rollout.Last("ram", 128)), num_bases=3)

    Attributes:
      population_size: N, members of a generation: N/2 pairs.
      noise_std: Standard deviation of the noise: a number, or a schedule over generations (see
        `volvox.evolution.schedule`).
      learning_rate: Of the optimiser: a number, or a schedule over updates, which with several bases counts the updates
        of each base apart; None if `optimizer` is a ready-made transformation.
      optimizer: A function of the learning rate that makes an optax transformation, or a ready-made transformation.
      l2_coefficient: Parameters times this are added to the gradient.
      fitness_shaping: How fitness becomes weights: `centered_ranks`, `z_scores` or `raw`.
      objective: What is followed: `Returns()` or `Novelty(...)`.
      num_bases: M, parameter vectors that take turns with a novelty objective, which chooses among them (published: 3
        on Atari, 5 on Humanoid).
      num_episodes: Training episodes of each member; fitness is their mean return.
      num_validation_episodes: Validation episodes of the current parameters before they are updated, and of the best so
        far beside them (published: no validation). The current parameters become the best if their mean return is
        higher. The best is the result, and `volvox.evolution.EliteScore` its score. The first episode gives the
        behaviour.
      num_test_episodes: Episodes the current parameters then play in the test environments (published: 200); 0 for no
        test.
    """

    population_size: int = 128
    noise_std: Scheduled = 0.02
    learning_rate: Scheduled | None = 0.01
    optimizer: optax.GradientTransformation | Callable[..., optax.GradientTransformation] = optax.adam
    l2_coefficient: float = 0.005
    fitness_shaping: Shaping = "centered_ranks"
    objective: Objective = Returns()  # noqa: RUF009  # frozen
    num_bases: int = 1
    num_episodes: int = 1
    num_validation_episodes: int = 8
    num_test_episodes: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a setting out of range, an odd population, or a learning rate that does not fit."""
        integers(self, "population_size", low=2)
        integers(self, "num_bases", "num_episodes", "num_validation_episodes", low=1)
        integers(self, "num_test_episodes", low=0)
        numbers(self, "l2_coefficient", low=0)
        if self.population_size % 2:
            raise ValueError(
                f"population_size={self.population_size} is odd: noise is antithetic, members come in pairs; take "
                f"{self.population_size - 1} or {self.population_size + 1}."
            )
        shaping(self.fitness_shaping)
        schedule("noise_std", self.noise_std)
        _ = self.transformation  # raises where the learning rate does not fit
        check_part("objective", self.objective, ("init", "check", "behavior"), "vx.Returns(), or vx.Novelty(...)")
        self.objective.check(num_members=self.population_size, num_bases=self.num_bases)

    @classmethod
    def paper(cls) -> "ES":
        """Salimans et al. 2017 as Such et al. 2017 ran it: 5 000 members and 200 test episodes; validation is ours."""
        return cls(population_size=5_000, num_validation_episodes=30, num_test_episodes=200)

    @property
    def transformation(self) -> optax.GradientTransformation:
        """The optimiser with its learning rate."""
        rate = self.learning_rate
        if rate is not None and not isinstance(self.optimizer, optax.GradientTransformation):
            rate = schedule("learning_rate", rate)
        return gradient_transformation(self.optimizer, rate)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Validation of the current parameters and the best, test of the former, then training of pairs around them."""
        n, m, v = self.population_size, self.num_bases, self.num_validation_episodes
        return (
            Phase("validation", m + 1, v, self.ask_current, self.tell_current),
            *test_phase(self.num_test_episodes, lambda state: state.challenger),  # before it is updated
            Phase("training", n, self.num_episodes, self.ask_pairs, self.tell_pairs),
        )

    @property
    def behavior(self) -> Behavior:
        """What the objective compares episodes by."""
        return self.objective.behavior

    @property
    def elite(self) -> int:
        """The best so far, behind the M parameter vectors."""
        return self.num_bases

    def init(self, key: Array, encoding: Encoding) -> ESState:
        """Makes the state before the first generation: M first ancestors."""
        m = self.num_bases
        seeds = draw_seeds(encoding, key, (m,))
        bases = decode_many(encoding, encoding.zeros(1), first_ancestors(jnp.concatenate([seeds, seeds[:1]])))
        return ESState(
            bases=bases,
            optimizer=jax.vmap(self.transformation.init)(rows(bases, slice(0, m))),
            expected_length=jnp.zeros(m + 1),
            generation=jnp.int32(0),
            updated=jnp.int32(0),
            challenger=jnp.int32(0),
            score=no_score(),
            objective=self.objective.init(m),
        )

    def forget_scores(self, state: ESState) -> ESState:
        """See `Strategy`."""
        return state._replace(score=no_score(), objective=self.objective.forget_scores(state.objective))

    def ask_current(self, key: Array, state: ESState, encoding: Encoding) -> tuple[Population, ESState]:
        """Validation: the base that was updated last, and the best beside it; at first all but the best."""
        plays = jnp.append(self._validated(state), state.generation > 0)
        episodes = jnp.where(plays, jnp.int32(self.num_validation_episodes), 0)
        return unchanged(state, jnp.arange(self.num_bases + 1, dtype=jnp.int32), episodes), state

    def tell_current(
        self, key: Array, state: ESState, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[ESState, Metrics]:
        """Replaces the best if the current parameters do better, and shows the objective what the bases did."""
        m, played, scores = self.num_bases, self._validated(state), fitness(evaluation)
        # The one that was updated even if its score is NaN.
        challenger = jnp.where(state.generation > 0, state.updated, jnp.argmax(scores[:m])).astype(jnp.int32)
        better = scores[challenger] > scores[m]
        lengths = jnp.where(jnp.append(played, True), mean_length(evaluation), state.expected_length)
        bases = jax.lax.cond(
            better, lambda bases: _put(bases, m, rows(bases, challenger)), lambda bases: bases, state.bases
        )
        score, metrics = validated(state.score, evaluation, jnp.where(better, challenger, m), better)
        objective, more = self.objective.observe(state.objective, played, rows(evaluation, slice(m)))
        state = state._replace(
            bases=bases,
            expected_length=lengths.at[m].set(jnp.where(better, lengths[challenger], lengths[m])),
            challenger=challenger,
            score=score,
            objective=objective,
        )
        return state, metrics | more

    def ask_pairs(self, key: Array, state: ESState, encoding: Encoding) -> tuple[Population, ESState]:
        """Training: the base that the objective chooses, plus and minus the noise of N/2 seeds."""
        n, (key_choice, key_seed) = self.population_size, jax.random.split(key)
        base = self.objective.choose(key_choice, state.objective)
        population = Population(
            bases=state.bases,
            parent=jnp.full(n, base, jnp.int32),
            seed=jnp.repeat(draw_seeds(encoding, key_seed, (n // 2,)), 2),
            scale=self._std(state) * jnp.tile(jnp.array([1.0, -1.0]), n // 2),
            initial=jnp.zeros(n, bool),
            episodes=jnp.full(n, self.num_episodes, jnp.int32),
            priority=jnp.full(n, state.expected_length[base]),
        )
        return population, state

    def tell_pairs(
        self, key: Array, state: ESState, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[ESState, Metrics]:
        """Moves the base: the optimiser's update with L2 minus `1/N sum_k (f_k+ - f_k-) noise_k` as the gradient."""
        base = population.parent[0]
        weights = self.objective.weigh(state.objective, evaluation, shaping(self.fitness_shaping))
        params = rows(state.bases, base)
        ascent = weighted_noise(encoding, population.seed[::2], (weights[::2] - weights[1::2]) / self.population_size)
        gradient = jax.tree.map(lambda up, x: self.l2_coefficient * x - up, ascent, params)
        updates, optimizer = self.transformation.update(gradient, rows(state.optimizer, base), params)
        params = optax.apply_updates(params, updates)
        metrics = summary(evaluation) | {
            "gradient_norm": optax.tree.norm(gradient),
            "update_norm": optax.tree.norm(updates),
            "parameter_norm": optax.tree.norm(params),
            "noise_std": self._std(state),
        }
        state = state._replace(
            bases=_put(state.bases, base, params),
            optimizer=_put(state.optimizer, base, optimizer),
            generation=state.generation + 1,
            updated=base,
        )
        return state, metrics

    def _validated(self, state: ESState) -> Array:
        """Which bases play validation, bool `[M]`: all at first, then the one that was updated."""
        return (state.generation == 0) | (jnp.arange(self.num_bases) == state.updated)

    def _std(self, state: ESState) -> Array:
        return jnp.asarray(schedule("noise_std", self.noise_std)(state.generation), jnp.float32)


def _put(tree: ArrayTree, i: Array | int, value: ArrayTree) -> ArrayTree:
    return jax.tree.map(lambda x, new: x.at[i].set(new), tree, value)
