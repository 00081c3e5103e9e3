"""Environments from outside the package: checked, trained, resumed and loaded."""

from typing import Any

import catch
import jax
import numpy as np
import pytest

import volvox as vx

OPTIONS: dict[str, Any] = {"progress": False, "loggers": ()}
CUSTOM = [catch.reset, catch.step, catch.observe]


def catching():
    return catch.catch(num_envs=8, groups=2)


def from_gymnasium():
    return vx.envs.gymnasium("CartPole-v1", num_envs=8, groups=2, max_episode_steps=12)


@pytest.mark.slow
@pytest.mark.parametrize("make_env", [catching, from_gymnasium])
def test_an_environment_trains_resumes_and_is_loaded(make_env, tmp_path):
    def make():
        env = make_env()
        network = vx.networks.CategoricalMLP(env.spec.num_outputs, (8,))
        return vx.learn(vx.A3C(segment_length=5, updates_per_iteration=3), network, env)

    straight = vx.train(make(), seed=0, steps=3, **OPTIONS)
    vx.train(make(), seed=0, steps=2, run_dir=tmp_path / "resumed", **OPTIONS)
    resumed = vx.load(tmp_path / "resumed", custom=CUSTOM).resume(steps=3, **OPTIONS)
    assert len(resumed.metrics) == 3
    if make_env is catching:  # learners begin new episodes in environments of Gymnasium, whose state cannot be saved
        jax.tree.map(np.testing.assert_array_equal, resumed.variables(), straight.variables())
