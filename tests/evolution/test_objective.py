"""Objectives: what each of them follows, ranks and archives."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest

from volvox import evolution, networks, population, report, rollout
from volvox.envs import hard_maze
from volvox.evolution import ES, GA, Novelty, Returns
from volvox.evolution.strategy import centered_ranks
from volvox.report import rows as log
from volvox.training import train
from volvox.types import Evaluation

ENV = probes.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
CODE = population.encoding(networks.genotype(networks.MLP(2, hidden=()), ENV.spec), population.Table(size=5_000))
BEHAVIOR = rollout.Last("elapsed_steps", 1)
KEY = jax.random.key(9)  # of tell, which has no use for it
SMALL = {"behavior": BEHAVIOR, "num_neighbors": 2, "archive_size": 20}
KINDS = {"ns_es": Novelty.ns_es, "nsr_es": Novelty.nsr_es, "nsra_es": Novelty.nsra_es}


def novelty_es(kind, num_bases=1, es=None, **changes):
    objective = KINDS[kind](**SMALL | changes)
    return ES(population_size=8, num_validation_episodes=1, num_bases=num_bases, objective=objective, **(es or {}))


def played(returns, behaviors, valid=None):
    returns = jnp.asarray(returns, jnp.float32)[:, None]
    valid = jnp.ones(returns.shape, bool) if valid is None else jnp.asarray(valid)[:, None]
    return Evaluation(returns, returns.astype(int), valid, jnp.asarray(behaviors, jnp.float32)[:, None, None])


def first_pairs(strategy, base_behaviors):
    """State after the first validation, and the pairs then asked for."""
    validation, pairs = strategy.phases[:2]
    state = strategy.init(jax.random.key(0), CODE)
    asked, state = validation.ask(jax.random.key(0), state, CODE)
    np.testing.assert_array_equal(asked.episodes, [1] * len(base_behaviors) + [0])  # the first time all but the best
    behaviors = [*base_behaviors, -5.0]  # what the best did must not count
    state, _ = validation.tell(KEY, state, asked, played(np.zeros(len(behaviors)), behaviors), CODE)
    asked, state = pairs.ask(jax.random.key(1), state, CODE)
    return state, asked


@pytest.mark.slow
def test_the_archive_begins_with_every_member_and_gains_the_moved_one():
    strategy = novelty_es("ns_es", num_bases=3)
    state, asked = first_pairs(strategy, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(state.objective.archive.behaviors[:3, 0], [1, 2, 3])
    state, _ = strategy.phases[1].tell(KEY, state, asked, played(np.zeros(8), np.arange(8)), CODE)
    moved = int(state.updated)
    assert moved == asked.parent[0]
    again, state = strategy.phases[0].ask(jax.random.key(2), state, CODE)
    plays = (np.arange(4) == moved) | (np.arange(4) == 3)
    np.testing.assert_array_equal(again.episodes, plays)
    behaviors = np.where(np.arange(4) == moved, 9.0, -5.0)  # those that did not play must not count, nor the best
    state, _ = strategy.phases[0].tell(KEY, state, again, played(np.zeros(4), behaviors, plays), CODE)
    assert state.objective.archive.added == 4
    assert state.objective.archive.behaviors[3, 0] == 9.0
    assert state.objective.behaviors[moved, 0] == 9.0


def test_novel_members_are_moved_more_often():
    strategy = novelty_es("ns_es", num_bases=3, num_neighbors=3)
    state, _ = first_pairs(strategy, [0.0, 1.0, 10.0])
    # Means of the distances to all three of the archive: 11/3, 10/3, 19/3.
    ask = jax.jit(jax.vmap(lambda key: strategy.phases[1].ask(key, state, CODE)[0].parent[0]))
    counts = np.bincount(np.asarray(ask(jax.random.split(jax.random.key(0), 4_000))), minlength=3)
    np.testing.assert_allclose(counts / 4_000, np.array([11, 10, 19]) / 40, atol=0.03)


@pytest.mark.slow_except("nsr_es-0.5", "nsra_es-1.0")
@pytest.mark.parametrize(("kind", "reward_share"), [("ns_es", 0.0), ("nsr_es", 0.5), ("nsra_es", 1.0)])
def test_what_is_followed(kind, reward_share):
    strategy = novelty_es(kind, es={"optimizer": optax.sgd, "learning_rate": 1.0, "l2_coefficient": 0.0})
    state, asked = first_pairs(strategy, [0.0])
    returns, behaviors = np.random.RandomState(0).randn(2, 8)
    new, _ = strategy.phases[1].tell(KEY, state, asked, played(returns, behaviors), CODE)

    def ranks(values):
        return values.argsort().argsort() / 7 - 0.5

    followed = reward_share * ranks(returns) + (1 - reward_share) * ranks(abs(behaviors))
    step = population.weighted_noise(CODE, asked.seed[::2], jnp.asarray((followed[::2] - followed[1::2]) / 8))
    for base, change, old in zip(*map(jax.tree.leaves, (new.bases, step, state.bases)), strict=True):
        np.testing.assert_allclose(base[0], old[0] + change, rtol=1e-4, atol=1e-5)


def test_nsra_lowers_the_weight_of_returns_where_they_stagnate():
    strategy = novelty_es("nsra_es", num_bases=1, patience=2, reward_weight_step=0.25)
    validation, pairs = strategy.phases[:2]
    state = strategy.init(jax.random.key(0), CODE)
    weights = []
    for score in (1.0, 0.0, 0.5, 1.0, 0.0, 2.0, 0.0):
        asked, state = validation.ask(jax.random.key(0), state, CODE)
        state, metrics = validation.tell(KEY, state, asked, played([score, 0.0], [score, 0.0]), CODE)
        weights.append(float(metrics["reward_weight"]))
        asked, state = pairs.ask(jax.random.key(1), state, CODE)
        state, _ = pairs.tell(KEY, state, asked, played(np.zeros(8), np.zeros(8)), CODE)
    assert weights == [1.0, 1.0, 0.75, 0.75, 0.5, 0.75, 0.75]


def test_the_first_score_is_no_improvement():
    strategy = novelty_es("nsra_es", num_bases=1, reward_weight_step=0.25)
    strategy = dataclasses.replace(strategy, objective=dataclasses.replace(strategy.objective, reward_weight=0.5))
    validation, weights = strategy.phases[0], []
    state = strategy.init(jax.random.key(0), CODE)
    for score in (1.0, 0.5, 2.0):
        asked, state = validation.ask(jax.random.key(0), state, CODE)
        state, metrics = validation.tell(KEY, state, asked, played([score, 0.0], [score, 0.0]), CODE)
        weights.append(float(metrics["reward_weight"]))
    assert weights == [0.5, 0.5, 0.75]


def test_a_longer_cutoff_is_no_improvement():
    """Longer episodes have higher returns; the first ones do not raise the weight of returns."""
    strategy = novelty_es("nsra_es", num_bases=1, patience=2, reward_weight_step=0.25)
    validation, weights = strategy.phases[0], []
    state = strategy.init(jax.random.key(0), CODE)
    for score in (1.0, 0.0, 0.5, None, 8.0, 7.0, 8.0, 9.0):
        if score is None:
            state = strategy.forget_scores(state)
            assert np.isnan(state.score.mean)
            continue
        asked, state = validation.ask(jax.random.key(0), state, CODE)
        state, metrics = validation.tell(KEY, state, asked, played([score, 0.0], [score, 0.0]), CODE)
        weights.append(float(metrics["reward_weight"]))
    assert weights == [1.0, 1.0, 0.75, 0.75, 0.75, 0.5, 0.75]


def test_means_leave_out_what_is_not_there():
    """Neither a behaviour that is not finite, nor a candidate without a return, is a 0."""
    training, validation = small_ga(Novelty(**SMALL)).phases[:2]
    strategy = small_ga(Novelty(**SMALL))
    state = strategy.init(jax.random.key(0), CODE)
    asked, state = training.ask(jax.random.key(0), state, CODE)
    behaviors = [0.0, 1.0, 3.0, np.nan, 0.0, 1.0, 3.0, np.inf]
    state, metrics = training.tell(KEY, state, asked, played(np.arange(8.0), behaviors), CODE)
    # The nearest two of 0: 0 and 1; of 1: 1 and 0; of 3: 3 and 1.
    assert float(metrics["novelty_mean"]) == pytest.approx((0.5 + 0.5 + 1) / 3)
    asked, state = validation.ask(jax.random.key(1), state, CODE)
    count = len(asked.seed)
    _, metrics = validation.tell(KEY, state, asked, played([np.nan, *[4.0] * (count - 1)], [0.0] * count), CODE)
    assert float(metrics["candidates_mean"]) == 4.0


def test_the_most_novel_are_parents_and_the_best_is_the_elite():
    strategy = GA(
        population_size=6,
        num_parents=2,
        mutation_std=0.1,
        objective=Novelty(behavior=BEHAVIOR, num_neighbors=2, archive_size=10, num_archived=2),
        num_elite_candidates=2,
        num_validation_episodes=1,
    )
    state = strategy.init(jax.random.key(0), CODE)
    training, validation = strategy.phases
    asked, state = training.ask(jax.random.key(1), state, CODE)
    behaviors = np.array([0.0, np.nan, 0.2, 5.0, 9.0, 0.3])
    state, metrics = training.tell(KEY, state, asked, played([1, 2, 9, 3, 4, 5], behaviors), CODE)
    # Of the others: the two nearest.
    assert metrics["novelty_best"] == pytest.approx((4.0 + 8.7) / 2)
    assert metrics["parents_mean"] == (4 + 3) / 2
    np.testing.assert_array_equal(state.parents.seed, asked.seed[jnp.array([4, 3])])
    archived = np.sort(behaviors[np.argsort(asked.seed)[:2]])
    np.testing.assert_allclose(np.sort(state.objective.archive.behaviors[:2, 0]), archived)
    candidates, state = validation.ask(jax.random.key(2), state, CODE)
    assert candidates.seed[0] == asked.seed[2]
    state, _ = validation.tell(KEY, state, candidates, played([7.0, 1.0], [0.0, 0.0]), CODE)
    np.testing.assert_array_equal(state.survivors.seed, asked.seed[jnp.array([4, 3, 2])])


def test_a_member_without_a_return_is_last_however_novel_it_is():
    novelty = Novelty(behavior=BEHAVIOR, num_neighbors=1, archive_size=10, num_archived=1)
    evaluation = played([1, np.nan, 2, 3], [0.0, 99.0, 1.0, 3.0])
    for reward_weight in (0.0, 0.5):
        settings = dataclasses.replace(novelty, reward_weight=reward_weight)
        state = settings.init(0)
        scores, after, metrics = settings.rank(state, jnp.array([3, 0, 1, 2]), evaluation)  # the second is archived
        assert scores.argmin() == 1
        assert metrics["novelty_best"] == 2  # of the last, whose neighbour is the third
        assert after.archive.held.sum() == 0
        state = state._replace(archive=state.archive.add(jnp.zeros((1, 1)), jnp.ones(1, bool)))
        assert settings.weigh(state, evaluation, centered_ranks).argmin() == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"archive_size": 10**9}, "would take 4.0 GB"),
        ({"archive_size": 1}, "archive_size=1 is smaller than num_neighbors=2"),
        ({"num_neighbors": 0}, "num_neighbors"),
        ({"num_archived": 0}, "num_archived"),
        ({"behavior": Returns().behavior}, "nothing could be novel"),
        ({"reward_weight": 1.5}, "reward_weight=1.5"),
        ({"reward_weight_step": 0.0}, "reward_weight_step=0.0"),
        ({"patience": 0}, "patience"),
        ({"patience": 40}, "patience=40 needs a share that changes; give reward_weight_step too"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Novelty(**SMALL | changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: novelty_es("ns_es", num_bases=30), "must hold the 30"),
        (lambda: GA(population_size=64, objective=Novelty(**SMALL, num_archived=30)), "must hold the 30"),
        (lambda: small_ga(Novelty(**SMALL | {"num_neighbors": 8})), "num_neighbors=8 must be below population_size=8"),
        (lambda: small_ga(Novelty(**SMALL, num_archived=8)), "num_archived=8 must be below population_size=8"),
    ],
)
def test_settings_that_do_not_fit_the_strategy_are_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def small_ga(objective):
    return GA(population_size=8, num_parents=2, num_elite_candidates=2, num_validation_episodes=1, objective=objective)


def test_a_genetic_algorithm_may_weigh_novelty_against_returns():
    """Member 0 is best by returns, member 7 by novelty; the weight decides who is the first parent."""
    returns, behaviors = np.array([9.0, 1, 2, 3, 4, 5, 6, 0]), np.array([0.25, 0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 9.0])
    first = []
    for weight in (0.0, 1.0):
        strategy = small_ga(Novelty(**SMALL, reward_weight=weight))
        state = strategy.init(jax.random.key(0), CODE)
        asked, state = strategy.ask_offspring(jax.random.key(1), state, CODE)
        state, metrics = strategy.tell_offspring(KEY, state, asked, played(returns, behaviors), CODE)
        assert metrics["reward_weight"] == weight
        first.append(int(np.flatnonzero(asked.seed == state.parents.seed[0])[0]))
    assert first == [7, 0]


def test_returns_follow_the_mean_over_episodes():
    objective = Returns()
    state = objective.init(0)
    evaluation = played([3.0, 1.0, np.nan], np.zeros(3))
    scores, state, metrics = objective.rank(state, jnp.arange(3), evaluation)
    np.testing.assert_array_equal(scores, [3.0, 1.0, -np.inf])
    assert (state, metrics, objective.behavior.size) == ((), {}, 0)


def test_a_base_without_a_return_is_neither_archived_nor_novel():
    objective = Novelty(**SMALL | {"num_neighbors": 1})
    everyone = jnp.ones(3, bool)
    state, metrics = objective.observe(objective.init(3), everyone, played([1.0, np.nan, 2.0], [0.0, 50.0, 4.0]))
    np.testing.assert_array_equal(state.archive.behaviors[:3, 0], [0.0, 4.0, 0.0])
    assert state.archive.added == 2
    np.testing.assert_array_equal(state.behaviors[:, 0], [0.0, np.nan, 4.0])
    # The next ones are novel, so the one without a return is never drawn.
    state, metrics = objective.observe(state, everyone, played([1.0, np.nan, 2.0], [9.0, 50.0, 7.0]))
    assert metrics["novelty_mean"] == 0  # of those that are archived now
    state = state._replace(behaviors=jnp.array([[20.0], [np.nan], [30.0]]))
    drawn = {int(objective.choose(jax.random.key(i), state)) for i in range(50)}
    assert drawn == {0, 2}


def test_a_behavior_that_the_environment_does_not_tell_is_refused():
    strategy = novelty_es("ns_es", behavior=rollout.Last("ram", 128))
    with pytest.raises(ValueError, match=r"'ram'.*elapsed_steps"):
        evolution.evolve(strategy, networks.MLP(2, hidden=()), ENV)


@pytest.mark.parametrize(("cutoff", "most"), [(7, 7), ("adaptive:4,0.1,2,9", 9)])
def test_a_trajectory_must_cover_the_largest_cutoff(cutoff, most):
    strategy = novelty_es("ns_es", behavior=rollout.Trajectory("elapsed_steps", 1, every=2, length=3))
    with pytest.raises(ValueError, match=rf"= 6 timesteps, and episodes last up to {most}"):
        evolution.evolve(strategy, networks.MLP(2, hidden=()), ENV, max_episode_steps=cutoff)
    evolution.evolve(strategy, networks.MLP(2, hidden=()), ENV, max_episode_steps=6)


@pytest.mark.slow
def test_a_run_that_is_logged_and_resumed_can_be_drawn(tmp_path):
    strategy = GA(
        population_size=6,
        num_parents=2,
        mutation_std="linear:0.5,0.1,3",
        objective=Novelty(behavior=BEHAVIOR, num_neighbors=2, archive_size=10),
        num_elite_candidates=2,
        num_validation_episodes=1,
    )
    algorithm = evolution.evolve(strategy, networks.MLP(2, hidden=()), ENV, noise=population.Table(size=5_000))
    for steps in (2, 4):
        run = train(algorithm, seed=0, steps=steps, run_dir=tmp_path / "run", log=True, resume=True, progress=False)
    logged = log.read_log(tmp_path / "run" / "log")
    assert list(logged) == [1, 2, 3, 4]
    for number, row in enumerate(run.metrics, start=1):
        assert logged[number]["fitness"].max() == pytest.approx(row["training_best"])
        np.testing.assert_array_equal(logged[number]["behavior"], np.full((6, 1), 3.0))
    np.testing.assert_allclose(
        [logged[number]["scale"][0] for number in logged], [0.5, 0.1 + 0.8 / 3, 0.1 + 0.4 / 3, 0.1], rtol=1e-6
    )
    report.population.cloud(tmp_path / "run", tmp_path / "cloud.png")
    report.population.descent(tmp_path / "run", tmp_path / "descent.png")
    with pytest.raises(ValueError, match="needs a run_dir"):
        train(algorithm, seed=0, steps=1, log=True)


@pytest.mark.slow
def test_novelty_spreads_over_the_maze():
    """A few generations in the hard maze: the archive covers more of it than the first generation did."""
    env = hard_maze(num_envs=64, groups=2)
    strategy = GA(
        population_size=64,
        num_parents=8,
        mutation_std=0.3,
        objective=Novelty(behavior=rollout.Last("position", 2), num_archived=8),
        num_elite_candidates=2,
        num_validation_episodes=1,
    )
    algorithm = evolution.evolve(strategy, networks.MLP(2, hidden=(8,)), env, noise=population.Table())
    state = algorithm.init(jax.random.key(0))
    rows = []
    for _ in range(6):
        state, metrics = algorithm.step(state)
        rows.append(metrics)
    held = np.asarray(state.strategy.objective.archive.behaviors)[:48]
    assert rows[-1]["archive_size"] == 48
    assert len({tuple(cell) for cell in (held[24:] // 20).astype(int)}) > len(
        {tuple(cell) for cell in (held[:24] // 20).astype(int)}
    )
    restored = algorithm.restore(algorithm.save(state))
    np.testing.assert_array_equal(restored.strategy.objective.archive.behaviors[:48], held)
