"""TD3's two halves in the loop: `act` explores and remembers, `work` learns while emulators step."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.data import episode_statistics as recent
from volvox.data import replay
from volvox.data.episode_statistics import Episodes, Running
from volvox.data.replay import Batch, Replay
from volvox.loop.pipeline import Stages
from volvox.networks.off_policy import ActorAndCritics
from volvox.off_policy.learner import Learner, LearnerState, counted, normalized
from volvox.types import Array, ArrayTree, EnvGroup, TimeStep

_LEARNING = 2**31
"""Names the stream of keys that learning draws; those of actions are named by their count, an int32."""
_OPEN = float(np.nextafter(np.float32(-1), np.float32(0)))
"""The smallest number above -1, whose normal quantile is finite."""


class Collector(NamedTuple):
    """What one group of environments is doing; its environments are split evenly among S learners.

    Attributes:
      replay: Of all its environments; those of a learner stand side by side.
      running: Leaves `[S, B / S]`.
    """

    replay: Replay
    running: Running


class Carry(NamedTuple):
    """The state of the loop that acting changes.

    Attributes:
      draws: int32: how often actions were drawn.
      steps: int32: steps taken by all environments, resets not counted.
      episodes: Leaves `[S, ...]`.
    """

    key: Array
    draws: Array
    steps: Array
    episodes: Episodes
    collectors: tuple[Collector, ...]


class Exploration(NamedTuple):
    """How actions are chosen while learning.

    Attributes:
      noise: float32 `[S]`: standard deviation, of actions in [-1, 1].
      random_steps: Steps of each learner whose actions are uniform, and from which nothing is learned yet.
    """

    noise: Array
    random_steps: int


class Sampling(NamedTuple):
    """What updates are made from.

    Attributes:
      batch_size: Of each learner; a multiple of the number of groups.
      updates: In one beat of one group, all of whose environments step.
    """

    batch_size: int
    discount: float
    num_steps: int
    updates: int


def no_episodes(num_learners: int) -> Episodes:
    """None ended yet, of any learner."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_learners, *x.shape)), recent.no_episodes())


def begin(
    groups: tuple[EnvGroup, ...],
    replays: tuple[Replay, ...],
    key: Array,
    draws: Array,
    steps: Array,
    episodes: Episodes,
) -> Carry:
    """The carry before the first beat; the arguments but for `groups` are those of earlier parts of the run."""
    num_learners = episodes.total.shape[0]

    def collector(group: EnvGroup, rows: Replay) -> Collector:
        running = recent.begun(group.num_envs)
        return Collector(rows, jax.tree.map(lambda x: x.reshape(num_learners, -1), running))

    return Carry(key, draws, steps, episodes, tuple(map(collector, groups, replays)))


def stages(
    network: ActorAndCritics,
    learner: Learner,
    exploration: Exploration,
    sampling: Sampling,
    *,
    num_learners: int,
    action_bounds: tuple[float, float],
    normalize: bool,
) -> Stages:
    """The loop's stages; `carry` is `Carry`, `memory` is `LearnerState`.

    Args:
      network: actor and critics.
      learner: that learns.
      exploration: of the actor.
      sampling: of the replay.
      num_learners: S.
      action_bounds: of the environment, to which [-1, 1] is scaled.
      normalize: count observations, and show them normalised to actor and critics.

    Returns:
      `Stages`, of rounds of one beat.
    """
    low, high = action_bounds

    def split(x: Array) -> Array:
        """`[B, ...]` -> `[S, B / S, ...]`."""
        return x.reshape(num_learners, -1, *x.shape[1:])

    def act(carry: Carry, memory: LearnerState, constants: ArrayTree, g: int, timestep: TimeStep):
        del constants
        me = carry.collectors[g]
        mine = timestep._replace(
            **{name: split(getattr(timestep, name)) for name in ("reward", "first", "terminated", "truncated")},
            observation=(),
            extras={},
        )
        episodes, running = jax.vmap(recent.book)(carry.episodes, me.running, mine)

        observation = jax.vmap(normalized)(memory.normalizer, split(timestep.observation).astype(jnp.float32))
        chosen = jax.vmap(network.act)(memory.actor, jax.vmap(network.observed)(memory.representation, observation))
        # One draw for both kinds: making random numbers takes a loop each time.
        key = jax.random.fold_in(carry.key, carry.draws)
        drawn = jax.random.uniform(key, chosen.shape, minval=_OPEN, maxval=1.0)
        noise = exploration.noise[:, None, None] * (2**0.5 * jax.lax.erf_inv(drawn))
        at_random = carry.steps < exploration.random_steps * num_learners
        action = jnp.where(at_random, drawn, jnp.clip(chosen + noise, -1.0, 1.0))
        action = action.reshape(-1, action.shape[-1])

        collector = Collector(replay.append(me.replay, timestep, action), running)
        carry = carry._replace(
            draws=carry.draws + 1,
            steps=carry.steps + (~timestep.first).sum(dtype=jnp.int32),
            episodes=episodes,
            collectors=(*carry.collectors[:g], collector, *carry.collectors[g + 1 :]),
        )
        return carry, low + (action + 1.0) * ((high - low) / 2)

    def batches(carry: Carry, keys: Array) -> Batch:
        """A batch for each update of a beat and each learner, `[U, S, N, ...]`, from all groups alike."""
        size = sampling.batch_size // len(carry.collectors)

        def of_learner(key: Array, s: Array) -> Batch:
            parts = []
            for i, collector in enumerate(carry.collectors):
                count = collector.running.returns.shape[1]
                part = replay.sample(
                    jax.random.fold_in(key, i),
                    collector.replay,
                    sampling.updates * size,
                    discount=sampling.discount,
                    num_steps=sampling.num_steps,
                    envs=(s * count, (s + 1) * count),
                )
                parts.append(jax.tree.map(lambda x: x.reshape(sampling.updates, size, *x.shape[1:]), part))
            return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *parts)

        return jax.vmap(of_learner, out_axes=1)(keys, jnp.arange(num_learners))

    def work(carry: Carry, memory: LearnerState, constants: ArrayTree, g: int):
        del constants
        if normalize:
            rows = carry.collectors[g].replay
            newest = jax.lax.dynamic_index_in_dim(
                rows.observation, (rows.rows - 1) % rows.reward.shape[0], keepdims=False
            )
            memory = memory._replace(normalizer=jax.vmap(counted)(memory.normalizer, split(newest)))
        num_envs = sum(collector.running.returns.shape[1] for collector in carry.collectors)
        enough = exploration.random_steps * num_learners
        held, room = jnp.int32(0), 0
        for collector in carry.collectors:
            capacity, width = collector.replay.reward.shape
            held, room = held + jnp.minimum(collector.replay.rows, capacity) * width, room + capacity * width
        # A resumed run may have to fill its replay anew.
        ready = (carry.steps >= enough) & (held >= min(enough, room))
        for collector in carry.collectors:
            ready &= replay.num_starts(collector.replay, sampling.num_steps) > 0
        mean_return = jax.vmap(partial(recent.latest_mean, num_envs=num_envs))(carry.episodes)

        # Drawn for all updates of the beat at once.
        key = jax.random.fold_in(jax.random.fold_in(carry.key, _LEARNING), memory.update)
        keys = jax.random.split(key, num_learners + 1)
        batch = batches(carry, keys[1:])
        noise = jax.random.normal(keys[0], batch.action.shape)

        def one(i: Array, memory: LearnerState) -> LearnerState:
            mine, disturbed = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), (batch, noise))
            return learner.update(memory, mine, disturbed, mean_return)

        # As many as the steps so far are worth, of which resets are none.
        b = carry.collectors[g].running.returns.shape[1]
        steps = carry.steps // num_learners - exploration.random_steps
        wanted = (steps // b) * sampling.updates + (steps % b) * sampling.updates // b
        due = jnp.clip(wanted - memory.update, 0, sampling.updates)
        # A trip count, not a condition, so that what is learned stays in place.
        return carry, jax.lax.fori_loop(0, jnp.where(ready, due, 0), one, memory)

    return Stages(act, work, None, None)
