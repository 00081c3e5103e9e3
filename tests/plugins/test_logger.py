"""A logger from outside the package, with a run that is resumed."""

import sqlite3

import pytest
import sqlite_logger

import volvox as vx


@pytest.mark.slow
def test_the_rows_of_a_resumed_run_are_there_once(tmp_path):
    database = tmp_path / "metrics.db"
    env = vx.envs.cartpole(num_envs=4)
    settings = vx.A3C(segment_length=5, updates_per_iteration=3)
    algorithm = vx.learn(settings, vx.networks.CategoricalMLP(2, (8,)), env)
    options = {"run_dir": tmp_path / "a", "progress": False, "loggers": (sqlite_logger.sqlite(database),)}
    vx.train(algorithm, steps=2, **options)
    with sqlite3.connect(database) as connection:  # as if the run was killed after step 3 and before its checkpoint
        connection.execute("INSERT INTO metrics VALUES (?, 3, 'frames', 99.0)", (str(tmp_path / "a"),))
    resumed = vx.train(algorithm, steps=3, resume=True, **options)
    with sqlite3.connect(database) as connection:
        found = connection.execute("SELECT step, value FROM metrics WHERE metric = 'frames' ORDER BY step")
        assert list(found) == [(row["iteration"], row["frames"]) for row in resumed.metrics]
