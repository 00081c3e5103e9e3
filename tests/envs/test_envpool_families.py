"""One task of each family in envpool's wheel: both forms agree, and what the spec says is what comes.

Another process plays them in a directory of its own: a crash in C++ is then a failure that can be read, and not the end
of the tests. VizDoom, for one, dies by a signal where it cannot write to its directory or where `/dev/shm` is too
small.
"""

import subprocess
import sys
from pathlib import Path

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
PLAIN = "import envpool; envpool.make_gymnasium('D1Basic-v1', num_envs=2).reset()"  # without a line of ours


@pytest.mark.slow
def test_a_task_of_each_family(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    from envpool_survey import survey

    results = survey(TASKS.values(), "--both-forms")
    failed, missing = {task: result["why"] for task, result in results.items() if not result["works"]}, {}
    if "Qt" in failed.get(TASKS["procgen"], ""):
        missing["procgen"] = failed.pop(TASKS["procgen"])
    if TASKS["vizdoom"] in failed and subprocess.run([sys.executable, "-c", PLAIN], cwd=tmp_path).returncode != 0:
        missing["vizdoom"] = failed.pop(TASKS["vizdoom"])
    assert not failed
    if missing:
        pytest.skip(f"envpool cannot play them on this machine: {missing}")
