"""What an evolutionary strategy is: rounds of ask, evaluate, tell."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from volvox.evolution.scores import fitness, standard_error
from volvox.loop.behaviors import Behavior
from volvox.population.decoding import Encoding, Member
from volvox.types import Array, ArrayTree, Config, Evaluation, Population

Role = Literal["training", "validation", "test"]
"""In which environments a round is played: training and validation share a cutoff, test has its own."""


class Round(NamedTuple):
    """One `ask -> evaluate -> tell` of a generation. Both functions are pure and jittable.

    Attributes:
      num_members: N, of the asked population.
      num_episodes: E, the most episodes of a member.
      ask: (key, state, encoding) -> Population, whose bases are the state's.
      tell: (state, population, evaluation, encoding) -> (state, metrics). Higher returns are better.
    """

    role: Role
    num_members: int
    num_episodes: int
    ask: Callable[[Array, ArrayTree, Encoding], Population]
    tell: Callable[[ArrayTree, Population, Evaluation, Encoding], tuple[ArrayTree, dict[str, Array]]]


class Strategy(NamedTuple):
    """An evolutionary strategy as pure functions over a population of few bases and many seeds.

    Attributes:
      init: (key, encoding) -> state.
      num_bases: P.
      survivors: state after a generation -> how each base `[P]` came from the bases before; the lineage's next row.
        None: bases do not descend from single members, and no lineage is kept.
      split: state -> (bases, the rest). Where there are lineages, checkpoints hold the rest, and bases are rebuilt.
      join: (bases, the rest) -> state.
      elite: Index of the base that is the elite.
      score: state after a generation -> the elite's score, float32; the best of all generations is the reported
        solution.
      behavior: What is recorded of each episode.
    """

    init: Callable[[Array, Encoding], ArrayTree]
    rounds: tuple[Round, ...]
    num_bases: int
    survivors: Callable[[ArrayTree], Member] | None
    split: Callable[[ArrayTree], tuple[ArrayTree, ArrayTree]]
    join: Callable[[ArrayTree, ArrayTree], ArrayTree]
    elite: int
    score: Callable[[ArrayTree], Array]
    behavior: Behavior
    config: Config


def unchanged(bases: ArrayTree, index: Array, episodes: Array, expected_length: Array) -> Population:
    """A population of the bases themselves.

    Args:
      bases: parameters, leaves `[P, ...]`.
      index: int32 `[N]`, of the bases.
      episodes: int32 `[N]`.
      expected_length: float32 `[P]`, steps.
    """
    seed, scale = jnp.zeros(index.shape, jnp.int32), jnp.zeros(index.shape, jnp.float32)
    return Population(bases, index, seed, scale, scale > 0, episodes, expected_length[index])


def play_test(num_episodes: int, base: Callable[[ArrayTree], Array]) -> Round:
    """The round in which one base plays test episodes.

    Args:
      num_episodes: E.
      base: state -> int32: which. The state has fields `bases` and `expected_length`.

    Returns:
      A `Round` whose metrics are `test_score`, `test_standard_error` and `test_best`.
    """

    def ask(key: Array, state: Any, encoding: Encoding) -> Population:
        del key, encoding
        episodes = jnp.array([num_episodes], jnp.int32)
        return unchanged(state.bases, base(state)[None], episodes, state.expected_length)

    def tell(state: Any, population: Population, evaluation: Evaluation, encoding: Encoding):
        del population, encoding
        returns = evaluation.returns[0]
        return state, {
            "test_score": fitness(evaluation)[0],
            "test_standard_error": standard_error(returns),
            "test_best": returns.max(),
        }

    return Round("test", 1, num_episodes, ask, tell)


def compiled_rounds(strategy: Strategy) -> tuple[Round, ...]:
    """The rounds of a strategy with `ask` and `tell` compiled, so that bases they only pass on are not copied.

    A compiled function copies what it returns unchanged; the bases are hundreds of megabytes.

    Args:
      strategy: any.

    Returns:
      Its rounds, with the same meaning.
    """
    return tuple(_compiled(round_, strategy) for round_ in strategy.rounds)


def _compiled(round_: Round, strategy: Strategy) -> Round:
    @jax.jit
    def ask_without_bases(key, state, encoding):
        return round_.ask(key, state, encoding)._replace(bases=())

    @jax.jit
    def tell_changes(state, population, evaluation, encoding):
        old, _ = strategy.split(state)
        state, metrics = round_.tell(state, population, evaluation, encoding)
        bases, rest = strategy.split(state)
        passed_on = all(a is b for a, b in zip(jax.tree.leaves(bases), jax.tree.leaves(old), strict=True))
        return None if passed_on else bases, rest, metrics

    def ask(key, state, encoding):
        return ask_without_bases(key, state, encoding)._replace(bases=strategy.split(state)[0])

    def tell(state, population, evaluation, encoding):
        bases, rest, metrics = tell_changes(state, population, evaluation, encoding)
        return strategy.join(strategy.split(state)[0] if bases is None else bases, rest), metrics

    return round_._replace(ask=ask, tell=tell)
