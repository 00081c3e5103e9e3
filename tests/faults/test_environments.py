"""An environment that fails is named, and none is waited for without end."""

import subprocess
import sys
import threading
import types
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import volvox as vx
from volvox.envs import envpool_group, groups
from volvox.rollout import driver, pipeline
from volvox.types import EnvGroup, EnvSpec, TimeStep

SPEC = EnvSpec("gridworld", (2,), np.dtype(np.float32), 2, None, None, None, 10, 1)


def gridworld(fault):
    """Environments driven from Python, which have a fault from the third call on."""

    def make_group(spec, num_envs, *, index, seed, host):
        calls = []

        def recv(state):
            calls.append(1)
            ones, no = np.ones(num_envs, np.float32), np.zeros(num_envs, bool)
            timestep = TimeStep(np.ones((num_envs, 2), np.float32), ones, no, no, no, {})
            return state, fault(timestep) if len(calls) > 2 else timestep

        keep = lambda state, *_: state  # noqa: E731
        return EnvGroup(spec, num_envs, False, lambda: 0, recv, keep, keep, lambda: None)

    return groups.recipe(SPEC, make_group, num_envs=4, groups=2, environment="gridworld")


def raises(timestep):
    raise ZeroDivisionError("division by zero")


FAULTS = {
    "observation": lambda timestep: timestep._replace(observation=timestep.observation[:, :1]),
    "reward": lambda timestep: timestep._replace(reward=timestep.reward[:1]),
    "first": lambda timestep: timestep._replace(first=timestep.first[None]),
    "terminated": lambda timestep: timestep._replace(terminated=np.zeros((), bool)),
}


def learner(env):
    return vx.learn(vx.A3C(segment_length=3, updates_per_iteration=3), vx.networks.CategoricalMLP(2, (4,)), env)


@pytest.mark.slow_except("observation", "first")
@pytest.mark.parametrize("name", FAULTS)
def test_wrong_shapes_are_named_with_the_environment(quietly, name):
    with pytest.raises(RuntimeError, match=f"the environment gridworld gave other shapes .*: {name} "):
        quietly(learner(gridworld(FAULTS[name])), steps=1)


def test_an_environment_that_raises_is_named_in_a_note(quietly):
    with pytest.raises(ZeroDivisionError, match="division by zero") as error:
        quietly(learner(gridworld(raises)), steps=1)
    assert "This was raised in the environment gridworld." in error.value.__notes__


@pytest.mark.slow
def test_a_run_whose_environment_raised_goes_on_with_a_sound_one(tmp_path, quietly):
    with pytest.raises(ZeroDivisionError):
        quietly(learner(gridworld(raises)), steps=1, run_dir=tmp_path / "a")
    sound = gridworld(lambda timestep: timestep)
    assert len(quietly(learner(sound), steps=1, run_dir=tmp_path / "a", resume=True).metrics) == 1


STUCK = """
import sys
sys.path.insert(0, {experiments!r})
import jax, jax.numpy as jnp
import volvox as vx
from launch import exit_code
from volvox.envs import groups

groups.PATIENCE = 1.0

def step(state, action, key):
    # As an emulator whose thread died: the compiled loop waits in C++.
    blocked = jax.lax.while_loop(lambda x: (x > 0) & (state > 4), lambda x: x + 1 - x * 0, jnp.float32(1))
    return state + 1, blocked, False

def main():
    env = vx.envs.from_functions(
        lambda key: jnp.int32(0), step, lambda state: jnp.float32(state)[None],
        name="stuck", num_envs=4, groups=2, num_actions=2, max_episode_steps=20,
    )
    algorithm = vx.learn(vx.A3C(segment_length=3, updates_per_iteration=3), vx.networks.CategoricalMLP(2, (4,)), env)
    return vx.train(algorithm, steps=1, progress=False).exit_code

sys.exit(exit_code(main))
"""


class Blocking:
    """An envpool of which `recv` blocks from the third call on, as if a thread of its emulators had died."""

    def __init__(self, native, released):
        self._native, self._calls, self._released = native, 0, released

    def __getattr__(self, name):
        return getattr(self._native, name)

    def recv(self):
        self._calls += 1
        if self._calls > 2:
            self._released.wait()
        return self._native.recv()


def test_a_pool_that_blocks_is_named_where_python_drives_it(monkeypatch):
    monkeypatch.setattr(groups, "PATIENCE", 0.6)
    released, env = threading.Event(), vx.envs.envpool("CartPole-v1", num_envs=2, groups=1)
    make = envpool_group.load_envpool().make
    fake = types.SimpleNamespace(make=lambda *args, **options: Blocking(make(*args, **options), released))
    monkeypatch.setattr(envpool_group, "load_envpool", lambda: fake)
    policy = vx.learn(vx.A3C(), vx.networks.CategoricalMLP(2, (4,)), env).policy
    with pytest.raises(TimeoutError, match=r"CartPole-v1 did not answer within 0\.6 seconds: an environment blocks"):
        vx.play(env, policy, policy.init(jax.random.key(0)), num_episodes=2)
    assert len(envpool_group._blocked) == 1
    released.set()  # the thread returns, and the pool can be freed
    envpool_group._blocked.clear()


@pytest.fixture
def blocking(monkeypatch):
    """Returns an open loop over environments outside of its state, which block once the event is set."""
    blocks, released = threading.Event(), threading.Event()

    def called(state):
        if blocks.is_set():
            released.wait()
        return state

    def step(state, action, key):
        stepped = jax.pure_callback(called, jax.ShapeDtypeStruct((), jnp.float32), state, vmap_method="sequential")
        return stepped + 1, 0.0, False

    how = {"name": "blocking", "num_envs": 2, "groups": 2, "num_actions": 2, "max_episode_steps": 9}
    env = vx.envs.from_functions(lambda key: jnp.float32(0), step, lambda state: state[None], **how)

    def act(carry, memory, constants, g, timestep):
        return carry + 1, jnp.zeros(timestep.reward.shape, jnp.int32)

    loop = driver.Loop(
        pipeline.Stages(act, lambda carry, memory, constants, g: (carry, memory)),
        lambda seed: tuple(group._replace(resumable=False) for group in env.make(seed)),
    )
    loop.open(0)
    next(loop.run(jnp.int32(0), (), rounds_left=lambda carry: 1))  # what is called later is compiled
    loop.restart()
    loop.time_parts(jnp.int32(0), (), rounds=2)
    monkeypatch.setattr(groups, "PATIENCE", 0.6)
    blocks.set()
    yield loop
    released.set()
    driver._abandoned.clear()


@pytest.mark.parametrize("where", ["restart", "stopwatch"])
def test_an_environment_that_blocks_in_a_restart_or_under_the_stopwatch_is_named(where, blocking):
    call = blocking.restart if where == "restart" else partial(blocking.time_parts, jnp.int32(0), (), rounds=2)
    with pytest.raises(TimeoutError, match=r"blocking did not answer within 0\.6 seconds: an environment blocks"):
        call()
    assert [group.spec.name for group in driver._abandoned] == ["blocking", "blocking"]
    assert blocking.groups == ()


def test_what_a_call_raises_is_raised_where_its_answer_is_waited_for():
    answers = groups.Answers()
    assert answers.of(lambda: 3, "any") == 3
    with pytest.raises(ZeroDivisionError):
        answers.of(lambda: 1 // 0, "any")
    assert not answers.missing


def test_an_answer_that_comes_late_is_not_taken_for_the_next(monkeypatch):
    monkeypatch.setattr(groups, "PATIENCE", 0.1)
    answers, released = groups.Answers(), threading.Event()
    with pytest.raises(TimeoutError, match="any did not answer"):
        answers.of(released.wait, "any")
    assert answers.missing
    released.set()
    monkeypatch.setattr(groups, "PATIENCE", 60.0)
    assert answers.of(lambda: "next", "any") == "next"
    assert not answers.missing


@pytest.mark.slow
def test_an_environment_that_blocks_is_named_within_the_time_that_is_said_and_the_script_ends():
    experiments = Path(__file__).parents[2] / "experiments"
    code = STUCK.format(experiments=str(experiments))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith("error: stuck did not answer within 1 seconds: an environment blocks")
    assert done.stderr.count("\n") == 1
