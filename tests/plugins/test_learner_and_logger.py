"""A learner and a logger from outside of the package, trained by `volvox.train` with checkpoints and resume."""

import importlib
import sqlite3
from pathlib import Path

import jax
import numpy as np
import probes
import pytest

import volvox as vx

HERE = Path(__file__).parent
FILES = ["q_learning", "sqlite_logger"]
ENV = probes.corridor(length=4, num_envs=8, groups=2)


@pytest.fixture(scope="module")
def plugins():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        yield [importlib.import_module(name) for name in FILES]


@pytest.mark.parametrize("name", FILES)
def test_a_plug_in_has_at_most_forty_lines(name):
    assert len((HERE / f"{name}.py").read_text().splitlines()) <= 40


@pytest.fixture(scope="module")
def algorithm(plugins):
    settings = plugins[0].QLearning()
    algorithm = vx.learn(settings, vx.networks.MLP(2, (16,)), ENV)
    yield algorithm
    algorithm.close()


@pytest.mark.slow
def test_q_learning_learns_the_corridor_resumes_and_is_loaded(plugins, algorithm, tmp_path):
    database = tmp_path / "metrics.db"
    how = {"run_dir": tmp_path / "a", "progress": False, "loggers": (plugins[1].sqlite(database),)}
    run = vx.train(algorithm, steps=2, **how)
    assert run.metrics[-1]["training_mean"] > 0.9
    assert run.metrics[-1]["squared_error"] < run.metrics[0]["squared_error"]
    assert vx.play(ENV, algorithm.policy, run.variables(), num_episodes=4).mean == 1.0
    # As a kill leaves it between the row of step 3 and its checkpoint.
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO metrics VALUES (?, 3, 'training_mean', 99.0)", (str(tmp_path / "a"),))
    loaded = vx.load(tmp_path / "a")
    resumed = loaded.resume(steps=3, progress=False, loggers=how["loggers"])
    loaded.algorithm.close()
    straight = vx.train(algorithm, steps=3, progress=False)
    one, other = (jax.tree.leaves(run.state.learning.learned) for run in (resumed, straight))  # two policies, one tree
    jax.tree.map(np.testing.assert_array_equal, one, other)
    with sqlite3.connect(database) as connection:
        found = connection.execute("SELECT step, value FROM metrics WHERE metric = 'training_mean' ORDER BY step")
        assert list(found) == [(row["iteration"], row["training_mean"]) for row in resumed.metrics]
