"""What an evolutionary strategy is: a generation as a sequence of phases, each of them ask, evaluate, tell."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp

from volvox.evolution.scores import fitness, standard_error
from volvox.loop.behaviors import Behavior
from volvox.population.decoding import Encoding, Member
from volvox.types import Array, ArrayTree, Evaluation, Population

Role = Literal["training", "validation", "test"]
"""In which environments a phase is played: training and validation share a cutoff, test has its own."""
Metrics = dict[str, Array]
"""Scalars by name."""


class Phase(NamedTuple):
    """One `ask -> evaluate -> tell` of a generation. Both functions are pure and jittable.

    Attributes:
      role: In which environments the phase is played.
      num_members: N, of the population that is asked for.
      num_episodes: E, the largest number of episodes of a member.
      ask: (key, state, encoding) -> Population, whose bases are those of the state.
      tell: (state, population, evaluation, encoding) -> (state, metrics). Higher returns are better.
    """

    role: Role
    num_members: int
    num_episodes: int
    ask: Callable[[Array, Any, Encoding], Population]
    tell: Callable[[Any, Population, Evaluation, Encoding], tuple[Any, Metrics]]


class Strategy(Protocol):
    """An evolutionary strategy: settings with pure methods, over a population of few bases and many seeds.

    `GA`, `ES` and `RandomSearch` are strategies, and so is any frozen dataclass that has these members. Its state is a
    pytree of arrays of fixed shapes and dtypes. All methods but `init` run inside `jax.jit` or on shapes alone.
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
        """Makes the state before the first generation; raises ValueError where the noise does not fit the strategy."""
        ...

    def score(self, state: Any) -> Array:
        """The elite's score after a generation, float32; the run reports the elite of the best generation."""
        ...

    def bases(self, state: Any) -> ArrayTree:
        """The parameters of the bases, leaves `[P, ...]`."""
        ...

    def with_bases(self, state: Any, bases: ArrayTree) -> Any:
        """The same state with other bases; `()` where they are left out."""
        ...

    def lineage_row(self, state: Any) -> Member | None:
        """How each base `[P]` came from the bases before the generation: the next row of the lineage.

        Returns:
          None if bases do not descend from single members. Then there is no lineage, and checkpoints hold the bases;
          otherwise checkpoints hold the lineage, from which the bases are computed anew.
        """
        ...


def unchanged(bases: ArrayTree, index: Array, episodes: Array, expected_length: Array) -> Population:
    """A population of the bases themselves.

    Args:
      bases: parameters, leaves `[P, ...]`.
      index: int32 `[N]`: which bases.
      episodes: int32 `[N]`: episodes each of them plays.
      expected_length: float32 `[P]`: expected episode length of each base, timesteps.
    """
    seed, scale = jnp.zeros(index.shape, jnp.int32), jnp.zeros(index.shape, jnp.float32)
    return Population(bases, index, seed, scale, scale > 0, episodes, expected_length[index])


def tell_test(state: Any, population: Population, evaluation: Evaluation, encoding: Encoding) -> tuple[Any, Metrics]:
    """The `tell` of a test phase with one member: the state stays as it is.

    Returns:
      (state, metrics `test_score`, `test_standard_error` and `test_best`).
    """
    del population, encoding
    returns = evaluation.returns[0]
    return state, {
        "test_score": fitness(evaluation)[0],
        "test_standard_error": standard_error(returns),
        "test_best": returns.max(),
    }


def compiled_phases(strategy: Strategy) -> tuple[Phase, ...]:
    """The phases of a strategy with `ask` and `tell` compiled, so that bases they only pass on are not copied.

    A compiled function copies what it returns unchanged, and the bases take up to hundreds of megabytes.

    Args:
      strategy: any strategy.

    Returns:
      Its phases, with the same meaning.
    """
    return tuple(_compiled(phase, strategy) for phase in strategy.phases)


def _compiled(phase: Phase, strategy: Strategy) -> Phase:
    @jax.jit
    def ask_without_bases(key, state, encoding):
        population = phase.ask(key, state, encoding)._replace(bases=())
        chex.assert_shape(jax.tree.leaves(population), (phase.num_members,))
        return population

    @jax.jit
    def tell_changes(state, population, evaluation, encoding):
        chex.assert_shape(evaluation[:3], (phase.num_members, phase.num_episodes))
        old = strategy.bases(state)
        state, metrics = phase.tell(state, population, evaluation, encoding)
        chex.assert_shape(list(metrics.values()), ())
        bases = strategy.bases(state)
        passed_on = all(a is b for a, b in zip(jax.tree.leaves(bases), jax.tree.leaves(old), strict=True))
        return None if passed_on else bases, strategy.with_bases(state, ()), metrics

    def ask(key, state, encoding):
        return ask_without_bases(key, state, encoding)._replace(bases=strategy.bases(state))

    def tell(state, population, evaluation, encoding):
        bases, rest, metrics = tell_changes(state, population, evaluation, encoding)
        return strategy.with_bases(rest, strategy.bases(state) if bases is None else bases), metrics

    return phase._replace(ask=ask, tell=tell)
