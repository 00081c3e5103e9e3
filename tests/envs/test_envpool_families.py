"""One task of each family in envpool's wheel: both forms agree, and what the spec says is what comes."""

import jax
import numpy as np
import pytest

from volvox import envs

TASKS = {
    "atari": "Pong-v5",
    "box2d": "LunarLanderContinuous-v3",
    "classic_control": "MountainCar-v0",
    "highway": "highway-fast-v0",
    "jumanji": "BinPack-v2",
    "minigrid": "MiniGrid-Empty-5x5-v0",
    "mujoco.dmc": "CartpoleBalance-v1",
    "mujoco.gym": "InvertedPendulum-v5",
    "procgen": "CoinrunEasy-v0",  # needs Qt 5
    "toy_text": "Taxi-v3",
    "vizdoom": "D1Basic-v1",
}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_task_of_each_family(task, drive, actions_for, assert_equal):
    try:
        env = envs.envpool(task, num_envs=2, threads=1)
    except ImportError as error:
        pytest.skip(f"{task}: {error}")
    if env.spec.continuous:  # VizDoom has no bounds
        low, high = (np.nan_to_num(b, neginf=-1, posinf=1) for b in (env.spec.action_low, env.spec.action_high))
        actions = np.random.default_rng(0).uniform(low, high, (3, 2, *low.shape)).astype(np.float32)
    else:
        actions = actions_for(env, 3)
    played = []
    for host in (True, False):
        (group,) = env.make(0, host=host)
        played.append(drive(group, actions))
        group.close()
    assert_equal(*played)
    found = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), played[0].observation)
    assert found == env.spec.observation
    assert played[0].first[0].all()
    assert np.isfinite(played[0].reward).all()
