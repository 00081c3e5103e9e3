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


class StrategyState(Protocol):
    """What the state of any strategy holds; it is a NamedTuple, and a pytree of arrays of fixed shapes and dtypes."""

    @property
    def bases(self) -> ArrayTree:
        """The parameters of the bases, leaves `[P, ...]`."""
        ...

    @property
    def score(self) -> Array:
        """The elite's score after a generation, float32; the run reports the elite of the best generation."""
        ...

    @property
    def survivors(self) -> Member | None:
        """How each base `[P]` came from the bases before the generation: the next row of the lineage.

        None if bases do not descend from single members. Then there is no lineage, and checkpoints hold the bases;
        otherwise they hold the lineage, from which the bases are computed anew.
        """
        ...


class Strategy(Protocol):
    """An evolutionary strategy: settings with pure methods, over a population of few bases and many seeds.

    `GA`, `ES` and `RandomSearch` are strategies, and so is any frozen dataclass that has these members.
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
        """Makes the first state (see `StrategyState`); raises ValueError where the noise does not fit the strategy."""
        ...


def unchanged(state: Any, index: Array, episodes: Array) -> Population:
    """A population of the bases themselves.

    Args:
      state: the state of a strategy, with fields `bases` and `expected_length` (float32 `[P]` timesteps).
      index: int32 `[N]`: which bases.
      episodes: int32 `[N]`: episodes each of them plays.
    """
    seed, scale = jnp.zeros(index.shape, jnp.int32), jnp.zeros(index.shape, jnp.float32)
    return Population(state.bases, index, seed, scale, scale > 0, episodes, state.expected_length[index])


def test_phase(num_episodes: int, base: Callable[[Any], Array]) -> tuple[Phase, ...]:
    """The phase in which one base plays test episodes; its metrics are `test_score`, `_standard_error` and `_best`.

    Args:
      num_episodes: E; 0 for no test.
      base: state -> int32: which base; the state is one that `unchanged` takes.

    Returns:
      One phase, or none.
    """

    def ask(key: Array, state: Any, encoding: Encoding) -> Population:
        del key, encoding
        return unchanged(state, base(state)[None], jnp.array([num_episodes], jnp.int32))

    return (Phase("test", 1, num_episodes, ask, _tell_test),) if num_episodes else ()


def _tell_test(state: Any, population: Population, evaluation: Evaluation, encoding: Encoding) -> tuple[Any, Metrics]:
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
    """
    return tuple(_compiled(phase) for phase in strategy.phases)


def _compiled(phase: Phase) -> Phase:
    @jax.jit
    def ask_without_bases(key, state, encoding):
        population = phase.ask(key, state, encoding)._replace(bases=())
        chex.assert_shape(jax.tree.leaves(population), (phase.num_members,))
        return population

    @jax.jit
    def tell_changes(state, population, evaluation, encoding):
        chex.assert_shape(evaluation[:3], (phase.num_members, phase.num_episodes))
        new, metrics = phase.tell(state, population, evaluation, encoding)
        chex.assert_shape(list(metrics.values()), ())
        before, after = jax.tree.leaves(state.bases), jax.tree.leaves(new.bases)
        passed_on = all(a is b for a, b in zip(before, after, strict=True))
        return None if passed_on else new.bases, new._replace(bases=()), metrics

    def ask(key, state, encoding):
        return ask_without_bases(key, state, encoding)._replace(bases=state.bases)

    def tell(state, population, evaluation, encoding):
        bases, rest, metrics = tell_changes(state, population, evaluation, encoding)
        return rest._replace(bases=state.bases if bases is None else bases), metrics

    return phase._replace(ask=ask, tell=tell)
