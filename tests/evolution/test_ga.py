"""The genetic algorithm's protocol, phase by phase, and its learning on a probe with a known optimum."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import evolution, networks, population
from volvox.types import Evaluation

ENV = probes.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
NET = networks.genotype(networks.MLP(2, hidden=()), ENV.spec)
CODE = population.encoding(NET, population.Table(size=5_000))
KEY = jax.random.key(9)  # of tell, which has no use for it
SMALL = {"num_elite_candidates": 2, "num_validation_episodes": 3}


def ga(**changes):
    settings = {"population_size": 8, "num_parents": 3, "mutation_std": 0.1, **SMALL}
    return evolution.GA(**settings | changes)


def nothing(returns):
    """Behaviours where none are recorded."""
    return jnp.zeros((*returns.shape, 0))


def played(scores, episodes=1):
    """An evaluation in which member i returned `scores[i]` in every episode, and took 7 + i timesteps."""
    returns = jnp.broadcast_to(jnp.asarray(scores, jnp.float32)[:, None], (len(scores), episodes))
    return Evaluation(
        returns,
        7 + jnp.arange(len(scores))[:, None] + jnp.zeros(returns.shape, int),
        jnp.ones(returns.shape, bool),
        nothing(returns),
    )


def generation(strategy, state, scores, validation, key=0):
    """One generation with the given training and validation scores; returns the state and what was asked."""
    asked = []
    for phase, result in zip(strategy.phases, (scores, validation), strict=False):
        members, state = phase.ask(jax.random.key(key), state, CODE)
        asked.append(members)
        state, metrics = phase.tell(KEY, state, members, played(result, phase.num_episodes), CODE)
    return state, asked, metrics


def same_arrays(one, other):
    return all(x is y for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def row(tree, i):
    return jax.tree.map(lambda x: np.asarray(x[i]), tree)


def member(asked, i):
    return population.decode(CODE, asked.bases, population.Member(*(x[i] for x in asked[1:5])))


def test_first_generation_is_initial_noise_and_the_best_become_parents():
    strategy = ga()
    state = strategy.init(jax.random.key(0), CODE)
    scores = [1.0, 5.0, 2.0, 8.0, 3.0, 0.0, 7.0, 4.0]
    state, (offspring, candidates), _ = generation(strategy, state, scores, [1.0, 2.0])
    assert offspring.initial.all()
    assert len(np.unique(offspring.seed)) == 8
    # Candidates are the two best; the second of them won validation.
    np.testing.assert_array_equal(candidates.seed, offspring.seed[jnp.array([3, 6])])
    np.testing.assert_array_equal(candidates.episodes, [3, 3])
    for base, best in ((0, 3), (1, 6), (2, 1), (3, 6)):  # three parents, and the elite behind them
        jax.tree.map(np.testing.assert_array_equal, row(state.bases, base), member(offspring, best))
    assert state.score.selecting == 2.0
    np.testing.assert_array_equal(state.expected_length, [10, 13, 8, 13])
    again, state = strategy.phases[0].ask(jax.random.key(1), state, CODE)
    np.testing.assert_array_equal(again.priority, state.expected_length[again.parent])


def test_later_generations_mutate_parents_and_keep_the_elite():
    strategy = ga()
    state = strategy.init(jax.random.key(0), CODE)
    state, _, _ = generation(strategy, state, range(8), [1.0, 2.0])
    old = state
    scores = [9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    state, (offspring, candidates), metrics = generation(strategy, state, scores, [5.0, 1.0], key=1)
    assert not offspring.initial.any()
    assert set(np.asarray(offspring.parent).tolist()) <= {0, 1, 2}  # the elite is no parent unless it is among them
    np.testing.assert_array_equal(offspring.scale, np.float32(0.1))
    # The old elite is a candidate, unmutated, before the best of training; here it wins and is the last parent.
    assert candidates.seed[1] == offspring.seed[0]
    assert candidates.scale[0] == 0
    jax.tree.map(np.testing.assert_array_equal, member(candidates, 0), row(old.bases, 3))
    for base, best in ((0, 0), (1, 7)):
        jax.tree.map(np.testing.assert_array_equal, row(state.bases, base), member(offspring, best))
    for base in (2, 3):
        jax.tree.map(np.testing.assert_array_equal, row(state.bases, base), row(old.bases, 3))
    assert not metrics["elite_is_new"]


def test_elite_among_the_parents_displaces_nobody():
    strategy = ga()
    state = strategy.init(jax.random.key(0), CODE)
    state, (offspring, _), _ = generation(strategy, state, range(8), [2.0, 1.0])
    for base, best in ((0, 7), (1, 6), (2, 5), (3, 7)):
        jax.tree.map(np.testing.assert_array_equal, row(state.bases, base), member(offspring, best))


def test_an_elite_from_behind_the_parents_takes_the_last_place():
    strategy = ga(num_parents=1)
    state = strategy.init(jax.random.key(0), CODE)
    state, (offspring, _), _ = generation(strategy, state, range(8), [1.0, 2.0])
    for base in (0, 1):  # the second of training, which won validation, is the only parent and the elite
        jax.tree.map(np.testing.assert_array_equal, row(state.bases, base), member(offspring, 6))


@dataclasses.dataclass(frozen=True)
class Last(evolution.Returns):
    """Ranks the lowest returns first."""

    def rank(self, state, seed, evaluation):
        return -evaluation.returns.mean(1), state, {}


@pytest.mark.parametrize("validation", [[2.0, 1.0], [1.0, 2.0]])
def test_an_elite_that_the_objective_ranks_last_takes_the_last_place(validation):
    """Parents are the best by the objective, candidates by returns."""
    strategy = ga(num_parents=3, objective=Last())
    state = strategy.init(jax.random.key(0), CODE)
    state, (offspring, _), _ = generation(strategy, state, range(8), validation)
    elite = 7 if validation[0] == 2.0 else 6
    for base, best in enumerate((0, 1, elite, elite)):
        jax.tree.map(np.testing.assert_array_equal, row(state.bases, base), member(offspring, best))


def test_an_elite_that_the_objective_ranks_higher_is_there_once():
    strategy = ga(num_parents=3, num_elite_candidates=7, objective=Last())
    state = strategy.init(jax.random.key(0), CODE)
    state, (offspring, _), _ = generation(strategy, state, range(8), [1.0] * 6 + [2.0])
    for base, best in enumerate((0, 1, 2, 1)):
        jax.tree.map(np.testing.assert_array_equal, row(state.bases, base), member(offspring, best))


def test_the_elite_gives_way_only_to_a_better_one():
    strategy = ga()
    state = strategy.init(jax.random.key(0), CODE)
    state, _, _ = generation(strategy, state, range(8), [3.0, 3.0])
    for validation, stays in (([3.0, 3.0], True), ([3.0, 3.1], False)):
        after, _, metrics = generation(strategy, state, range(8), validation, key=1)
        assert bool(metrics["elite_is_new"]) is not stays
        same = jax.tree.map(lambda x, y: bool((x == y).all()), row(after.bases, 3), row(state.bases, 3))
        assert all(jax.tree.leaves(same)) is stays


@pytest.mark.parametrize(("pool_validations", "third_is_new"), [(False, True), (True, False)])
def test_pooled_validations_outweigh_an_unlucky_one(pool_validations, third_is_new):
    strategy = ga(pool_validations=pool_validations)
    state, new = strategy.init(jax.random.key(0), CODE), []
    # The elite's means are 9 and 1, which is 5 over both; 4 exceeds the latest alone, and 8 all that is known.
    for number, validation in enumerate([[2.0, 1.0], [9.0, 0.0], [1.0, 4.0], [6.0, 8.0]]):
        state, _, metrics = generation(strategy, state, range(8), validation, key=number)
        new.append(bool(metrics["elite_is_new"]))
    np.testing.assert_array_equal(new, [True, False, third_is_new, True])
    np.testing.assert_array_equal(float(metrics["elite_selecting_score"]), 8.0)


@pytest.mark.parametrize("pool_validations", [False, True])
def test_an_elite_whose_validation_is_nan_is_last(pool_validations):
    strategy = ga(pool_validations=pool_validations)
    state = strategy.init(jax.random.key(0), CODE)
    state, _, _ = generation(strategy, state, range(8), [9.0, 1.0])
    _, _, metrics = generation(strategy, state, range(8), [np.nan, 0.0], key=1)
    assert metrics["elite_is_new"]
    assert metrics["validation_mean"] == 0.0


def test_the_score_is_the_mean_of_all_validations_but_the_selecting_one():
    strategy = ga()
    state, seen = strategy.init(jax.random.key(0), CODE), []
    for number, validation in enumerate([[1.0, 2.0], [1.0, 0.5], [4.0, 0.0], [0.0, 3.0]]):
        state, _, metrics = generation(strategy, state, range(8), validation, key=number)
        names = ("validation_mean", "elite_score", "elite_episodes", "elite_selecting_score")
        seen.append([float(metrics[name]) for name in names])
    # Three episodes a generation; the fourth brings another elite, whose 3.0 is no part of its score.
    np.testing.assert_array_equal(seen, [[2, np.nan, 0, 2], [1, 1, 3, 2], [4, 2.5, 6, 2], [3, np.nan, 0, 3]])


def test_one_episode_has_no_standard_error():
    strategy = ga(num_validation_episodes=1)
    state = strategy.init(jax.random.key(0), CODE)
    _, _, metrics = generation(strategy, state, range(8), [1.0, 2.0])
    assert np.isnan(metrics["validation_standard_error"])


def test_nan_ranks_last_and_is_counted():
    strategy = ga()
    state = strategy.init(jax.random.key(0), CODE)
    offspring = strategy.phases[0]
    asked, state = offspring.ask(jax.random.key(0), state, CODE)
    scores = [np.nan, 1.0, np.nan, 3.0, 2.0, np.nan, -4.0, -9.0]
    state, metrics = offspring.tell(KEY, state, asked, played(scores), CODE)
    np.testing.assert_array_equal(state.parents.seed, asked.seed[jnp.array([3, 4, 1])])
    assert metrics["num_nan"] == 3
    assert metrics["training_best"] == 3.0
    assert metrics["training_mean"] == pytest.approx(np.mean([1, 3, 2, -4, -9]))
    assert np.isfinite([float(v) for v in metrics.values()]).all()


def test_fitness_is_the_mean_over_episodes():
    strategy = ga(num_episodes=2)
    asked, state = strategy.phases[0].ask(jax.random.key(0), strategy.init(jax.random.key(0), CODE), CODE)
    np.testing.assert_array_equal(asked.episodes, 2)
    returns = jnp.array([[0.0, 10.0], *[[4.0, 4.0]] * 7])
    result = Evaluation(returns, jnp.ones((8, 2), jnp.int32), jnp.ones((8, 2), bool), nothing(returns))
    state, _ = strategy.phases[0].tell(KEY, state, asked, result, CODE)
    assert state.candidates.seed[0] == asked.seed[0]


def test_random_search_has_no_parents():
    strategy = evolution.GA.random_search(population_size=8, **SMALL)
    state = strategy.init(jax.random.key(0), CODE)
    state, _, _ = generation(strategy, state, range(8), [2.0, 1.0])
    old = state
    state, (members, candidates), metrics = generation(strategy, state, range(8), [5.0, 1.0], key=1)
    assert members.initial.all()
    assert not candidates.initial[0]
    assert not metrics["elite_is_new"]
    jax.tree.map(np.testing.assert_array_equal, row(state.bases, 0), row(old.bases, 0))


def test_test_phase_plays_the_elite():
    strategy = ga(num_test_episodes=4)
    state = strategy.init(jax.random.key(0), CODE)
    state, _, _ = generation(strategy, state, range(8), [2.0, 1.0])
    asked, state = strategy.phases[2].ask(jax.random.key(0), state, CODE)
    assert strategy.phases[2].role == "test"
    np.testing.assert_array_equal(asked.episodes, [4])
    jax.tree.map(np.testing.assert_array_equal, member(asked, 0), row(state.bases, 3))
    returns = jnp.array([[1.0, 2.0, 3.0, 6.0]])
    _, metrics = strategy.phases[2].tell(
        KEY, state, asked, Evaluation(returns, returns.astype(int), returns > 0, nothing(returns)), CODE
    )
    assert metrics["test_score"] == 3.0
    assert metrics["test_standard_error"] == pytest.approx(np.std([1, 2, 3, 6], ddof=1) / 2)


def test_jit_equals_eager_and_compiles_once():
    strategy = ga()
    jitted = [(jax.jit(r.ask), jax.jit(r.tell)) for r in strategy.phases]
    compiled = evolution.compiled_phases(strategy)
    state = strategy.init(jax.random.key(0), CODE)
    for g in range(3):
        for phase, (ask, tell), whole in zip(strategy.phases, jitted, compiled, strict=True):
            key = jax.random.key(g)
            asked, state = ask(key, state, CODE)
            jax.tree.map(np.testing.assert_array_equal, (asked, state), phase.ask(key, state, CODE))
            result = played(np.random.default_rng(g).standard_normal(phase.num_members), phase.num_episodes)
            eager, _ = phase.tell(KEY, state, asked, result, CODE)
            before, state = state, tell(KEY, state, asked, result, CODE)[0]
            jax.tree.map(np.testing.assert_array_equal, state, eager)
            jax.tree.map(np.testing.assert_array_equal, whole.tell(KEY, before, asked, result, CODE)[0], eager)
            # Bases that are passed on are the same arrays.
            population, after = whole.ask(key, before, CODE)
            assert same_arrays(population.bases, before.bases)
            assert same_arrays(after, before)
            told, _ = whole.tell(KEY, before, asked, result, CODE)
            assert same_arrays(told.bases, before.bases) is (phase.role == "training")
    assert [f._cache_size() for pair in jitted for f in pair] == [1] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_parents": 9}, "num_parents=9 exceeds population_size=8"),
        ({"num_parents": -1}, "num_parents must be an integer of at least 0, got -1"),
        ({"num_parents": 2.0}, "num_parents must be an integer of at least 0, got 2.0"),
        ({"mutation_std": 0.0}, "mutation_std=0.0"),
        ({"mutation_std": float("nan")}, "mutation_std=nan"),
        ({"num_parents": 0, "mutation_std": 0.1}, r"mutation_std=0.1 and .* random search \(num_parents=0\)"),
        ({"population_size": 0}, "population_size must be an integer of at least 1, got 0"),
        ({"num_elite_candidates": 9}, "num_elite_candidates=9 exceeds"),
        ({"num_elite_candidates": 1}, "num_elite_candidates must be an integer of at least 2, got 1"),
        ({"num_validation_episodes": 2.5}, "num_validation_episodes must be an integer of at least 1, got 2.5"),
        ({"num_test_episodes": -1}, "num_test_episodes must be an integer of at least 0, got -1"),
        ({"num_episodes": 0}, "num_episodes must be an integer of at least 1, got 0"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        ga(**changes)
