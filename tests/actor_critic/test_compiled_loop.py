"""What must be true of the actor-critic's compiled loop on real Atari pools, read from its scheduled HLO."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from volvox.actor_critic import schedule
from volvox.actor_critic.learner import LossSettings, learner
from volvox.actor_critic.schedule import Schedule

from volvox.data.episode_statistics import no_episodes
from volvox.envs import atari
from volvox.loop.pipeline import LoopState, traced
from volvox.networks import ActorCritic
from volvox.networks.actor_critic import actor_critic
from volvox.networks.distributions import distribution

B, T, WIDTH = 6, 5, 37  # numbers that occur in no other shape


class Torso(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Dense(WIDTH)(x.reshape(x.shape[0], -1).astype(jnp.float32)))


def scheduled(lag, micro_batch):
    """The optimised program of a chunk of rounds."""
    env = atari("Pong", num_envs=2 * B, groups=2)
    actions = distribution(env.spec)
    net = actor_critic(ActorCritic(actions.size, Torso()), env.spec, output_size=actions.size)
    when = Schedule(segment_length=T, micro_batch=micro_batch, lag=lag, rounds_per_update=1)
    learn = learner(
        net,
        actions,
        settings=LossSettings(0.99, 1.0, False, 1.0, 1.0, 0.0, 0.5),
        entropy_coefficient=lambda update: jnp.float32(0.01),
        optimizer=optax.rmsprop(1e-3),
        loss_reduction="sum",
    )
    stages = schedule.stages(
        net,
        actions,
        learn,
        when,
        num_groups=2,
        group_size=B,
        action_bounds=None,
        reward_bound=1.0,
        episodic_life=True,
    )
    groups = env.make(0)
    envs = tuple(group.init() for group in groups)
    carry = schedule.start(groups, net, when, jax.random.key(0), jnp.int32(0), no_episodes())
    chunk = traced(stages, groups, beats_per_round=when.beats)
    state = LoopState(envs, carry, learn.init(jax.random.key(1)))
    text = chunk.jitted.lower(state, (), jnp.int32(1), jnp.int32(0)).compile().as_text()
    for group, env_state in zip(groups, envs, strict=True):
        group.recv(env_state)  # nothing may be in flight when a pool is dropped
        group.close()
    return text


def bodies(text):
    """What happens in each computation, in order: `recv`, `send`, `gradients` (a loop over parameters), `beats`."""
    found, name = {}, ""
    for line in text.splitlines():
        head = re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line)
        if head and "=" not in line.split("(")[0]:
            name = head.group(1)
            found[name] = []
        if re.search(rf"= (u8\[\d,\d,{B},84,84,4\]|f32\[28224,{WIDTH}\])\S* copy\(", line):
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


@pytest.mark.parametrize(("lag", "micro_batch"), [(0, 3), (1, 3), (1, B)])
def test_groups_step_while_others_are_learned_from_and_the_update_ends_the_round(lag, micro_batch):
    beat, round_, *_ = bodies(scheduled(lag, micro_batch))
    # Nor is anything large copied in a beat, or a gradient computed that its loop may not ask for (XLA moves what no
    # loop variable changes in front of the loop); an update copies the parameters once.
    assert beat == ["recv", "send", *(["gradients"] if lag else [])] * 2
    # The last loop is the update: zero or one times.
    assert [kind for kind in round_ if "copy" not in kind] == [
        "beats",
        *([] if lag else ["gradients"] * 2),
        "gradients",
    ]
    assert "copy of rings" not in round_
