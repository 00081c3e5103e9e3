"""The shortest way to write a strategy: `init`, `ask` and `tell`; the elite is kept for it.

class Mine:                                  # a frozen dataclass of settings, see docs/strategies.md
    population_size = 64
    def init(self, key, encoding): ...
    def ask(self, key, state, encoding): ...
    def tell(self, key, state, population, evaluation, encoding): ...

algorithm = vx.evolve(vx.evolution.from_ask_tell(Mine()), network, env)
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from volvox._checks import integers
from volvox.evolution.strategy import (
    EliteScore,
    Metrics,
    Phase,
    fitness,
    mean_length,
    no_score,
    rows,
    summary,
    test_phase,
    validated,
)
from volvox.population.decoding import Encoding, decode_many, members_of
from volvox.population.vectors import explicit
from volvox.rollout.behaviors import Behavior, Nothing
from volvox.types import Array, ArrayTree, Evaluation, Population

_INIT = 2**31  # names the key of the first state; those of generations are named by their number, which is smaller


class AskTell(Protocol):
    """A strategy of one training phase without lineages: settings with pure methods, best as a frozen dataclass.

    The state is any pytree of arrays of fixed shapes and dtypes. These members may be added:

    - `mean(state, encoding) -> params`: The centre of the distribution, a candidate for the elite; or None.
    - `behavior`: What is recorded of each episode; `tell` finds it in `evaluation.behaviors`.
    - `forget_scores(state) -> state`: Drops all that returns were compared by, because the cutoff has grown.
    - `traceable = False`: `ask` and `tell` cannot be compiled: Python calls them.
    """

    @property
    def population_size(self) -> int:
        """N, members of a generation."""
        ...

    def init(self, key: Array, encoding: Encoding) -> Any:
        """Makes the first state; pure and jittable."""
        ...

    def ask(self, key: Array, state: Any, encoding: Encoding) -> tuple[Population, Any]:
        """Returns N members, such as `volvox.population.explicit` makes of parameters, and the state."""
        ...

    def tell(
        self, key: Array, state: Any, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[Any, Metrics]:
        """Learns from what the members played; returns the state, and scalars by name for the row of metrics."""
        ...


class ElitismState(NamedTuple):
    """An ask-tell strategy's state, and its best policy.

    Attributes:
      bases: Parameters, leaves `[C, ...]`: the elite, then its challengers of the last generation.
      expected_length: float32 `[C]`: Their mean episode lengths, timesteps.
      generation: int32: Generations completed.
      score: What validation says of the elite.
      inner: The state of what asks and tells.
      survivors: None: there are no lineages.
    """

    bases: ArrayTree
    expected_length: Array
    generation: Array
    score: EliteScore
    inner: Any
    survivors: None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elitism:
    """Makes a strategy of what asks and tells, and keeps its best policy, which is the result.

    After training, the elite so far and its challengers play fresh validation episodes side by side, and the best mean
    return makes the elite, as in the genetic algorithm. Challengers are the mean of the distribution, where there is
    one, and the best members of training.

    Attributes:
      inner: What asks and tells.
      num_episodes: Training episodes of each member; fitness is their mean return.
      num_elite_candidates: C, candidates for the elite: the elite so far and its challengers; at least 2.
      num_validation_episodes: Validation episodes of each candidate in each generation; the score of the elite is the
        mean over those since it was chosen (`volvox.evolution.EliteScore`).
      num_test_episodes: Episodes the elite then plays in the test environments; 0 for no test.
    """

    inner: AskTell
    num_episodes: int = 1
    num_elite_candidates: int = 3
    num_validation_episodes: int = 8
    num_test_episodes: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a setting out of range, TypeError for what does not ask and tell."""
        missing = [name for name in ("population_size", "init", "ask", "tell") if not hasattr(self.inner, name)]
        if missing or isinstance(self.inner, type):
            raise TypeError(
                f"inner={self.inner!r} is no ask-tell strategy: give an object with population_size, init, ask and "
                f"tell (volvox.evolution.AskTell){'; it has no ' + ', '.join(missing) if missing else ''}."
            )
        integers(self.inner, "population_size", low=1)
        integers(self, "num_episodes", "num_validation_episodes", low=1)
        integers(self, "num_elite_candidates", low=2)
        integers(self, "num_test_episodes", low=0)
        if self.num_elite_candidates > self.inner.population_size:
            raise ValueError(
                f"num_elite_candidates={self.num_elite_candidates} exceeds "
                f"population_size={self.inner.population_size}; candidates are the best members of a generation."
            )

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Training of the members, then validation of candidates, then test of the elite."""
        n, c, traceable = self.inner.population_size, self.num_elite_candidates, getattr(self.inner, "traceable", True)
        return (
            Phase("training", n, self.num_episodes, self.ask_members, self.tell_members, traceable),
            Phase("validation", c, self.num_validation_episodes, self.ask_candidates, self.tell_candidates),
            *test_phase(self.num_test_episodes, lambda state: jnp.int32(self.elite)),
        )

    @property
    def behavior(self) -> Behavior:
        """What `inner` compares episodes by."""
        return getattr(self.inner, "behavior", Nothing())

    @property
    def elite(self) -> int:
        """The first base."""
        return 0

    def init(self, key: Array, encoding: Encoding) -> ElitismState:
        """Makes the state before the first generation."""
        # `split(key)[i]` may be `fold_in(key, i)`, which is the key of generation i.
        key = jax.random.fold_in(key, _INIT)
        return ElitismState(
            bases=encoding.zeros(self.num_elite_candidates),
            expected_length=jnp.zeros(self.num_elite_candidates),
            generation=jnp.int32(0),
            score=no_score(),
            inner=_strong(self.inner.init(key, encoding)),
        )

    def forget_scores(self, state: ElitismState) -> ElitismState:
        """See `Strategy`."""
        forget = getattr(self.inner, "forget_scores", lambda inner: inner)
        return state._replace(score=no_score(), inner=forget(state.inner))

    def ask_members(self, key: Array, state: ElitismState, encoding: Encoding) -> tuple[Population, ElitismState]:
        """Training: what `inner` asks for."""
        answer: Any = self.inner.ask(key, state.inner, encoding)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Population):
            raise TypeError(
                f"{type(self.inner).__name__}.ask must return (Population, state); it returned {type(answer).__name__}."
            )
        population, inner = answer
        episodes = jnp.full(self.inner.population_size, self.num_episodes, jnp.int32)
        return population._replace(episodes=episodes), state._replace(inner=_strong(inner))

    def tell_members(
        self, key: Array, state: ElitismState, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[ElitismState, Metrics]:
        """Tells `inner`, and takes the challengers from the members."""
        answer: Any = self.inner.tell(key, state.inner, population, evaluation, encoding)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Mapping):
            raise TypeError(
                f"{type(self.inner).__name__}.tell must return (state, metrics), metrics as a dict of scalars by name; "
                f"it returned {type(answer).__name__}."
            )
        inner, metrics = answer
        mean = getattr(self.inner, "mean", _no_mean)(inner, encoding)
        new = _challengers(encoding, population, evaluation, mean, self.num_elite_candidates - 1)
        kept = state.bases, state.expected_length
        bases, lengths = jax.tree.map(lambda x, challengers: x.at[1:].set(challengers), kept, new)
        return state._replace(bases=bases, expected_length=lengths, inner=_strong(inner)), summary(evaluation) | metrics

    def ask_candidates(self, key: Array, state: ElitismState, encoding: Encoding) -> tuple[Population, ElitismState]:
        """Validation: the elite so far, once there is one, and its challengers."""
        c = self.num_elite_candidates
        plays = (jnp.arange(c) > 0) | (state.generation > 0)
        # As many rows as in training, so that the loop is compiled once for both.
        rest = max(self._num_bases(key, state, encoding) - c, 0)
        padded = jax.tree.map(lambda x: jnp.pad(x, [(0, rest)] + [(0, 0)] * (x.ndim - 1)), state.bases)
        population = explicit(
            padded,
            parent=jnp.arange(c, dtype=jnp.int32),
            episodes=jnp.where(plays, self.num_validation_episodes, 0),
            priority=state.expected_length,
        )
        return population, state

    def tell_candidates(
        self, key: Array, state: ElitismState, population: Population, evaluation: Evaluation, encoding: Encoding
    ) -> tuple[ElitismState, Metrics]:
        """The candidate of the best mean return is the elite."""
        winner = jnp.argmax(fitness(evaluation))  # the first of equals: the elite gives way only to a better one
        score, metrics = validated(state.score, evaluation, winner, winner > 0)
        state = state._replace(
            bases=jax.tree.map(lambda x: x.at[0].set(x[winner]), state.bases),
            expected_length=state.expected_length.at[0].set(mean_length(evaluation)[winner]),
            generation=state.generation + 1,
            score=score,
        )
        return state, metrics

    def _num_bases(self, key: Array, state: ElitismState, encoding: Encoding) -> int:
        """Rows of the bases that `inner` asks for."""
        if not getattr(self.inner, "traceable", True):
            return self.inner.population_size
        asked, _ = jax.eval_shape(self.inner.ask, key, state.inner, encoding)
        return jax.tree.leaves(asked.bases)[0].shape[0]


def _strong(tree: ArrayTree) -> ArrayTree:
    """The same numbers as arrays without weak types, as `jnp.full(3, 0.5)` has one, and would be compiled twice."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)


def _no_mean(state: Any, encoding: Encoding) -> None:
    del state, encoding


@partial(jax.jit, static_argnums=4)
def _challengers(
    encoding: Encoding, population: Population, evaluation: Evaluation, mean: ArrayTree | None, count: int
) -> tuple[ArrayTree, Array]:
    """Parameters, leaves `[count, ...]`, and mean episode lengths `[count]`: the mean first, then the best members."""
    best = jnp.argsort(-fitness(evaluation), stable=True)[: count - (mean is not None)]
    params, lengths = (
        decode_many(encoding, population.bases, rows(members_of(population), best)),
        mean_length(evaluation),
    )
    if mean is None:
        return params, lengths[best]
    first = mean, lengths.mean()
    return jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, (params, lengths[best]))
