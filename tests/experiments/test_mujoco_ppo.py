"""PPO's script for continuous control as a user runs it: real MuJoCo, in processes of its own."""

import json
import re
import types

import pytest

import volvox as vx
from volvox.types import Axis

TINY = [
    *("cleanrl", "--task", "InvertedPendulum", "--num-envs", "2", "--segment-length", "16", "--num-minibatches", "2"),
    *("--num-epochs", "2", "--hidden", "8", "--rounds-per-iteration", "2", "--timesteps", "128"),
]


@pytest.fixture(scope="module")
def mujoco(script):
    return script("mujoco_ppo.py", TINY)


@pytest.mark.slow
def test_a_run_is_scored(tmp_path, mujoco, rows):
    run_dir = tmp_path / "run"
    code, _, err = mujoco.run("--run-dir", run_dir, "--score-episodes", 3)
    assert code == 0, err
    table = rows(run_dir)
    assert [row["update"] for row in table] == [8, 16]
    scores = json.loads((run_dir / "score.json").read_text())
    assert set(scores) == {"policy", "policy, sampled", "random", "of"}


def test_iterations_are_as_many_as_the_timesteps_need(load, read):
    module = load("mujoco_ppo")
    _, iterations = module.make_algorithm(read(module, [*TINY, "--timesteps", "129"]))
    assert iterations == 3
    _, iterations = module.make_algorithm(read(module, [*TINY, "--lag", "0"]))
    assert iterations == 2


def test_timesteps_are_those_of_all_processes(load, read, monkeypatch):
    module = load("mujoco_ppo")

    def in_two_processes(settings, network, env, **evaluation):
        return vx.learn(settings, network, env, **evaluation)._replace(env=env._replace(axis=Axis("devices", 2)))

    monkeypatch.setattr(module, "vx", types.SimpleNamespace(**vars(vx) | {"learn": in_two_processes}))
    _, iterations = module.make_algorithm(read(module, [*TINY, "--timesteps", "129"]))
    assert iterations == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--timesteps", "2_000_000"), "give --anneal-timesteps 2000000, or None"),
        (("--num-minibatches", "5"), "num_minibatches=5 do not divide"),
        (("--task", "InvertedPendulm"), "InvertedPendulum"),
    ],
)
def test_bad_settings_are_refused(load, read, flags, message):
    module = load("mujoco_ppo")
    with pytest.raises(ValueError, match=re.escape(message)):
        module.make_algorithm(read(module, [*TINY, *flags]))
