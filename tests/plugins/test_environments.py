"""Environments from outside the package: trained by both kinds of algorithm, resumed and loaded."""

import inspect
from typing import Any

import catch
import jax
import numpy as np
import pytest
import thermostat

import volvox as vx
from volvox import testing

OPTIONS: dict[str, Any] = {"progress": False}


def catching():
    return catch.catch(num_envs=8, groups=2)


def heating():
    return vx.envs.gymnasium(thermostat.Thermostat, num_envs=8, groups=2, max_episode_steps=12, degrees=1.0)


def evolved(env):
    size = env.spec.num_actions or sum(env.spec.num_choices)
    ga = vx.GA(population_size=8, num_parents=2, num_elite_candidates=2, num_validation_episodes=2)
    return vx.evolve(ga, vx.networks.MLP(size, hidden=(8,)), env, noise=vx.population.Table(size=20_000))


def learned(env):
    size = env.spec.num_actions or sum(env.spec.num_choices)
    return vx.learn(vx.A3C(segment_length=5, updates_per_iteration=3), vx.networks.CategoricalMLP(size, (8,)), env)


@pytest.mark.slow
@pytest.mark.parametrize("make_algorithm", [evolved, learned])
@pytest.mark.parametrize("make_env", [catching, heating])
def test_a_plugin_trains_with_checkpoints_and_resume(make_env, make_algorithm, tmp_path):
    straight = vx.train(make_algorithm(make_env()), seed=0, steps=3, run_dir=tmp_path / "straight", **OPTIONS)
    vx.train(make_algorithm(make_env()), seed=0, steps=2, run_dir=tmp_path / "resumed", **OPTIONS)
    run = vx.load(tmp_path / "resumed")  # the environment by its import path
    resumed = run.resume(steps=3, **OPTIONS)
    assert len(resumed.metrics) == 3
    if make_env is catching:  # the state of a Gymnasium environment cannot be saved: learners begin new episodes
        jax.tree.map(np.testing.assert_array_equal, resumed.variables(), straight.variables())
    observation = make_env().spec.observation
    action = resumed.actor()(jax.tree.map(lambda x: np.ones((3, *x.shape), x.dtype), observation))
    assert action.shape == (3, *make_env().spec.action.shape)


@pytest.mark.parametrize("make_env", [catching, heating])
def test_a_plugin_passes_the_suite(make_env):
    testing.check_environment(make_env(), max_episode_steps=None if make_env is catching else 7)


@pytest.mark.parametrize("plugin", [catch, thermostat])
def test_a_plugin_is_short(plugin):
    assert len(inspect.getsource(plugin).splitlines()) <= 40
