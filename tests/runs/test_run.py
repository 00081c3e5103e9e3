"""Methods of a run."""

from functools import partial

import jax
import numpy as np
import optax
import pytest

import volvox as vx
from volvox.report.files import read_config
from volvox.rollout import scoring

from .conftest import evolution, learning, random_walk, train


def test_the_best_and_the_last_policy():
    run = train(random_walk(last_variables=lambda state: -state["x"]), steps=2)
    for which, expected in (("best", run.state["x"]), ("last", -run.state["x"])):
        np.testing.assert_array_equal(run.variables(which), expected)
    with pytest.raises(ValueError, match="which"):
        run.variables("first")  # pyright: ignore


def test_evaluate_passes_its_arguments(monkeypatch):
    run = train(random_walk(last_variables=lambda state: -state["x"]), steps=1)
    monkeypatch.setattr(scoring, "play", lambda *given, **options: (given, options))
    given, options = run.evaluate(3, which="last", sampled=True, seed=7, num_envs=2)
    np.testing.assert_array_equal(given[2], -run.state["x"])
    assert options == {"protocol": None, "num_episodes": 3, "num_envs": 2, "sampled": True, "seed": 7}


INJECTED = optax.inject_hyperparams(optax.adam)
CHANGES = [
    (partial(learning, optimizer=INJECTED), {"learning_rate": 0.5}, {"host": True}),
    pytest.param(
        evolution, {"mutation_std": 0.5}, {"workers": vx.distributed.ray(num_actors=1)}, marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize(("make", "changes", "local"), CHANGES)
def test_settings_are_changed_on_purpose_and_recorded(make, changes, local, tmp_path):
    config = make().config
    algorithm = make().remake(config.get("settings") or config["strategy"], **local)
    run = train(algorithm, tmp_path, steps=1).resume(steps=2, changes=changes, progress=False, loggers=())
    assert local.items() <= run.algorithm.remake.keywords.items()  # they are not saved
    assert len(run.metrics) == 2
    ((name, value),) = changes.items()
    config = read_config(tmp_path)
    part = "settings" if "settings" in config["algorithm"] else "strategy"
    assert config["algorithm"][part][name] == getattr(run.algorithm.config[part], name) == value
    (record,) = config["changes"]
    assert record["after_step"] == 1
    assert record["to"] == changes
    assert record["from"][name] != value
    kept = [x for _, x in optax.tree.get_all_with_path(run.state, name)]  # by the optimiser of the learner
    assert kept == [value] * ("settings" in config["algorithm"])
    assert len(vx.load(tmp_path, custom=[INJECTED]).metrics) == 2
    with pytest.raises(ValueError, match="no_such_setting"):
        run.resume(steps=5, changes={"no_such_setting": 1})


def test_changes_that_do_not_fit_the_state_leave_the_run_as_it_is(tmp_path):
    run = train(learning(), tmp_path, steps=1)
    with pytest.raises(ValueError, match="does not fit"):
        run.resume(steps=2, changes={"segment_length": 4})
    assert len(vx.load(tmp_path).metrics) == 1


def test_settings_that_pbt_explores_are_not_changed(tmp_path):
    pbt = vx.PBT(every=64, explore={"learning_rate": vx.space.log(1e-5, 1e-2)})
    settings = vx.PPO(segment_length=8, num_minibatches=2)
    algorithm = vx.learn(
        settings, vx.networks.CategoricalMLP(2, (4,)), vx.envs.cartpole(num_envs=4), num_learners=2, pbt=pbt
    )
    with pytest.raises(ValueError, match="explores 'learning_rate'"):
        train(algorithm, tmp_path, steps=1).resume(steps=2, changes={"learning_rate": 1e-4})


@pytest.mark.parametrize("method", ["resume", "report", "watch"])
def test_methods_that_need_a_directory_say_so(method):
    with pytest.raises(ValueError, match="run_dir"):
        getattr(train(random_walk(), steps=1), method)()


def test_members_are_watched_side_by_side(evolved, tmp_path):
    assert evolved.watch(tmp_path / "a.mp4", members=3, max_episode_steps=3).stat().st_size > 0
    parents = evolved.algorithm.parents(evolved.state)
    for ours, elite in zip(jax.tree.leaves(parents), jax.tree.leaves(evolved.variables()), strict=True):
        np.testing.assert_allclose(ours[-1], elite, rtol=1e-6)
    with pytest.raises(ValueError, match="members=99"):
        evolved.watch(tmp_path / "a.mp4", members=99)


@pytest.mark.slow
def test_several_learners_are_watched(tmp_path):
    run = train(learning(num_learners=2), steps=1)
    assert run.watch(tmp_path / "a.mp4", which="last", max_episode_steps=3).stat().st_size > 0
    assert run.watch(tmp_path / "b.mp4", members=2, max_episode_steps=3).stat().st_size > 0
