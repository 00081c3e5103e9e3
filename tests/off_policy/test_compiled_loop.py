"""What must be true of TD3's compiled loop on real MuJoCo pools, read from its scheduled HLO."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest
from volvox.off_policy import schedule
from volvox.off_policy.learner import LossSettings, learner
from volvox.off_policy.schedule import Exploration, Sampling, no_episodes

from volvox.data.replay import empty
from volvox.envs import mujoco
from volvox.loop.pipeline import LoopState, traced
from volvox.networks import MLP, QNetwork
from volvox.networks.off_policy import actor_and_critics

B, ROWS, WIDTH = 2, 7_919, 37  # numbers that occur in no other shape


@pytest.fixture(scope="module", params=[1, 2], ids=["one-learner", "two-learners"])
def scheduled(request):
    """The optimised program of a chunk."""
    num_learners = request.param
    env = mujoco("HalfCheetah", num_envs=2 * B, groups=2)
    net = actor_and_critics(MLP(6, hidden=(WIDTH,)), QNetwork((WIDTH,)), env.spec)
    learn = learner(
        net,
        settings=LossSettings(jnp.full(num_learners, 0.2), 0.5, 2, 0.005),
        optimizer=optax.adam(1.0),
        learning_rate=jnp.full(num_learners, 3e-4),
        observation_shape=env.spec.observation_shape,
    )
    stages = schedule.stages(
        net,
        learn,
        Exploration(jnp.full(num_learners, 0.1), 10),
        Sampling(batch_size=8, discount=0.99, num_steps=1, updates=3),
        num_learners=num_learners,
        action_bounds=(-1.0, 1.0),
        normalize=False,
    )
    groups = env.make(0)
    envs = tuple(group.init() for group in groups)
    replays = tuple(empty(ROWS, B, env.spec) for _ in groups)
    carry = schedule.begin(groups, replays, jax.random.key(0), jnp.int32(0), jnp.int32(0), no_episodes(num_learners))
    state = LoopState(envs, carry, learn.init(jax.random.split(jax.random.key(1), num_learners)))
    text = traced(stages, groups).jitted.lower(state, (), jnp.int32(1), jnp.int32(0)).compile().as_text()
    for group, env_state in zip(groups, envs, strict=True):
        group.recv(env_state)  # nothing may be in flight when a pool is dropped
        group.close()
    return text


def test_updates_are_made_while_simulators_step(scheduled):
    """In a beat each group's recv and send come before its updates, and those before the next group's recv."""
    order, found = [], []
    for line in scheduled.splitlines():
        call = re.search(r'custom_call_target="\w+_(recv|send)"', line)
        if call:
            order.append(call.group(1))
        elif " while(" in line and re.search(rf"f32\[\d,23,{WIDTH}\]", line.split(" while(")[0]):
            order.append("updates")
        elif line.startswith("}"):
            if "recv" in order:
                found.append(order)
            order = []
    assert found == [["recv", "send", "updates"] * 2]


def test_the_replay_stays_in_place(scheduled):
    copies = [line.strip()[:120] for line in scheduled.splitlines() if re.search(rf"\[{ROWS},.*? copy\(", line)]
    assert not copies
    assert re.search(rf"pred\[{ROWS},{B}\]", scheduled)
