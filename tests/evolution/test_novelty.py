"""Novelty: the archive, and the strategies that follow it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest

import volvox as vx
from volvox import ES, GA, Novelty, networks, population, rollout
from volvox.evolution.novelty import Archive, novelty
from volvox.evolution.strategy import centered_ranks, raw
from volvox.types import Evaluation

ENV = probes.target(size=2, num_envs=8, groups=2, max_episode_steps=3)
CODE = population.encoding(networks.genotype(networks.MLP(2, hidden=()), ENV.spec), population.Table(size=5_000))
BEHAVIOR = rollout.Last("elapsed_steps", 1)
ADD, NOVELTY = jax.jit(Archive.add), jax.jit(novelty, static_argnums=3)
KEY = jax.random.key(9)  # of tell, which has no use for it
SMALL = {"behavior": BEHAVIOR, "num_neighbors": 2, "archive_size": 20}
KINDS = {"ns_es": Novelty.ns_es, "nsr_es": Novelty.nsr_es, "nsra_es": Novelty.nsra_es}


def novelty_es(kind, num_bases=1, es=None, **changes):
    return ES(population_size=8, num_bases=num_bases, objective=KINDS[kind](**SMALL | changes), **(es or {}))


def small_ga(objective):
    return GA(population_size=8, num_parents=2, objective=objective)


def played(returns, behaviors):
    returns = jnp.asarray(returns, jnp.float32)[:, None]
    behaviors = jnp.asarray(behaviors, jnp.float32)[:, None, None]
    return Evaluation(returns, returns.astype(int), jnp.ones(returns.shape, bool), behaviors)


def validated(strategy, state, returns, behaviors):
    """The state after validation of the bases; the elite beside them is the last row."""
    returns, behaviors = [*returns, 0.0], [*behaviors, -5.0]  # the elite does not count
    candidates = strategy.candidates(state, None, None, CODE)
    return strategy.adopt(state, candidates, played(returns, behaviors), jnp.int32(0), CODE)


def first_pairs(strategy, base_behaviors):
    """State after the first validation, and the pairs that are asked for then."""
    state = strategy.init(jax.random.key(0), CODE)
    np.testing.assert_array_equal(strategy.candidates(state, None, None, CODE).episodes, [1] * len(base_behaviors))
    state, _ = validated(strategy, state, np.zeros(len(base_behaviors)), base_behaviors)
    asked, state = strategy.ask(jax.random.key(1), state, CODE)
    return state, asked


def test_novel_members_are_moved_more_often(compiled):
    strategy = compiled(novelty_es("ns_es", num_bases=3, num_neighbors=3))
    state, _ = first_pairs(strategy, [0.0, 1.0, 10.0])
    # Means of the distances to all three of the archive: 11/3, 10/3, 19/3.
    ask = jax.jit(jax.vmap(lambda key: strategy.ask(key, state, CODE)[0].parent[0]))
    counts = np.bincount(np.asarray(ask(jax.random.split(jax.random.key(0), 4_000))), minlength=3)
    np.testing.assert_allclose(counts / 4_000, np.array([11, 10, 19]) / 40, atol=0.03)


@pytest.mark.parametrize(("kind", "reward_share"), [("ns_es", 0.0), ("nsr_es", 0.5), ("nsra_es", 1.0)])
def test_updates_follow_returns_and_novelty(kind, reward_share, compiled):
    plain = {"optimizer": optax.sgd, "learning_rate": 1.0, "l2_coefficient": 0.0, "fitness_shaping": "z_scores"}
    strategy = compiled(novelty_es(kind, es=plain))
    state, asked = first_pairs(strategy, [0.0])
    returns, behaviors = np.random.RandomState(0).randn(2, 8)
    new, _ = strategy.tell(KEY, state, asked, played(returns, behaviors), CODE)

    def scores(values):
        return (values - values.mean()) / values.std()

    followed = reward_share * scores(returns) + (1 - reward_share) * scores(abs(behaviors))
    step = jax.jit(population.weighted_noise)(CODE, asked.seed[::2], jnp.asarray((followed[::2] - followed[1::2]) / 8))
    for base, change, old in zip(*map(jax.tree.leaves, (new.bases, step, state.bases)), strict=True):
        np.testing.assert_allclose(base[0], old[0] + change, rtol=1e-4, atol=1e-5)


def weights(strategy, scores):
    """The weight of returns after each validation; None is a longer cutoff."""
    state, found = strategy.init(jax.random.key(0), CODE), []
    for score in scores:
        if score is None:
            state = strategy.forget_scores(state)
            continue
        state, metrics = validated(strategy, state, [score], [score])
        found.append(float(metrics["reward_weight"]))
        asked, state = strategy.ask(jax.random.key(1), state, CODE)
        state, _ = strategy.tell(KEY, state, asked, played(np.zeros(8), np.zeros(8)), CODE)
    return found


def test_nsra_adapts_the_weight_of_returns(compiled):
    strategy = compiled(novelty_es("nsra_es", patience=2, reward_weight_step=0.25))
    scores = (1.0, 0.0, 0.5, 1.0, 0.0, 2.0, 0.0)
    assert weights(strategy, scores) == [1.0, 1.0, 0.75, 0.75, 0.5, 0.75, 0.75]
    # Longer episodes have higher returns; the first ones do not raise the weight.
    scores = (1.0, 0.0, 0.5, None, 8.0, 7.0, 8.0, 9.0)
    assert weights(strategy, scores) == [1.0, 1.0, 0.75, 0.75, 0.75, 0.5, 0.75]
    strategy = novelty_es("nsra_es", reward_weight_step=0.25)
    strategy = dataclasses.replace(strategy, objective=dataclasses.replace(strategy.objective, reward_weight=0.5))
    assert weights(compiled(strategy), (1.0, 0.5, 2.0)) == [0.5, 0.5, 0.75]  # the first score is no improvement


def test_the_most_novel_are_parents(compiled):
    objective = Novelty(behavior=BEHAVIOR, num_neighbors=2, archive_size=10, num_archived=2)
    strategy = compiled(GA(population_size=6, num_parents=2, mutation_std=0.1, objective=objective))
    asked, state = strategy.ask(jax.random.key(1), strategy.init(jax.random.key(0), CODE), CODE)
    behaviors = np.array([0.0, np.nan, 0.2, 5.0, 9.0, 0.3])
    state, metrics = strategy.tell(KEY, state, asked, played([1, 2, 9, 3, 4, 5], behaviors), CODE)
    assert metrics["novelty_best"] == pytest.approx((4.0 + 8.7) / 2)  # to the two nearest
    assert metrics["parents_mean"] == (4 + 3) / 2
    np.testing.assert_array_equal(state.survivors.seed, asked.seed[jnp.array([4, 3])])
    archived = np.sort(behaviors[np.argsort(asked.seed)[:2]])
    np.testing.assert_allclose(np.sort(state.novelty.archive.behaviors[:2, 0]), archived)


def test_a_member_without_a_return_is_last_however_novel_it_is():
    novelty = Novelty(behavior=BEHAVIOR, num_neighbors=1, archive_size=10, num_archived=1)
    evaluation = played([1, np.nan, 2, 3], [0.0, 99.0, 1.0, 3.0])
    for reward_weight in (0.0, 0.5):
        settings = dataclasses.replace(novelty, reward_weight=reward_weight)
        state = settings.init(0)
        order = jnp.array([3, 0, 1, 2])  # the second is archived
        scores, after, metrics = jax.jit(settings.rank)(state, order, evaluation)
        assert scores.argmin() == 1
        assert metrics["novelty_best"] == 2  # of the last, whose neighbour is the third
        assert after.archive.held.sum() == 0
        state = state._replace(archive=ADD(state.archive, jnp.zeros((1, 1)), jnp.ones(1, bool)))
        weigh = jax.jit(lambda state, settings=settings: settings.weigh(state, evaluation, centered_ranks))
        assert weigh(state).argmin() == 1


def test_novelty_of_a_member_is_the_mean_over_its_episodes():
    novelty = Novelty(behavior=BEHAVIOR, num_neighbors=1, archive_size=10, num_archived=1, reward_weight=0.0)
    state = novelty.init(0)
    state = state._replace(archive=ADD(state.archive, jnp.zeros((1, 1)), jnp.ones(1, bool)))
    behaviors = jnp.float32([[0, 2], [1, 1], [5, 7], [3, 9]])
    evaluation = Evaluation(behaviors, behaviors.astype(int) + 1, jnp.ones((4, 2), bool), behaviors[..., None])
    weights = jax.jit(lambda state: novelty.weigh(state, evaluation, raw))(state)
    np.testing.assert_allclose(weights, [1, 1, 6, 6])


@pytest.mark.parametrize("changes", [{"archive_size": 1}, {"reward_weight": 1.5}])
def test_bad_settings_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        Novelty(**SMALL | changes)


def test_a_genetic_algorithm_may_weigh_novelty_against_returns(compiled):
    """Member 0 is best by returns, member 7 by novelty; the weight decides who is the first parent."""
    returns, behaviors = np.array([9.0, 1, 2, 3, 4, 5, 6, 0]), np.array([0.25, 0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 9.0])
    first = []
    for weight in (0.0, 1.0):
        strategy = compiled(small_ga(Novelty(**SMALL, reward_weight=weight)))
        asked, state = strategy.ask(jax.random.key(1), strategy.init(jax.random.key(0), CODE), CODE)
        state, metrics = strategy.tell(KEY, state, asked, played(returns, behaviors), CODE)
        assert metrics["reward_weight"] == weight
        first.append(int(np.flatnonzero(asked.seed == state.survivors.seed[0])[0]))
    assert first == [7, 0]


def test_a_base_without_a_return_is_neither_archived_nor_novel():
    objective = Novelty(**SMALL | {"num_neighbors": 1})
    everyone, observe = jnp.ones(3, bool), jax.jit(objective.observe)
    state, metrics = observe(objective.init(3), everyone, played([1.0, np.nan, 2.0], [0.0, 50.0, 4.0]))
    np.testing.assert_array_equal(state.archive.behaviors[:3, 0], [0.0, 4.0, 0.0])
    assert state.archive.added == 2
    np.testing.assert_array_equal(state.behaviors[:, 0], [0.0, np.nan, 4.0])
    # The next ones are novel, so the one without a return is never drawn.
    state, metrics = observe(state, everyone, played([1.0, np.nan, 2.0], [9.0, 50.0, 7.0]))
    assert metrics["novelty_mean"] == 0  # all bases are archived now
    state = state._replace(behaviors=jnp.array([[20.0], [np.nan], [30.0]]))
    drawn = jax.jit(jax.vmap(lambda key: objective.choose(key, state)))(jax.random.split(jax.random.key(0), 50))
    assert set(drawn.tolist()) == {0, 2}


def test_a_behavior_that_the_environment_does_not_tell_is_refused():
    strategy = novelty_es("ns_es", behavior=rollout.Last("ram", 128))
    with pytest.raises(ValueError, match=r"'ram'.*elapsed_steps"):
        vx.evolve(strategy, networks.MLP(2, hidden=()), ENV)


def brute_force(behaviors, others, k):
    distances = np.sqrt(((behaviors[:, None].astype(float) - others[None]) ** 2).sum(-1))
    nearest = np.sort(distances, axis=1)[:, :k]
    return nearest.mean(1) if nearest.shape[1] else np.zeros(len(behaviors))


@pytest.mark.parametrize("held", [0, 1, 3, 40, 64, 700])  # of 700, the nearest are looked for block by block
def test_novelty_is_the_mean_distance_to_the_nearest_held(held):
    random = np.random.RandomState(0)
    # Far from the origin, where |a|^2 + |b|^2 - 2ab alone would lose all digits.
    room = 700 if held != 64 else 64
    behaviors, others = (1_000 + random.rand(n, 3).astype(np.float32) for n in (7, room))
    others[:2] = behaviors[:2]
    archive = ADD(Archive(jnp.zeros((room, 3)), jnp.int32(0)), others, np.arange(room) < held)
    got = NOVELTY(behaviors, archive.behaviors, archive.held, 5)
    np.testing.assert_allclose(got, brute_force(behaviors, others[:held], 5), rtol=1e-4, atol=1e-4)


def test_behaviors_that_are_not_finite_are_ignored_and_have_no_novelty():
    behaviors = np.array([[0.0], [np.nan], [3.0], [np.inf]])
    others = np.array([[1.0], [np.nan], [7.0]])
    got = NOVELTY(jnp.asarray(behaviors), jnp.asarray(others), jnp.ones(3, bool), 2)
    np.testing.assert_allclose(got, [(1 + 7) / 2, -np.inf, (2 + 4) / 2, -np.inf])


def test_a_full_archive_forgets_the_oldest():
    archive = Archive(jnp.zeros((4, 1)), jnp.int32(0))
    for first in (0, 3, 6):
        rows = first + jnp.arange(3.0)[:, None]
        archive = ADD(archive, rows, np.array([True, False, True]))
    assert archive.added == 6
    np.testing.assert_array_equal(np.sort(np.asarray(archive.behaviors)[:, 0]), [3, 5, 6, 8])
    assert archive.held.all()


def test_the_nearest_are_not_found_by_sorting():
    """XLA makes a sort of all distances of `top_k` unless it is kept from it; that takes thirty times as long."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1_000, 128), (10_000, 128))]
    held = jax.ShapeDtypeStruct((10_000,), bool)
    compiled = NOVELTY.lower(*shapes, held, 10).compile().as_text()
    assert " sort(" not in compiled
    assert "TopK" in compiled
