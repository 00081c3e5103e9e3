"""The suite for strategies says what is wrong with those that are."""

import dataclasses
import pickle
import re
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox import evolution, population, testing


class Climber:
    """A Python object that moves to the best vector, and knows when it was made."""

    def __init__(self, start, seed):
        self.mean, self.random, self.made = start, np.random.default_rng(seed), time.perf_counter()

    def ask(self):
        return self.mean + 0.1 * self.random.standard_normal((6, self.mean.size))

    def tell(self, vectors, losses):
        self.mean = vectors[np.argmin(losses)]


class Unseeded(Climber):
    def __init__(self, start, seed):
        super().__init__(start, None)


class State(NamedTuple):
    mean: jax.Array
    more: Any = jnp.float32(0)


@dataclasses.dataclass(frozen=True)
class Right:
    """Moves to the best member."""

    population_size: int = 6

    def init(self, key, encoding):
        return State(jnp.zeros(encoding.num_parameters))

    def ask(self, key, state, encoding):
        noise = jax.random.normal(key, (self.population_size, encoding.num_parameters))
        return population.explicit(population.from_vectors(encoding, state.mean + 0.1 * noise)), state

    def tell(self, key, state, asked, evaluation, encoding):
        best = jnp.argmax(evolution.fitness(evaluation))
        return state._replace(mean=population.to_vectors(asked.bases)[best]), {}


class OtherDtype(Right):
    def tell(self, key, state, asked, evaluation, encoding):
        return super().tell(key, state, asked, evaluation, encoding)[0]._replace(more=jnp.int32(0)), {}


class OtherShape(Right):
    def ask(self, key, state, encoding):
        asked, state = super().ask(key, state, encoding)
        return asked, state._replace(mean=state.mean[None])


class NoState(Right):
    def ask(self, key, state, encoding):
        return super().ask(key, state, encoding)[0]


class TooMany(Right):
    def ask(self, key, state, encoding):
        params = encoding.zeros(self.population_size)
        index = jnp.arange(self.population_size, dtype=jnp.int32)
        return population.explicit(params, parent=index + 3), state


class TooFew(Right):
    def ask(self, key, state, encoding):
        return population.explicit(encoding.zeros(5)), state


class NoKey(Right):
    def ask(self, key, state, encoding):
        return super().ask(jax.random.key(0), state, encoding)


class Worse(Right):
    def tell(self, key, state, asked, evaluation, encoding):
        returns = -evaluation.returns
        return super().tell(key, state, asked, evaluation._replace(returns=returns), encoding)


class Diverges(Right):
    def tell(self, key, state, asked, evaluation, encoding):
        mean = evaluation.returns.mean() + state.mean
        return State(mean), {}

    def mean(self, state, encoding):
        return jax.tree.map(lambda x: x[0], population.from_vectors(encoding, state.mean[None]))


class VectorMetric(Right):
    def tell(self, key, state, asked, evaluation, encoding):
        return super().tell(key, state, asked, evaluation, encoding)[0], {"mean": state.mean}


DRAWN = []


class Impure(Right):
    def ask(self, key, state, encoding):
        DRAWN.append(1)  # as a generator of NumPy would, which a compiled program calls once
        return super().ask(jax.random.fold_in(key, len(DRAWN)), state, encoding)


class NoMetrics(Right):
    def tell(self, key, state, population, evaluation, encoding):
        return super().tell(key, state, population, evaluation, encoding)[0]


class Thawed:
    population_size, init, ask, tell = 6, Right.init, Right.ask, Right.tell


REMEMBERED = []


class Remembers(Right):
    def ask(self, key, state, encoding):
        REMEMBERED.append(1)
        return super().ask(jax.random.fold_in(key, len(REMEMBERED)), state, encoding)

    traceable = False


class OtherSeeds(Right):
    def ask(self, key, state, encoding):
        asked, state = super().ask(key, state, encoding)
        return asked._replace(seed=jnp.full_like(asked.seed, -1)), state


KNOWN = []


class KeepsOutside(Right):
    """Draws otherwise around a mean that it has made itself, and knows it by its place in memory."""

    traceable = False

    def ask(self, key, state, encoding):
        known = any(mean is state.mean for mean in KNOWN)
        return super().ask(jax.random.fold_in(key, known), state, encoding)

    def tell(self, key, state, asked, evaluation, encoding):
        state, metrics = super().tell(key, state, asked, evaluation, encoding)
        KNOWN.append(state.mean)
        return state, metrics


def elitist(inner):
    return evolution.Elitism(inner=inner, num_validation_episodes=1)


def test_a_right_one_passes():
    testing.check_strategy(elitist(Right()))


def test_a_python_object_may_keep_the_time():
    options = {"population_size": 6, "num_validation_episodes": 1}
    options |= {"save": pickle.dumps, "restore": pickle.loads}
    testing.check_strategy(evolution.from_ask_tell(Climber, **options))
    with pytest.raises(AssertionError, match="the same key gives another run"):
        testing.check_strategy(evolution.from_ask_tell(Unseeded, **options))


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (OtherDtype, "tell of the training phase: inner/more of the state was float32[], and is int32[]"),
        (OtherShape, "ask of the training phase: inner/mean of the state was float32[6], and is float32[1, 6]"),
        (NoState, "NoState.ask must return (Population, state); it returned Population"),
        (NoMetrics, "NoMetrics.tell must return (state, metrics), metrics as a dict of scalars by name; it returned"),
        (TooFew, "ask of the training phase: parent is int32[5]; int32[6] is wanted"),
        (TooMany, "parents are no indices of the 6 bases"),
        (NoKey, "another key gives the same run: ask does not use its key"),
        (Worse, "the elite does not become better"),
        (Diverges, "where returns are NaN, the bases are not finite"),
        (VectorMetric, "the metric 'mean' has shape (6,), not ()"),
        (Impure, "compiled, a generation gives another state than in Python"),
        (Thawed, "Thawed is no frozen dataclass"),
        (Remembers, "the same key gives another run"),
        (OtherSeeds, "draw seeds by volvox.population.draw_seeds, 0 to "),
        (KeepsOutside, "resumed from a checkpoint, the next generation is another"),
    ],
)
def test_what_is_wrong_is_named(inner, message):
    with pytest.raises((AssertionError, TypeError), match=re.escape(message)):
        testing.check_strategy(elitist(inner()))


def claims(state, evaluation):
    """The score of the elite, and zeros in its place."""
    return state._replace(bases=jax.tree.map(lambda x: x.at[0].set(0.0), state.bases))


def forgets(state, evaluation):
    """Zeros in the third generation, of which nothing wrong is said."""
    lost, nothing = state.generation == 3, evolution.strategy.no_score()._replace(selecting=jnp.float32(0))
    bases = jax.tree.map(lambda x: x.at[0].set(jnp.where(lost, 0.0, x[0])), state.bases)
    return state._replace(bases=bases, score=jax.tree.map(lambda x, y: jnp.where(lost, x, y), nothing, state.score))


def trusts(state, evaluation):
    """The largest mean return, and a NaN is larger than all numbers to argmax."""
    means = jnp.where(evaluation.valid.any(1), evaluation.returns.mean(1), -jnp.inf)
    return state._replace(score=state.score._replace(selecting=means[jnp.argmax(means)]))


@dataclasses.dataclass(frozen=True)
class Wrong:
    """Changes what follows from validation."""

    inner: evolution.Elitism
    change: Any

    def __getattr__(self, name):
        return getattr(self.inner, name)

    @property
    def phases(self):
        training, validation = self.inner.phases

        def tell(key, state, asked, evaluation, encoding):
            new, metrics = validation.tell(key, state, asked, evaluation, encoding)
            return self.change(new, evaluation), metrics

        return training, validation._replace(tell=tell)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (claims, "and the policy that is returned"),
        (forgets, "the elite became worse, though returns are exact"),
        (trusts, "a candidate without a return is chosen as elite"),
    ],
)
def test_a_wrong_elite_is_found(change, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_strategy(Wrong(elitist(Right()), change))


@dataclasses.dataclass(frozen=True)
class Changed:
    """A strategy with other parts."""

    inner: Any
    parts: Any

    def __getattr__(self, name):
        return self.parts[name] if name in self.parts else getattr(self.inner, name)


GA = evolution.GA(population_size=6, num_parents=2, num_elite_candidates=2, num_validation_episodes=1)


def phased(role, **functions):
    """A genetic algorithm, one of whose phases has another ask or tell, made of the one it has."""

    def changed(phase):
        parts = {name: make(getattr(phase, name)) for name, make in functions.items()}
        return phase._replace(**parts) if phase.role == role else phase

    return Changed(GA, {"phases": tuple(map(changed, GA.phases))})


def misnamed(tell):
    def told(*given):
        state, metrics = tell(*given)
        return state._replace(survivors=state.survivors._replace(seed=state.survivors.seed + 1)), metrics

    return told


def idle(ask):
    def asked(*given):
        offspring, state = ask(*given)
        return offspring._replace(episodes=jnp.zeros_like(offspring.episodes)), state

    return asked


def elsewhere(ask):
    def asked(*given):
        offspring, state = ask(*given)
        return offspring._replace(bases=jax.tree.map(lambda x: x + 1, offspring.bases)), state

    return asked


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: phased("training", ask=idle), "episodes are 0 to 0; 0 to 1 are right, not all 0"),
        (lambda: phased("validation", tell=misnamed), "bases are not what survivors say"),
        (lambda: phased("training", ask=elsewhere), "with lineages, a population's bases are those of the state"),
        (lambda: Changed(GA, {"phases": ()}), "has no phase of training or validation, so nothing would learn"),
        (lambda: Changed(GA, {"elite": 99}), "elite=99 is no index of the"),
        (lambda: Changed(GA, {"init": lambda key, encoding: State(jnp.zeros(1))}), "has no field bases"),
    ],
    ids=["episodes", "survivors", "bases", "phases", "elite", "fields"],
)
def test_what_is_wrong_with_a_lineage_or_a_part_is_named(make, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_strategy(make())


def test_what_is_no_strategy_is_told_what_is_missing():
    with pytest.raises(AssertionError, match=r"Right has no phases .*from_ask_tell makes a strategy"):
        testing.check_strategy(Right())
    with pytest.raises(AssertionError, match="is a class"):
        testing.check_strategy(evolution.GA)
