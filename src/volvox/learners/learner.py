"""The learner interface, and a learner's part in the loop.

An algorithm is one file beside this one: its settings, a frozen dataclass, and the `Learner` that they make.
`volvox.learn` in `training.py` makes the runs.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from volvox.data import metrics
from volvox.data.metrics import Episodes, RunningEpisodes
from volvox.types import Array, ArrayTree, Env, Policy, TimeStep, replaced, zeros


class Turn(NamedTuple):
    """The turn of a group in the loop.

    Attributes:
      group: Index of the group, a Python int; in `finish` that of the last one.
      round: int32: Rounds completed since the environments were made.
      beat: int32: Beats completed in this round.
      mean_return: float32: Mean return of the latest episodes, NaN before the first; `[S]` for S learners.
    """

    group: int
    round: Array
    beat: Array
    mean_return: Array


class Learner:
    """A learning algorithm in an environment: a policy, and pure functions of one learner's state.

    The state has two parts. `learning` is learned: a NamedTuple with the fields `update` (int32, the number of updates)
    and `metrics` (`volvox.data.metrics.Metrics`); rows have the compression of its fields `params` and `optimizer`.
    `collected` is changed by acting: segments, a replay, recurrent states. Its field `collectors`, if it has one,
    belongs to the environments and begins anew with them. Its field `replays` is not saved if the settings have
    `save_replay=False` or if there are several devices, on which a learner sums its gradients over `env.axis`.

    Attributes:
      policy: Policy that acts with `variables`.
    """

    policy: Policy

    def init(self, key: Array) -> tuple[Any, Any]:
        """Returns (collected, learning) at the beginning of a run."""
        raise NotImplementedError

    def act(self, collected: Any, learning: Any, keys: Array, turn: Turn, timestep: TimeStep) -> tuple[Any, Array]:
        """Returns (collected, actions `[B, ...]`) of a group, given a key for each of its environments."""
        raise NotImplementedError

    def work(self, collected: Any, learning: Any, key: Array, turn: Turn) -> tuple[Any, Any]:
        """Learns while a group steps; returns (collected, learning). `key` is the same in all calls of a run."""
        return collected, learning

    def finish(self, collected: Any, learning: Any, key: Array, turn: Turn) -> tuple[Any, Any]:
        """Learns at the end of a round; returns (collected, learning)."""
        return collected, learning

    def variables(self, learning: Any) -> Sequence[ArrayTree]:
        """Returns the variables for `policy.apply`, of each learner if there are several."""
        raise NotImplementedError


class Schedule(NamedTuple):
    """When a learner learns, and how long an iteration is. One of the two lengths is given.

    Attributes:
      beats_per_round: Beats of a round; in each beat, every group takes one timestep.
      rounds_per_iteration: Rounds in an iteration.
      timesteps_per_iteration: Timesteps of each learner in an iteration, which ends in the round that reaches a
        multiple of this number.
      delay: Rounds after which the data of a round have been learned from.
      num_learners: Number S of learners that share the environments evenly. The arrays of a learner then have a leading
        axis S. None: one learner, without this axis.
      learning_rate: State of learning -> learning rate of the next update, for rows. None: it is constant.
    """

    beats_per_round: int = 1
    rounds_per_iteration: int | None = None
    timesteps_per_iteration: int | None = None
    delay: int = 0
    num_learners: int | None = None
    learning_rate: Callable[[Any], Any] | None = None


class LearnerSettings(Protocol):
    """Settings of a learner, such as `A3C` or `TD3`: a frozen dataclass with two methods."""

    def bind(self, network: Any, env: Env) -> Learner:
        """Returns the learner of a network in an environment; raises ValueError if they do not fit the settings."""
        ...

    def schedule(self, env: Env) -> Schedule:
        """Returns when the learner learns, and how long an iteration is."""
        ...


def with_metrics(learning: Any, update: Callable[[Any], Any]) -> Any:
    """Returns the state of learning with the metrics that an update adds, all zero."""
    return learning._replace(metrics=zeros(jax.eval_shape(update, learning).metrics))


class Acting(NamedTuple):
    """State of acting.

    Attributes:
      round: int32: Rounds completed since the environments were made.
      beat: int32: Beats completed in this round.
      draws: int32: Number of actions that each environment has drawn; it makes the keys of the next, see `Env.keys`.
      timesteps: int32: Timesteps of all environments, without those that begin an episode. It may overflow.
      episodes: Scores of the episodes that have ended, leaves `[S, ...]` for S learners.
      running: Episodes that have not ended, one entry for each group; () between two sets of environments.
      collected: State of the learner that `act` changes.
    """

    round: Array
    beat: Array
    draws: Array
    timesteps: Array
    episodes: Episodes
    running: tuple[RunningEpisodes, ...]
    collected: Any


@dataclasses.dataclass(frozen=True, eq=False)
class LearnerStages:
    """The stages of the loop. `acting` is its carry, `learning` its memory, and `key` its constant."""

    learner: Learner
    schedule: Schedule
    env: Env

    def act(self, acting: Acting, learning: Any, key: Array, g: int, timestep: TimeStep) -> tuple[Acting, Array]:
        """Counts episodes and timesteps, and lets the learner act."""
        scored, update = timestep._replace(observation=(), extras={}), metrics.update_episodes
        if (num_learners := self.schedule.num_learners) is not None:
            scored = jax.tree.map(lambda x: x.reshape(num_learners, -1), scored)
            update = jax.vmap(update)
        episodes, running = update(acting.episodes, acting.running[g], scored)
        keys = self.env.keys(key, acting.draws, g)
        collected, action = self.learner.act(acting.collected, learning, keys, self.turn(acting, g), timestep)
        acting = acting._replace(
            draws=acting.draws + (g == self.env.num_groups - 1),
            timesteps=acting.timesteps + (~timestep.first).sum(dtype=jnp.int32),
            episodes=episodes,
            running=replaced(acting.running, g, running),
            collected=collected,
        )
        return acting, action

    def work(self, acting: Acting, learning: Any, key: Array, g: int) -> tuple[Acting, Any]:
        """Lets the learner learn while group `g` steps."""
        collected, learning = self.learner.work(acting.collected, learning, key, self.turn(acting, g))
        beat = acting.beat + (g == self.env.num_groups - 1)
        return acting._replace(beat=beat, collected=collected), learning

    def finish(self, acting: Acting, learning: Any, key: Array) -> tuple[Acting, Any]:
        """Lets the learner end a round."""
        turn = self.turn(acting, self.env.num_groups - 1)
        collected, learning = self.learner.finish(acting.collected, learning, key, turn)
        return acting._replace(round=acting.round + 1, beat=jnp.int32(0), collected=collected), learning

    def turn(self, acting: Acting, g: int) -> Turn:
        """Returns the turn of group `g`."""
        num_envs = self.env.all_envs // (self.schedule.num_learners or 1)
        mean = functools.partial(metrics.latest_mean, num_envs=num_envs, axis=self.env.axis)
        mean = mean if self.schedule.num_learners is None else jax.vmap(mean)
        return Turn(g, acting.round, acting.beat, mean(acting.episodes))
