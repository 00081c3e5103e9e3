"""The acting half by itself: what is booked, what the learner is told, and what recurrent policies store."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from volvox.actor_critic import schedule
from volvox.actor_critic.learner import Learner, LearnerState, no_sums, unrolled
from volvox.actor_critic.schedule import Collector, Schedule

from volvox.data import segments
from volvox.data.episode_statistics import begun, no_episodes
from volvox.envs import probe
from volvox.loop.pipeline import LoopState, driven
from volvox.networks import RecurrentActorCritic
from volvox.networks.actor_critic import ActorCriticNetwork, actor_critic
from volvox.networks.distributions import categorical
from volvox.types import TimeStep

NOTHING = Learner(
    lambda key: None,
    lambda state, segment: state,
    lambda state, mean_return: state._replace(update=state.update + 1),
)
"""A learner that counts updates and changes nothing else."""


def memory(params):
    return LearnerState(params, (), (), jnp.int32(0), jnp.float32(0), no_sums(), jnp.float32(0))


def timestep(b, **fields):
    flags = {name: jnp.zeros(b, bool) for name in ("first", "terminated", "truncated")}
    plain = TimeStep(jnp.zeros((b, 1)), jnp.zeros(b), **flags, extras={})
    return plain._replace(**fields)


CONSTANT = ActorCriticNetwork(
    lambda key: {},
    lambda batch_size: (),
    lambda params, x, state: (jnp.zeros((x.shape[0], 2)), jnp.zeros(x.shape[0]), state),
    False,
    {},
)


@pytest.mark.parametrize("episodic_life", [False, True])
def test_a_lost_life_is_an_end_to_the_learner_alone(episodic_life):
    """Lives lost; game over; time limit; time limit as a life is lost; a bonus life; a new game with fewer lives."""
    before = np.array([3, 1, 3, 3, 3, 5])
    now = np.array([2, 0, 3, 2, 4, 3])
    terminated = np.array([0, 1, 0, 0, 0, 0], bool)
    truncated = np.array([0, 0, 1, 1, 0, 0], bool)
    first = np.array([0, 0, 0, 0, 0, 1], bool)
    b = len(now)
    when = Schedule(segment_length=4, micro_batch=b, lag=1, rounds_per_update=1)
    stages = schedule.stages(
        CONSTANT,
        categorical(2),
        NOTHING,
        when,
        num_groups=1,
        group_size=b,
        action_bounds=None,
        reward_bound=1.0,
        episodic_life=episodic_life,
    )
    ring = segments.empty(2, when.beats, b, probe.constant().spec, ())
    me = Collector(ring, (), begun(b), jnp.asarray(before, jnp.int32))
    carry = schedule.Carry(
        *(jnp.int32(2), jnp.int32(3), jax.random.key(0), jnp.int32(0), jnp.int32(0)), no_episodes(), (me,)
    )
    step = timestep(
        b,
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
        first=jnp.asarray(first),
        reward=jnp.full(b, 7.0),
        extras={"lives": jnp.asarray(now)},
    )
    carry, _ = stages.act(carry, memory({}), (), 0, step)
    got = carry.collectors[0].ring
    lost = np.array([1, 1, 0, 1, 0, 0], bool) if episodic_life else np.zeros(b, bool)
    np.testing.assert_array_equal(got.terminated[0, 2], terminated | lost)
    np.testing.assert_array_equal(got.truncated[0, 2], truncated & ~lost)
    np.testing.assert_array_equal(got.reward[0, 2], np.ones(b))  # clipped
    np.testing.assert_array_equal(got.valid[0, 2], ~first)
    # Games end by their own rules, and score unclipped.
    assert carry.episodes.total == 3
    np.testing.assert_array_equal(carry.episodes.returns[:3], [7.0, 7.0, 7.0])


class Torso(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.tanh(nn.Dense(8)(x))


def test_a_recurrent_policy_is_unrolled_as_it_acted():
    """Across ends of episodes and of segments, whose stored state is not zero."""
    env = probe.countdown(low=1, high=6, num_envs=4, groups=1)
    net = actor_critic(RecurrentActorCritic(2, Torso(), width=3), env.spec, output_size=2)
    when = Schedule(segment_length=5, micro_batch=4, lag=1, rounds_per_update=1)
    stages = schedule.stages(
        net,
        categorical(2),
        NOTHING,
        when,
        num_groups=1,
        group_size=4,
        action_bounds=None,
        reward_bound=None,
        episodic_life=False,
    )
    # Larger than at first, so that probabilities differ from step to step.
    params = jax.tree.map(lambda x: 3 * x, net.init(jax.random.key(0)))
    params["Dense_0"]["kernel"] *= 100
    groups = env.make(0)
    carry = schedule.start(groups, net, when, jax.random.key(1), jnp.int32(0), no_episodes())
    state = LoopState(tuple(group.init() for group in groups), carry, memory(jax.tree.map(jnp.copy, params)))
    state, _ = driven(stages, groups, beats_per_round=when.beats)(state, (), 4)
    ring = state.carry.collectors[0].ring
    boundaries = 0
    for slot in range(2):
        segment = segments.micro_batch(ring, jnp.int32(slot), jnp.int32(0), 4, 5)
        output, _ = unrolled(params, segment, net)
        again = categorical(2).log_prob(output, segment.action, 0.0)
        np.testing.assert_allclose(again, segment.log_prob, atol=1e-5)
        assert float(jnp.std(segment.log_prob)) > 1e-3
        assert segment.first.any()
        boundaries += int((~segment.first[0] & (jnp.abs(segment.recurrent[0]).max(-1) > 0)).sum())
    assert boundaries > 0
