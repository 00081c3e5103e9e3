"""Strategies without lineages keep their best policy: what is claimed is what is returned."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import evolution, networks, population
from volvox.types import Evaluation

ENV = probes.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
CODE = population.encoding(networks.genotype(networks.MLP(2, hidden=()), ENV.spec), population.Table(size=5_000))
KEY = jax.random.key(9)


@dataclasses.dataclass(frozen=True)
class Counting:
    """Member i of generation g has the parameters 10 g + i, everywhere; the mean, where there is one, 10 g + 0.5."""

    population_size: int = 4
    has_mean: bool = True

    def init(self, key, encoding):
        return jnp.int32(0)

    def ask(self, key, state, encoding):
        values = 10.0 * state + jnp.arange(self.population_size)
        vectors = jnp.broadcast_to(values[:, None], (self.population_size, encoding.num_parameters))
        return population.explicit(population.from_vectors(encoding, vectors)), state

    def tell(self, key, state, asked, evaluation, encoding):
        return state + 1, {"drawn": jax.random.uniform(key)}

    def mean(self, state, encoding):
        value = 10.0 * (state - 1) + 0.5
        return jax.tree.map(lambda x: jnp.full(x.shape, value), encoding.like) if self.has_mean else None


def made(has_mean=True, **options):
    return evolution.Elitism(inner=Counting(has_mean=has_mean), **{"num_validation_episodes": 2, **options})


def played(returns, asked):
    valid = jnp.arange(max(int(asked.episodes.max()), 1)) < asked.episodes[:, None]
    returns = jnp.where(valid, jnp.asarray(returns, jnp.float32)[:, None], 0.0)
    return Evaluation(returns, jnp.where(valid, 7, 0), valid, jnp.zeros((*returns.shape, 0)))


def values(params):
    """The number that all parameters of each network are."""
    vectors = np.asarray(population.to_vectors(params))
    assert (vectors == vectors[:, :1]).all()
    return vectors[:, 0]


def generation(strategy, state, training, validation):
    """One generation with the given returns: (state, values that were validated, metrics)."""
    members, candidates = strategy.phases[:2]
    asked, state = members.ask(KEY, state, CODE)
    state, metrics = members.tell(KEY, state, asked, played(training, asked), CODE)
    asked, state = candidates.ask(KEY, state, CODE)
    who = values(jax.tree.map(lambda x: x[asked.parent], asked.bases))
    state, more = candidates.tell(KEY, state, asked, played(validation, asked), CODE)
    return state, (who, np.asarray(asked.episodes)), metrics | more


def test_the_first_state_has_no_key_of_a_generation():
    """`fold_in(key, i)` may be `split(key)[i]`, so a state drawn from the run's key would be drawn again."""

    class Drawing(Counting):
        def init(self, key, encoding):
            return jnp.stack([jax.random.key_data(one) for one in jax.random.split(key, 8)])

    key = jax.random.key(3)
    drawn = np.asarray(evolution.Elitism(inner=Drawing(), num_validation_episodes=2).init(key, CODE).inner)
    generations = [np.asarray(jax.random.key_data(jax.random.fold_in(key, i))) for i in range(8)]
    assert not any((one == other).all() for one in drawn for other in generations)


@pytest.mark.parametrize(("has_mean", "challengers"), [(True, [[0.5, 2], [10.5, 13]]), (False, [[2, 1], [13, 10]])])
def test_the_elite_plays_against_the_mean_and_the_best_of_training(has_mean, challengers):
    strategy = made(has_mean)
    state = strategy.init(KEY, CODE)
    state, (who, episodes), metrics = generation(strategy, state, [0, 3, 9, 1], [100.0, 1.0, 5.0])
    np.testing.assert_array_equal(who[1:], challengers[0])
    np.testing.assert_array_equal(episodes, [0, 2, 2])  # there is no elite yet, whatever it would score
    assert values(state.bases)[0] == challengers[0][1]
    assert metrics["elite_is_new"]
    assert metrics["drawn"] == jax.random.uniform(KEY)
    state, (who, episodes), metrics = generation(strategy, state, [3, 0, 1, 9], [5.0, 5.0, 4.0])
    np.testing.assert_array_equal(who, [challengers[0][1], *challengers[1]])
    np.testing.assert_array_equal(episodes, [2, 2, 2])
    assert values(state.bases)[0] == challengers[0][1]  # which gives way only to a better one
    assert (metrics["elite_score"], metrics["elite_episodes"]) == (5.0, 2)
    state, _, metrics = generation(strategy, state, [3, 0, 1, 9], [4.0, 6.0, 4.5])
    assert values(state.bases)[0] == (20.5 if has_mean else 23)
    assert metrics["elite_selecting_score"] == 6.0
    assert np.isnan(metrics["elite_score"])


def test_the_loop_is_compiled_for_one_number_of_rows():
    strategy = made()
    state = strategy.init(KEY, CODE)
    rows = [jax.tree.leaves(phase.ask(KEY, state, CODE)[0].bases)[0].shape[0] for phase in strategy.phases]
    assert rows == [4, 4]


def test_the_best_policy_is_returned_though_the_latest_is_worse():
    """Far from the probe's optimum returns are low, and each generation is farther than the one before."""
    strategy = made(has_mean=False, num_validation_episodes=8, num_test_episodes=2)
    algorithm = evolution.evolve(strategy, networks.MLP(2, hidden=()), ENV, noise=population.Table(size=5_000))
    state = algorithm.init(KEY)
    for number in range(3):
        state, row = algorithm.step(state)
        assert row["elite_is_new"] is (number == 0)
        assert row["test_score"] == pytest.approx(row["validation_mean"], abs=2.0)
    np.testing.assert_array_equal(algorithm.variables(state)["Dense_0"]["kernel"], 0.0)  # member 0 of the first
    assert row["elite_score"] > -2
    assert (algorithm.genome, state.lineage) == (None, None)


def test_a_longer_cutoff_drops_the_score():
    strategy = made()
    state, *_ = generation(strategy, strategy.init(KEY, CODE), [0, 3, 9, 1], [100.0, 1.0, 5.0])
    state = strategy.forget_scores(state)
    assert np.isnan(state.score.selecting)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_elite_candidates": 5}, ValueError, "num_elite_candidates=5 exceeds population_size=4"),
        ({"num_elite_candidates": 1}, ValueError, "num_elite_candidates must be an integer of at least 2"),
        ({"num_episodes": 0}, ValueError, "num_episodes"),
        ({"inner": object()}, TypeError, "it has no population_size, init, ask, tell"),
        ({"inner": Counting}, TypeError, "is no ask-tell strategy: give an object"),
        ({"inner": Counting(population_size=0)}, ValueError, "population_size must be an integer of at least 1"),
    ],
)
def test_bad_settings_are_refused(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        evolution.Elitism(**{"inner": Counting(), **changes})


def test_what_only_asks_and_tells_is_no_strategy_yet():
    for given in (Counting(), Counting):
        with pytest.raises(TypeError, match=r"got Counting, which asks and tells: \S+from_ask_tell\(Counting"):
            evolution.evolve(given, networks.MLP(2, hidden=()), ENV)
