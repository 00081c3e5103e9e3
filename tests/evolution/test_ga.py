"""The genetic algorithm's protocol, generation by generation with made-up returns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import volvox as vx
from volvox import networks, population
from volvox.population import decoding

ENV = probes.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
NOISE = population.Table(size=5_000)
CODE = population.encoding(networks.genotype(networks.MLP(2, hidden=()), ENV.spec), NOISE)
VALIDATION = {"num_elite_candidates": 2, "num_validation_episodes": 3}
FIRST = range(8)


@pytest.fixture(scope="module")
def evolved(scripted):
    """Returns (algorithm, workers) of settings; tests share them, because compilation takes the most time."""

    @functools.cache
    def make(strategy, validation):
        workers, network = scripted(), networks.MLP(2, hidden=())
        return vx.evolve(strategy, network, ENV, noise=NOISE, validation=validation, workers=workers), workers

    return make


@pytest.fixture
def generations(evolved):
    """Plays generations with the given returns; returns (states, rows, populations that were played)."""

    def play(*scores, validation=None, behaviors=(), **changes):
        strategy = vx.GA(**{"population_size": 8, "num_parents": 3, "mutation_std": 0.1, **changes})
        algorithm, workers = evolved(strategy, vx.Validation(**VALIDATION | (validation or {})))
        workers.begin(*scores, behaviors=behaviors)
        states, rows = workers.play(algorithm)
        return states[1:], rows, workers

    return play


def row(tree, i):
    return jax.tree.map(lambda x: np.asarray(x[i]), tree)


def member(asked, i):
    return decoding.decode(CODE, asked.bases, decoding.Member(*(x[i] for x in asked[1:5])))


def check_bases(state, asked, best):
    for base, i in enumerate(best):
        jax.tree.map(np.testing.assert_array_equal, row(state.bases, base), member(asked, i))


def test_first_generation_is_initial_noise_and_the_best_become_parents(generations):
    scores = [1.0, 5.0, 2.0, 8.0, 3.0, 0.0, 7.0, 4.0]
    (state, _), (first, _), workers = generations(scores, [1.0, 2.0], FIRST, [0.0, 0.0])
    offspring, candidates, again, _ = workers.asked
    assert offspring.initial.all()
    assert len(np.unique(offspring.seed)) == 8
    # The candidates are the two best members; the second of them won validation.
    np.testing.assert_array_equal(candidates.seed, offspring.seed[jnp.array([3, 6])])
    np.testing.assert_array_equal(candidates.episodes, [3, 3])
    check_bases(state, offspring, (3, 6, 1, 6))  # three parents, and the elite behind them
    assert first["elite_selecting_score"] == 2.0
    np.testing.assert_array_equal(again.priority, np.array([10, 13, 8])[np.asarray(again.parent)])


def test_later_generations_mutate_parents_and_keep_the_elite(generations):
    scores = [9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    scored, schedule = (FIRST, [1.0, 2.0], scores, [5.0, 1.0]), "linear:0.3,0.1,1"
    (old, state), rows, workers = generations(*scored, mutation_std=schedule)
    offspring, candidates = workers.asked[2:]
    assert not offspring.initial.any()
    assert set(np.asarray(offspring.parent).tolist()) <= {0, 1, 2}  # the elite is no parent unless it is among them
    np.testing.assert_array_equal(offspring.scale, np.float32(0.1))
    # The old elite is a candidate, unmutated, before the best of training; here it wins and is the last parent.
    assert candidates.seed[1] == offspring.seed[0]
    assert candidates.scale[0] == 0
    jax.tree.map(np.testing.assert_array_equal, member(candidates, 0), row(old.bases, 3))
    check_bases(state, offspring, (0, 7))
    for base in (2, 3):
        jax.tree.map(np.testing.assert_array_equal, row(state.bases, base), row(old.bases, 3))
    assert not rows[1]["elite_is_new"]
    # Populations stand on the bases that the lineage leads to.
    assert workers.lineages[2].seed.shape == workers.lineages[3].seed.shape == (1, 4)


def test_the_elite_is_a_parent_once(generations):
    (state,), _, workers = generations(FIRST, [2.0, 1.0])  # the best of training won: it displaces no parent
    check_bases(state, workers.asked[0], (7, 6, 5, 7))
    (state,), _, workers = generations(FIRST, [1.0, 2.0], num_parents=1)  # the second takes the last parent's place
    check_bases(state, workers.asked[0], (6, 6))


def test_the_elite_gives_way_only_to_a_better_one(generations):
    for last, stays in (([3.0, 3.0], True), ([3.0, 3.1], False)):
        states, rows, _ = generations(FIRST, [3.0, 3.0], FIRST, last)
        assert rows[1]["elite_is_new"] is not stays
        same = jax.tree.map(lambda x, y: bool((x == y).all()), *(row(state.bases, 3) for state in states))
        assert all(jax.tree.leaves(same)) is stays


@pytest.mark.parametrize(("pool_validations", "third_is_new"), [(False, True), (True, False)])
def test_pooled_validations_outweigh_an_unlucky_one(generations, pool_validations, third_is_new):
    # The elite's means are 9 and 1, which is 5 over both; 4 exceeds the latest alone, and 8 all that is known.
    validations = [[2.0, 1.0], [9.0, 0.0], [1.0, 4.0], [6.0, 8.0]]
    scores = [given for validation in validations for given in (FIRST, validation)]
    _, rows, _ = generations(*scores, validation={"pool_validations": pool_validations})
    np.testing.assert_array_equal([row["elite_is_new"] for row in rows], [True, False, third_is_new, True])
    assert rows[-1]["elite_selecting_score"] == 8.0


@pytest.mark.filterwarnings("ignore:.*ranked last")
@pytest.mark.parametrize("pool_validations", [False, True])
def test_an_elite_whose_validation_is_nan_is_last(generations, pool_validations):
    _, rows, _ = generations(FIRST, [9.0, 1.0], FIRST, [np.nan, 0.0], validation={"pool_validations": pool_validations})
    assert rows[1]["elite_is_new"]
    assert rows[1]["validation_mean"] == 0.0
    assert rows[1]["validation_num_nan"] == 1


def test_the_score_is_the_mean_of_all_validations_but_the_selecting_one(generations):
    validations = [[1.0, 2.0], [1.0, 0.5], [4.0, 0.0], [0.0, 3.0]]
    _, rows, _ = generations(*(given for validation in validations for given in (FIRST, validation)))
    names = ("validation_mean", "elite_score", "elite_episodes", "elite_selecting_score")
    seen = [[row[name] for name in names] for row in rows]
    # Three episodes a generation; the fourth brings another elite, whose 3.0 is no part of its score.
    np.testing.assert_array_equal(seen, [[2, np.nan, 0, 2], [1, 1, 3, 2], [4, 2.5, 6, 2], [3, np.nan, 0, 3]])


def test_one_episode_has_no_standard_error(generations):
    _, rows, _ = generations(FIRST, [1.0, 2.0], validation={"num_validation_episodes": 1})
    assert np.isnan(rows[0]["validation_standard_error"])


@pytest.mark.filterwarnings("ignore:.*ranked last")
def test_nan_ranks_last_and_is_counted(generations):
    scores = [np.nan, 1.0, np.nan, 3.0, 2.0, np.nan, -4.0, -9.0]
    (state,), (metrics,), workers = generations(scores, [1.0, 0.0])
    check_bases(state, workers.asked[0], (3, 4, 1, 3))
    assert metrics["num_nan"] == 3
    assert metrics["training_best"] == 3.0
    assert metrics["training_mean"] == pytest.approx(np.mean([1, 3, 2, -4, -9]))


def test_fitness_is_the_mean_over_episodes(generations):
    returns = np.array([[0.0, 10.0], *[[4.0, 4.0]] * 7])
    _, _, workers = generations(returns, [1.0, 0.0], num_episodes=2)
    np.testing.assert_array_equal(workers.asked[0].episodes, 2)
    assert workers.asked[1].seed[0] == workers.asked[0].seed[0]


def test_the_elite_plays_test_episodes(generations):
    returns = [[1.0, 2.0, 3.0, 6.0]]
    (state,), (metrics,), workers = generations(FIRST, [1.0, 2.0], returns, validation={"num_test_episodes": 4})
    assert workers.tested == [False, False, True]
    np.testing.assert_array_equal(workers.asked[2].episodes, [4])
    jax.tree.map(np.testing.assert_array_equal, member(workers.asked[2], 0), row(state.bases, 3))
    assert metrics["test_score"] == 3.0
    assert (metrics["training_frames"], metrics["frames"]) == (84, 84 + 45)  # test episodes are left out
    assert metrics["test_standard_error"] == pytest.approx(np.std([1, 2, 3, 6], ddof=1) / 2)


@pytest.mark.parametrize(
    "changes", [{"num_parents": 9}, {"mutation_std": 0.0}, {"num_parents": 0, "mutation_std": 0.1}]
)
def test_bad_settings_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        vx.GA(**{"population_size": 8, "num_parents": 3, **changes})
