"""One task of each family in envpool's wheel: both forms agree, and what the spec says is what comes.

Each is played by a process of its own in a directory of its own: what crashes in C++ is then a failure that can be
read, and not the end of the tests. VizDoom, for one, dies by a signal where it cannot write to its directory or where
`/dev/shm` is too small.
"""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

TASKS = {
    "atari": "Pong-v5",
    "box2d": "LunarLanderContinuous-v3",
    "classic_control": "MountainCar-v0",
    "gfootball": "gfootball/academy_empty_goal_close-v1",
    "highway": "highway-fast-v0",
    "jumanji": "BinPack-v2",
    "minigrid": "MiniGrid-Empty-5x5-v0",
    "mujoco.dmc": "CartpoleBalance-v1",
    "mujoco.gym": "InvertedPendulum-v5",
    "mujoco.metaworld": "MetaWorld/Reach-v3",
    "mujoco.myosuite": "MyoHandAirplaneFixed-v0",
    "mujoco.playground": "PandaPickCube-v1",  # in Aloha's, numbers below 1e-38 are 0 in the compiled form alone
    "mujoco.robotics": "FetchReach-v1",
    "pgx": "Play2048-v1",
    "procgen": "CoinrunEasy-v0",  # needs Qt 5
    "toy_text": "Taxi-v3",
    "vizdoom": "D1Basic-v1",
}
SECONDS = 150
PLAIN = """
import sys, envpool, numpy as np
env = envpool.make(sys.argv[1], env_type="gymnasium", num_envs=2, num_threads=1)
env.reset()
for _ in range(4):
    env.step(np.zeros((2, *env.action_space.shape), env.action_space.dtype))
"""  # envpool alone, without a line of ours


def played(task):
    """Plays a task in both forms; what a process of the tests below does."""
    sys.path.insert(0, str(Path(__file__).parent))
    from conftest import actions_for, drive

    from volvox import envs

    env = envs.envpool(task, num_envs=2, threads=1)
    actions, seen = actions_for(env, 3), []
    for host in (True, False):
        (group,) = env.make(0, host=host)
        seen.append(drive(group, actions))
        group.close()
    jax.tree.map(np.testing.assert_array_equal, *seen)
    assert jax.tree.map(lambda x: x.dtype, seen[0]) == jax.tree.map(lambda x: x.dtype, seen[1])
    found = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), seen[0].observation)
    assert found == env.spec.observation
    assert seen[0].first[0].all()
    assert np.isfinite(seen[0].reward).all()


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def told(done):
    """How a process ended, and the last lines that it printed."""
    end = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    return f"{end}: {' | '.join((done.stdout + done.stderr).strip().splitlines()[-3:])}"


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, id=name, marks=[pytest.mark.slow] * (name != "classic_control"))
        for name, task in TASKS.items()
    ],
)
def test_a_task_of_each_family(task, tmp_path):
    done = run(tmp_path, __file__, task)
    fails = done.returncode != 0
    if fails and task == TASKS["procgen"] and "Qt" in done.stderr:
        pytest.skip(told(done))
    if fails and task == TASKS["vizdoom"] and (plain := run(tmp_path, "-c", PLAIN, task)).returncode != 0:
        pytest.skip(f"{task}: envpool without volvox does not play it on this machine either; {told(plain)}")
    assert not fails, f"{task} {told(done)}\n{done.stderr}"


if __name__ == "__main__":
    played(sys.argv[1])
