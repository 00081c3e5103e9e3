"""The schedule of an actor-critic on the pipeline: who collects and who learns when.

In round r every group collects a segment with the parameters of that round, while `work` goes through the segments of
round r - lag in micro-batches, spread over the round's beats as evenly as they go; `finish` updates the parameters. So
data are exactly `lag` rounds old. With `lag` 0 nothing overlaps: the round has one beat more, which completes the
segments, and `finish` learns them all; the step taken in that beat is not learned from. Where u rounds share an update,
data are `lag / u` updates old on average, and at most that rounded up.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from volvox.actor_critic.learner import Learner, LearnerState
from volvox.data import segments
from volvox.data.episode_statistics import Episodes, Running, begun, book, latest_mean
from volvox.data.segments import Segment
from volvox.loop.pipeline import Stages
from volvox.networks.actor_critic import ActorCriticNetwork
from volvox.networks.distributions import Distribution
from volvox.ops.batching import where_rows
from volvox.types import Array, ArrayTree, EnvGroup, TimeStep


class Schedule(NamedTuple):
    """Whole numbers that fix when things happen; all are shapes or trip counts.

    Attributes:
      segment_length: T, steps of a segment.
      micro_batch: Environments in a micro-batch; a divisor of a group's size.
      lag: Rounds between acting and learning.
      rounds_per_update: Rounds that share an update.
    """

    segment_length: int
    micro_batch: int
    lag: int
    rounds_per_update: int

    @property
    def beats(self) -> int:
        """Beats of a round."""
        return self.segment_length + (self.lag == 0)


class Collector(NamedTuple):
    """What one group of environments is doing.

    Attributes:
      recurrent: The policy's state, leaves `[B, ...]`.
      lives: int32 `[B]`: lives left at the last step; 0 unless their loss is taken for an end.
    """

    ring: Segment
    recurrent: ArrayTree
    running: Running
    lives: Array


class Carry(NamedTuple):
    """The small state of the loop, and the segments.

    Attributes:
      round: int32: rounds begun before this one, since the environments were started.
      beat: int32: of the round.
      draws: int32: how often actions were drawn; names the next draw.
      steps: int32: steps taken since the host last looked, resets not counted.
    """

    round: Array
    beat: Array
    key: Array
    draws: Array
    steps: Array
    episodes: Episodes
    collectors: tuple[Collector, ...]


def start(
    groups: tuple[EnvGroup, ...],
    network: ActorCriticNetwork,
    schedule: Schedule,
    key: Array,
    draws: Array,
    episodes: Episodes,
) -> Carry:
    """The carry before the first beat.

    Args:
      groups: of environments, all of one size.
      network: with its recurrent state.
      schedule: as everywhere.
      key: fixes all actions.
      draws: int32, draws made by earlier parts of the run.
      episodes: of earlier parts of the run.

    Returns:
      `Carry`.
    """

    def collector(group: EnvGroup) -> Collector:
        b = group.num_envs
        recurrent = network.initial_state(b)
        return Collector(
            ring=segments.empty(schedule.lag + 1, schedule.beats, b, group.spec, recurrent),
            recurrent=recurrent,
            running=begun(b),
            lives=jnp.zeros(b, jnp.int32),
        )

    return Carry(
        round=jnp.int32(0),
        beat=jnp.int32(0),
        key=key,
        draws=draws,
        steps=jnp.int32(0),
        episodes=episodes,
        collectors=tuple(collector(group) for group in groups),
    )


def stages(
    network: ActorCriticNetwork,
    actions: Distribution,
    learner: Learner,
    schedule: Schedule,
    *,
    num_groups: int,
    group_size: int,
    action_bounds: tuple[float, float] | None,
    reward_bound: float | None,
    episodic_life: bool,
) -> Stages:
    """The loop's stages; `carry` is `Carry`, `memory` is `LearnerState`.

    Args:
      network: that acts.
      actions: its family of distributions.
      learner: that learns.
      schedule: when.
      num_groups: G.
      group_size: B.
      action_bounds: to which continuous actions are clipped before they are sent.
      reward_bound: to which learned rewards are clipped, either side; None leaves them.
      episodic_life: the learner takes the loss of a life for an end.

    Returns:
      `Stages`, of rounds of `schedule.beats` beats.
    """
    per_group = group_size // schedule.micro_batch

    def act(carry: Carry, memory: LearnerState, constants: ArrayTree, g: int, timestep: TimeStep):
        del constants
        me = carry.collectors[g]
        live = ~timestep.first
        episodes, running = book(carry.episodes, me.running, timestep)

        recurrent = where_rows(timestep.first, network.initial_state(timestep.first.shape[0]), me.recurrent)
        output, value, next_recurrent = network.apply(memory.params, timestep.observation, recurrent)
        action = actions.sample(jax.random.fold_in(carry.key, carry.draws), output)

        reward, lives, learned = timestep.reward, me.lives, timestep
        if reward_bound is not None:
            reward = jnp.clip(reward, -reward_bound, reward_bound)
        if episodic_life:
            lives = timestep.extras["lives"].astype(jnp.int32)
            lost = live & (lives < me.lives)
            learned = timestep._replace(terminated=timestep.terminated | lost, truncated=timestep.truncated & ~lost)
        ring = segments.complete(me.ring, carry.round, carry.beat, learned, reward, value)
        ring = segments.append(
            ring,
            carry.round,
            carry.beat,
            timestep,
            action,
            actions.log_prob(output, action, 0.0),
            memory.update,
            recurrent,
        )
        mine = Collector(ring, next_recurrent, running, lives)
        carry = carry._replace(
            draws=carry.draws + 1,
            steps=carry.steps + live.sum(dtype=jnp.int32),
            episodes=episodes,
            collectors=(*carry.collectors[:g], mine, *carry.collectors[g + 1 :]),
        )
        return carry, action if action_bounds is None else jnp.clip(action, *action_bounds)

    def learn(carry: Carry, memory: LearnerState, g: int, low: Array, high: Array) -> LearnerState:
        """Micro-batches `low` to `high` of group `g`."""
        ring = carry.collectors[g].ring
        slot = (carry.round - schedule.lag) % (schedule.lag + 1)

        def one(i: Array, memory: LearnerState) -> LearnerState:
            start = i * schedule.micro_batch
            # Where one micro-batch is all, nothing else would depend on `i`: XLA would compute the gradient before the
            # loop, in every beat.
            place = slot + jnp.minimum(i, 0)
            batch = segments.micro_batch(ring, place, start, schedule.micro_batch, schedule.segment_length)
            return learner.accumulate(memory, batch)

        # A trip count, not a condition, so that gradients stay in place.
        return jax.lax.fori_loop(low, jnp.where(carry.round >= schedule.lag, high, low), one, memory)

    def work(carry: Carry, memory: LearnerState, constants: ArrayTree, g: int):
        del constants
        if schedule.lag > 0:
            low, high = (per_group * (carry.beat + i) // schedule.segment_length for i in (0, 1))
            memory = learn(carry, memory, g, low, high)
        if g == num_groups - 1:
            carry = carry._replace(beat=carry.beat + 1)
        return carry, memory

    def finish(carry: Carry, memory: LearnerState, constants: ArrayTree):
        del constants
        if schedule.lag == 0:
            for g in range(num_groups):
                memory = learn(carry, memory, g, jnp.int32(0), jnp.int32(per_group))
        learned = carry.round - schedule.lag + 1  # rounds learned since the last start
        mean_return = latest_mean(carry.episodes, num_envs=num_groups * group_size)
        due = (learned > 0) & (learned % schedule.rounds_per_update == 0)
        memory = jax.lax.fori_loop(
            0, due.astype(jnp.int32), lambda _, memory: learner.apply(memory, mean_return), memory
        )
        return carry._replace(round=carry.round + 1, beat=jnp.int32(0)), memory

    return Stages(act, work, None, None, finish)
