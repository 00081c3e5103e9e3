"""Properties of learners' compiled loops, on real pools and in pure JAX, read from their scheduled HLO."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn

from volvox import A3C, PPO, TD3
from volvox.envs import atari, cartpole, from_functions, mujoco
from volvox.networks import MLP, ActorAndCritic, ActorCritic, CategoricalMLP, QNetwork
from volvox.rollout.loop import traced

pytestmark = pytest.mark.optimized

B, T, WIDTH, ROWS = 6, 5, 37, 7_919  # numbers that occur in no other shape
RINGS = rf"u8\[\d,\d,{B},84,84,4\]"
PLAIN = {"vtrace": False, "loss_reduction": "sum", "episodic_life": True, "max_gradient_norm": None}


class Torso(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Dense(WIDTH)(x.reshape(x.shape[0], -1).astype(jnp.float32)))


def scheduled(begun, settings, env):
    """The optimised program of a chunk of rounds."""
    stages, state, constants, groups = begun
    envs = state.envs
    chunk = traced(stages, groups, beats_per_round=settings.schedule(env).beats_per_round)
    text = chunk.func.lower(*chunk.args, state, constants, 1).compile().as_text()
    for group, env_state in zip(groups, envs, strict=True):
        group.recv(env_state)  # nothing may be in flight when a pool is dropped
        group.close()
    return text


def bodies(text):
    """Events of each computation, in order: `recv`, `send`, `gradients` (a loop over parameters), `beats`."""
    found, name = {}, ""
    for line in text.splitlines():
        head = re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line)
        if head and "=" not in line.split("(")[0]:
            name = head.group(1)
            found[name] = []
        if re.search(rf"= ({RINGS}|f32\[28224,{WIDTH}\])\S* copy\(", line):
            found[name].append("copy of rings" if "= u8" in line else "copy of parameters")
        if re.search(rf"= f32\[28224,{WIDTH}\]\S* (dot|fusion|call|custom-call)\(", line):
            found[name].append("a gradient at once")
        call = re.search(r'custom_call_target="\w+_(recv|send)"', line)
        if call:
            found[name].append(call.group(1))
        elif " while(" in line and f"f32[28224,{WIDTH}]" in line.split(" while(")[0]:
            body = re.search(r"body=%?([\w.\-]+)", line).group(1)
            found[name].append("beats" if {"recv", "send"} & set(found[body]) else "gradients")
    return [kinds for kinds in found.values() if "recv" in kinds or "beats" in kinds]


@pytest.mark.slow
@pytest.mark.parametrize(("lag", "micro_batch"), [(0, 3), (1, B)])
def test_groups_step_while_others_are_learned_from_and_the_update_ends_the_round(lag, micro_batch, begun):
    env = atari("Pong", num_envs=2 * B, groups=2)
    optimizer = {"optimizer": optax.rmsprop, "learning_rate": 1e-3}
    settings = A3C(segment_length=T, micro_batch=micro_batch, lag=lag, **optimizer, **PLAIN)
    text = scheduled(begun(settings, ActorCritic(6, Torso()), env), settings, env)
    beat, round_, *_ = bodies(text)
    # A beat copies nothing large, and computes no gradient outside of its loop, although XLA moves loop-invariant
    # computations in front of loops. An update copies the parameters once.
    # The last loop of the round is the update: zero or one times.
    assert beat == ["recv", "send", "gradients"] * 2
    assert [kind for kind in round_ if "copy" not in kind] == ["beats", "gradients"]
    assert "copy of rings" not in round_
    assert re.search(RINGS, text)  # there are some


@pytest.mark.slow
def test_ppo_updates_while_groups_step_and_copies_no_ring(begun):
    """An update is a loop over parts in a loop over updates; neither copies the collected data."""
    env = atari("Pong", num_envs=2 * B, groups=2)
    settings = PPO(segment_length=T, num_epochs=4, num_minibatches=2, micro_batch=3, lag=1, episodic_life=True)
    text = scheduled(begun(settings, ActorCritic(6, Torso()), env), settings, env)
    beat, round_, *_ = bodies(text)
    assert re.search(RINGS, text)
    assert [kind for kind in beat if "parameters" not in kind] == ["recv", "send", "gradients"] * 2
    assert [kind for kind in round_ if "parameters" not in kind] == ["beats"]


@pytest.mark.parametrize(("num_learners", "axis"), [(1, ""), pytest.param(2, "2,", marks=pytest.mark.slow)])
def test_updates_are_made_while_simulators_step(begun, num_learners, axis):
    """In a beat each group's recv and send come before its updates, and those before the next group's recv."""
    env = mujoco("HalfCheetah", num_envs=4, groups=2)
    network = ActorAndCritic(MLP(6, hidden=(WIDTH,)), QNetwork((WIDTH,)))
    sizes = {"random_timesteps": 10, "batch_size": 8, "replay_size": ROWS * 4}
    settings = TD3(updates_per_timestep=1.0, **sizes)
    lines = scheduled(begun([settings] * num_learners, network, env), settings, env).splitlines()
    order, found = [], []
    for line in lines:
        call = re.search(r'custom_call_target="\w+_(recv|send)"', line)
        if call:
            order.append(call.group(1))
        elif " while(" in line and re.search(rf"f32\[{axis}23,{WIDTH}\]", line.split(" while(")[0]):
            order.append("updates")
        elif line.startswith("}"):
            if "recv" in order:
                found.append(order)
            order = []
    assert found == [["recv", "send", "updates"] * 2]
    copies = [line.strip()[:120] for line in lines if re.search(rf"\[{axis}{ROWS},.*? copy\(", line)]
    assert not copies  # the replay stays in place
    assert any(re.search(rf"pred\[{axis}{ROWS},2\]", line) for line in lines)


def host_calls(begun, env):
    """Operations that leave the device in the program of A3C's loop."""
    settings = A3C(segment_length=2)
    text = scheduled(begun(settings, CategoricalMLP(2, hidden=(8,)), env), settings, env)
    return re.findall(r'custom_call_target="[^"]*callback[^"]*"|_(?:recv|send)"|\b(?:infeed|outfeed|recv|send)\(', text)


@pytest.mark.slow
def test_the_loop_over_device_environments_has_no_host_in_it(begun):
    def step(state, action, key):
        return jax.pure_callback(lambda x: x, state, state, vmap_method="expand_dims"), jnp.float32(0), state > 1

    assert not host_calls(begun, cartpole(num_envs=2 * B, groups=2))
    calls = {"name": "calls", "num_envs": B, "max_episode_steps": 5, "num_actions": 2}
    assert host_calls(begun, from_functions(jax.random.uniform, step, lambda state: state[None], **calls))
