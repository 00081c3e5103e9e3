"""Population-based training: learners copy better ones, settings stay in their ranges, and runs resume bit by bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import volvox as vx
from volvox.learners.evaluation import PolicyEvaluator
from volvox.networks import CategoricalMLP
from volvox.report import lineage

CARTPOLE = vx.envs.cartpole(num_envs=4, groups=2)
EXPLORE = {"learning_rate": vx.space.log(1e-4, 1e-1), "entropy_coefficient": vx.space.uniform(0.001, 0.1)}
NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}


def a3c(num_learners=4, every=64, discount=0.9, evaluate_every=None, **options):
    pbt = vx.PBT(**{"every": every, "explore": EXPLORE, "fraction": 0.25, **options})
    settings = vx.A3C(segment_length=8, updates_per_iteration=4, discount=discount, **NORMALIZED)
    several = {"num_learners": num_learners, "evaluate_every": evaluate_every, "pbt": pbt}
    return vx.learn(settings, CategoricalMLP(2, (8,)), CARTPOLE, **several)


def test_the_worst_copy_the_best_and_settings_vary_within_their_ranges():
    pbt = vx.PBT(every=1, explore=EXPLORE, fraction=0.2, factor=2.0, resample=0.5)
    before = {**pbt.draw(jax.random.key(0), 50), "discount": jnp.linspace(0.9, 0.99, 50)}
    assert all(r.low <= before[name].min() < before[name].max() <= r.high for name, r in EXPLORE.items())
    scores = jax.random.permutation(jax.random.key(1), 50.0 * jnp.arange(50)).at[7].set(jnp.nan)
    parents, after = pbt.exchange(jax.random.key(2), scores, before)
    order = np.argsort(np.nan_to_num(scores, nan=-1.0))
    replaced = np.flatnonzero(np.asarray(parents) != np.arange(50))
    assert set(replaced) == set(order[:10].tolist())
    assert set(np.asarray(parents)[replaced]) <= set(order[-10:].tolist())
    for name, values in before.items():
        copied = np.asarray(values)[parents]
        np.testing.assert_array_equal(np.delete(after[name], replaced), np.delete(values, replaced))
        if name == "discount":
            np.testing.assert_array_equal(after[name], copied)
            continue
        limits = EXPLORE[name].low, EXPLORE[name].high
        assert ((after[name] >= limits[0]) & (after[name] <= limits[1])).all()
        steps = [np.clip(copied * x, *limits)[replaced] for x in (0.5, 2.0)]
        varied = np.isclose(steps[0], after[name][replaced]) | np.isclose(steps[1], after[name][replaced])
        assert 0 < varied.sum() < 10


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of six iterations with three exchanges."""
    algorithm = a3c()
    options = {"max_timesteps": 64 * 6, "progress": False, "loggers": ()}
    yield vx.train(algorithm, run_dir=tmp_path_factory.mktemp("straight"), **options)
    algorithm.close()


def test_a_resumed_run_is_the_straight_run(straight, tmp_path):
    """It was saved and loaded after an exchange."""
    algorithm, options = a3c(), {"progress": False, "loggers": ()}
    vx.train(algorithm, run_dir=tmp_path, max_timesteps=64 * 2, **options)
    algorithm.close()
    resumed = vx.load(tmp_path).resume(max_timesteps=64 * 6, **options)
    resumed.algorithm.close()
    jax.tree.map(np.testing.assert_array_equal, resumed.state.learning, straight.state.learning)
    jax.tree.map(np.testing.assert_array_equal, resumed.state.numbers, straight.state.numbers)
    names = [name for name in straight.metrics[-1] if name.startswith(("pbt_", "training_"))]
    assert [[r[n] for n in names] for r in resumed.metrics] == [[r[n] for n in names] for r in straight.metrics]


def test_rows_have_the_lineage_and_reports_draw_it(straight, tmp_path):
    run = straight
    copies = 0
    for row, following in zip(run.metrics, run.metrics[1:], strict=False):
        parents, itself = np.array(row["pbt_parent_each"]), np.arange(4)
        copies += (parents != itself).sum()
        for name in EXPLORE:
            before, after = (np.array(x[f"pbt_{name}_each"]) for x in (row, following))
            np.testing.assert_array_equal(before[parents == itself], after[parents == itself])
    assert copies >= 3
    figure = lineage(run.metrics, tmp_path / "lineage.png")
    assert [axes.get_ylabel() for axes in figure.axes] == ["learning rate", "entropy coefficient"]
    assert "Lineage" in run.report(tmp_path / "report.html").read_text()


def test_a_copy_has_the_parameters_optimizer_and_moments_of_its_parent():
    algorithm = a3c()
    state, row = algorithm.step(algorithm.init(0))
    for _ in range(20):
        if row["pbt_parent_each"] != [0, 1, 2, 3]:
            break
        state, row = algorithm.step(state)
    child = next(i for i, parent in enumerate(row["pbt_parent_each"]) if i != parent)
    parent, scores = row["pbt_parent_each"][child], row["training_mean_each"]
    assert scores[child] == min(scores) < max(scores) == scores[parent]
    equal = lambda x: np.testing.assert_array_equal(x[child], x[parent])  # noqa: E731
    collected = state.acting.collected
    copies = state.learning.params, state.learning.optimizer, collected.moments, collected.rewards.moments
    jax.tree.map(equal, copies)
    # Sums of the rewards of an environment stay with it, and episodes of the replaced learner do not count.
    assert any((returns[child] != returns[parent]).any() for returns in collected.rewards.returns)
    assert state.acting.episodes.total[child] == 0 < state.acting.episodes.total[parent]
    assert set(state.numbers) == set(EXPLORE)  # other settings can be changed when a run is resumed
    assert all(state.numbers[name][child] != state.numbers[name][parent] for name in EXPLORE)
    algorithm.close()


def test_learners_have_the_settings_of_their_state_and_others_can_be_changed():
    training, state = a3c(discount=0.5).step.__self__, a3c().init(0)
    numbers = training.constants(state)[1]
    assert set(numbers["discount"].tolist()) == {0.5}
    for name in EXPLORE:
        np.testing.assert_array_equal(numbers[name], state.numbers[name])


def test_learners_are_ranked_by_their_evaluations(monkeypatch):
    returns = np.repeat(np.float32([[3], [1], [0], [2]]), 2, axis=1)
    monkeypatch.setattr(PolicyEvaluator, "play", lambda self, variables, n, **options: (returns[:n], 8))
    keys, exchange = [], vx.PBT.exchange

    def recorded(self, key, *given):
        keys.append(jax.random.key_data(key).tolist())
        return exchange(self, key, *given)

    monkeypatch.setattr(vx.PBT, "exchange", recorded)
    algorithm = a3c(evaluate_every=64)
    state, row = algorithm.step(algorithm.init(0))
    assert row["pbt_parent_each"] == [0, 1, 0, 3]
    algorithm.step(state)
    algorithm.close()
    assert len(keys) == 2
    assert keys[0] != keys[1]


@pytest.mark.slow
def test_emulators_are_separate_and_go_on_after_an_exchange():
    """Each learner plays its own environments of a group, side by side in one pool."""
    env = vx.envs.mujoco("InvertedPendulum", num_envs=2, groups=2)
    settings = vx.TD3(batch_size=8, random_timesteps=20, replay_size=200, timesteps_per_iteration=50)
    networks = vx.networks.ActorAndCritic.mlp(1, (8,))
    pbt = vx.PBT(every=50, explore={"discount": vx.space.uniform(0.9, 0.99)}, fraction=0.5)
    algorithm = vx.learn(settings, networks, env, num_learners=2, pbt=pbt)
    state, first = algorithm.step(algorithm.init(0))
    seen = state.acting.collected.replays[1].timestep.observation  # [S, C, B, ...]
    assert (seen.shape[0], seen.shape[2]) == (2, 1)
    assert (seen[0, 0] != seen[1, 0]).any()
    groups = algorithm.step.__self__.loop.groups
    state, second = algorithm.step(state)
    assert algorithm.step.__self__.loop.groups is groups  # no other pools, which would begin new episodes
    algorithm.close()
    assert first["pbt_parent_each"] in ([0, 0], [1, 1])
    assert second["timesteps"] >= 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"explore": {"learing_rate": vx.space.log(1e-4, 1e-1)}}, "learing_rate"),
        ({"num_learners": 1}, "two learners"),
        ({"explore": {"discount": vx.space.uniform(0.9, 1.5)}}, "discount"),
        ({"evaluate_every": 100}, "multiple"),
        ({"evaluate_every": 0}, "evaluate_every"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        a3c(**options)
