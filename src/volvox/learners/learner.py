"""The learner interface, and the loop that trains a learner.

    algorithm = vx.learn(vx.A3C(), vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso()), env)
    run = vx.train(algorithm, seed=0, steps=100, run_dir="runs/pong")

An algorithm is one file beside this one: its settings, a frozen dataclass, and the `Learner` that they make.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from volvox._checks import check_has, check_memory, check_type, size_of
from volvox.data import metrics
from volvox.learners.evaluation import PolicyEvaluator
from volvox.learners.iterations import Iterations
from volvox.learners.state import Acting, States
from volvox.rollout.devices import devices_of
from volvox.rollout.loop import Loop, Stages
from volvox.types import Algorithm, Array, ArrayTree, Env, EnvGroup, Policy, TimeStep, replaced, zeros


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


def learn(
    settings: LearnerSettings,
    network: Any,
    env: Env,
    *,
    evaluate_every: int | None = None,
    num_evaluation_episodes: int = 10,
    chunk_seconds: float = 1.0,
    host: bool = False,
    devices: Sequence[Any] | None = None,
) -> Algorithm:
    """Makes an algorithm of a learner's settings, a network and an environment. One step is an iteration.

        algorithm = learn(TD3(), ActorAndCritic(MLP(6, (256, 256), activation=nn.relu), QNetwork()), env)

    Args:
      settings: Settings of the learner.
      network: Network that these settings train, e.g. a flax module.
      env: The environments, in groups that take turns.
      evaluate_every: Timesteps of each learner between two evaluations (`volvox.learners.evaluation`), each made at the
        end of the iteration in which it is due. None: no evaluation.
      num_evaluation_episodes: Episodes of an evaluation, of each learner.
      chunk_seconds: Approximate interval in seconds at which progress and interrupts are checked.
      host: Whether the loop is driven from Python, for platforms on which it cannot be compiled whole.
      devices: Devices that learn together as one program. Each has `env.num_envs` environments of its own: N devices
        learn as one device with N times the environments does, and settings that count environments, timesteps, frames
        or transitions count those of all devices. None: all devices of all processes, if
        `volvox.distributed.initialize` was called in several processes; otherwise one device.

    Returns:
      `Algorithm`. Its rows hold the learner's metrics; `update`, the number of updates; `frames`, the emulator frames,
      and `timesteps`, those of each learner, both without those that begin an episode; `episodes` and the scores of the
      latest 100 episodes (`volvox.data.metrics.scores`); `compression` of sparse networks; and
      `predictions_per_second`, which counts timesteps that begin an episode too, `updates_per_second` and
      `frames_per_second`. `step` raises FloatingPointError if a number is not finite. In pure-JAX environments, on one
      device, a restored run continues bit by bit. In other environments, it begins new episodes. `variables` gives the
      policy of the best evaluation, and `last_variables` that of the learner which was best in the latest.

    Raises:
      TypeError: An argument is of another type.
      ValueError: Network or environment do not fit the settings, or the state does not fit into the free memory.
    """
    check_has("settings", settings, ("bind", "schedule", "__dataclass_fields__"), "settings such as vx.A3C()")
    check_type("env", env, Env, "e.g. vx.envs.atari(...)")
    together = devices_of(devices)
    # Each process makes the initial state alone, without a device axis.
    initial = jax.jit(settings.bind(network, env).init)
    env = env._replace(axis=together.axis)
    learner, schedule = settings.bind(network, env), settings.schedule(env)
    evaluator = None
    if evaluate_every is not None:
        sizes = (schedule.num_learners or 1, num_evaluation_episodes, evaluate_every)
        evaluator = PolicyEvaluator(learner.policy, env, *sizes)
    saves_replay = getattr(settings, "save_replay", True) and env.axis.size == 1
    states = States(learner, schedule, env, initial, evaluator is not None, saves_replay)
    state = jax.eval_shape(states.init, jax.random.key(0))  # raises if something does not fit
    # Twice, because an iteration works on a copy of the state.
    sizes = {"replay and segments": 2 * size_of(state.acting), "parameters and optimizer": 2 * size_of(state.learning)}
    check_memory(sizes, "use a smaller replay (TD3: replay_size), fewer environments or smaller networks")

    def make_groups(seed: int, device: int = 0) -> tuple[EnvGroup, ...]:
        return env.make(seed, host=host, **({"first_group": device * env.num_groups} if device else {}))

    stages = LearnerStages(learner, schedule, env)
    loop = Loop(
        Stages(stages.act, stages.work, None, None, stages.finish),
        make_groups,
        beats_per_round=schedule.beats_per_round,
        chunk_seconds=chunk_seconds,
        devices=together,
    )
    run = Iterations(states, loop, evaluator)
    config = {"type": "volvox.learn", "settings": settings, "network": network, "env": env.config}
    config |= {"evaluate_every": evaluate_every, "num_evaluation_episodes": num_evaluation_episodes}
    return Algorithm(
        init=states.init,
        step=run.step,
        variables=states.variables,
        policy=learner.policy,
        env=env,
        config=config,
        close=run.close,
        save=states.save,
        restore=functools.partial(states.restore, loop=loop),
        last_variables=states.last_variables,
        profile=run.profile,
        step_name="iteration",
        max_over_processes=None if jax.process_count() == 1 else together.largest,
    )
