"""A strategy and a behaviour from outside the package: trained, resumed, loaded."""

import cross_entropy
import jax
import mean_position
import numpy as np
import pytest

import volvox as vx
from volvox import testing

VALIDATION = vx.Validation(num_elite_candidates=2, num_validation_episodes=1)


def cross_entropy_on_cartpole():
    env = vx.envs.cartpole(num_envs=16, groups=2, max_episode_steps=60)
    strategy = cross_entropy.CrossEntropy(population_size=16, num_best=4)
    return vx.evolve(strategy, vx.networks.MLP(2, hidden=()), env, validation=VALIDATION)


def novelty_by_mean_position():
    novelty = vx.Novelty(behavior=mean_position.MeanPosition(), num_neighbors=2, archive_size=20)
    ga = vx.GA(population_size=8, num_parents=2, objective=novelty)
    env, network = vx.envs.hard_maze(num_envs=8), vx.networks.MLP(2, hidden=())
    return vx.evolve(ga, network, env, validation=VALIDATION, max_episode_steps=20)


@pytest.mark.slow
@pytest.mark.parametrize("make", [cross_entropy_on_cartpole, novelty_by_mean_position])
def test_a_plugin_trains_with_checkpoints_and_resume(make, tmp_path):
    options = {"seed": 1, "progress": False, "loggers": ()}
    straight = vx.train(make(), steps=3, run_dir=tmp_path / "straight", **options)
    vx.train(make(), steps=2, run_dir=tmp_path / "resumed", **options)
    run = vx.load(tmp_path / "resumed", custom=[cross_entropy.CrossEntropy, mean_position.MeanPosition])
    resumed = run.resume(steps=3, progress=False, loggers=())
    jax.tree.map(np.testing.assert_array_equal, resumed.variables(), straight.variables())
    for name in ("training_mean", "validation_mean", "frames"):
        assert [row[name] for row in resumed.metrics] == [row[name] for row in straight.metrics]


def test_a_behavior_is_what_it_says():
    behavior, record = mean_position.MeanPosition(), mean_position.MeanPosition().init()
    for position in ([1.0, 4.0], [3.0, 0.0]):
        ones = np.ones((), np.float32)
        record = behavior.update(record, vx.TimeStep(ones, ones, ones, ones, ones, {"position": np.asarray(position)}))
    np.testing.assert_array_equal(behavior.final(record), [2.0, 2.0])


@pytest.mark.slow
def test_the_strategy_passes_the_suite():
    testing.check_strategy(cross_entropy.CrossEntropy(population_size=16, num_best=4))
