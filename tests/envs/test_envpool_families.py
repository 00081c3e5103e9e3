"""One task of each family in envpool's wheel: both forms agree, and what the spec says is what comes.

Another process plays them in a directory of its own: a crash in C++ is then a failure that can be read, and not the end
of the tests. VizDoom, for one, dies by a signal where it cannot write to its directory or where `/dev/shm` is too
small.
"""

import json
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
SECONDS = 600
PLAIN = """
import sys, envpool, numpy as np
env = envpool.make(sys.argv[1], env_type="gymnasium", num_envs=2, num_threads=1)
env.reset()
for _ in range(4):
    env.step(np.zeros((2, *env.action_space.shape), env.action_space.dtype))
"""  # envpool alone, without a line of ours


def played(task):
    """Plays a task in both forms; raises AssertionError if they differ."""
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


def failures(tasks, folder):
    """Why tasks cannot be played; after a crash, another process plays the rest."""
    found, left = {}, list(tasks)
    while left:
        done = run(folder, __file__, *left)
        told = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
        if len(told) < len(left):
            told[left[len(told)]] = f"the process ended with status {done.returncode}: {done.stderr[-500:]}"
        found |= {task: why for task, why in told.items() if why}
        left = left[len(told) :]
    return found


@pytest.mark.slow
def test_a_task_of_each_family(tmp_path):
    found = failures(TASKS.values(), tmp_path)
    needs_qt, vizdoom, missing = TASKS["procgen"], TASKS["vizdoom"], {}
    if "Qt" in found.get(needs_qt, ""):
        missing[needs_qt] = found.pop(needs_qt)
    if vizdoom in found and run(tmp_path, "-c", PLAIN, vizdoom).returncode != 0:
        missing[vizdoom] = found.pop(vizdoom)
    assert not found
    if missing:
        pytest.skip(f"envpool cannot play them on this machine: {missing}")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        try:
            played(name)
            reason = None
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        print("\n" + json.dumps([name, reason]), flush=True)
