"""The loop that trains learners: their state, iterations and evaluations, and how they are saved and restored.

    algorithm = vx.learn(vx.A3C(), vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso()), env)
    run = vx.train(algorithm, seed=0, steps=100, run_dir="runs/pong")

The settings give the length of an iteration. It ends early, after a whole round, when an evaluation is due or when the
`Budget` is used up. Parameters do not depend on where iterations end.

Several learners in one program (`num_learners`, or a list of settings) have random numbers and environments of their
own. `jax.vmap` maps the functions of one learner over all of them; the counters of rounds and beats are common. Arrays
of the state have a leading axis S of learners, except these counters. One learner has no such axis. Rows have the mean
over learners of each metric by its name, and the numbers of each learner as a list, such as `training_mean_each`;
`training_best` is the best of all.
"""

import copy
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import check_has, check_memory, check_type, integer, size_of, typed_key
from volvox.data import metrics
from volvox.data.metrics import Episodes, RunningEpisodes
from volvox.data.normalization import Moments
from volvox.envs.groups import ActionIsNaN, environment_keys
from volvox.learners.evaluation import Evaluated, PolicyEvaluator, add_evaluation
from volvox.learners.learner import Turn
from volvox.learners.pbt import PBT
from volvox.ops.flat import by_path, restored
from volvox.rollout.devices import Devices, devices_of
from volvox.rollout.loop import Loop, Monitor, Stages, copied, seed_of, shared_jit, time_parts
from volvox.sparsity.masks import is_grouped, is_sparse, masks_of, table
from volvox.types import (
    UNLIMITED,
    Algorithm,
    Array,
    ArrayTree,
    Axis,
    Budget,
    ByValue,
    Env,
    EnvGroup,
    Interrupted,
    TimeStep,
    pick,
    replaced,
    zeros,
)


class Acting(NamedTuple):
    """State of acting.

    Attributes:
      round: int32: Rounds completed since the environments were made.
      beat: int32: Beats completed in this round.
      draws: int32: Number of actions that each environment has drawn; `Env.keys` derives the keys of the next
        actions from it.
      timesteps: int32: Timesteps of all environments in this iteration, except the first of each episode.
      episodes: Scores of the episodes that have ended.
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


_LEARNER_AXES = Acting(None, None, None, None, 0, 0, 0)  # pyright: ignore[reportArgumentType]
"""Learners have common counters."""


class LearnState(NamedTuple):
    """State of a run between two iterations.

    Attributes:
      key: Key of all random numbers; `[S]` for S learners.
      acting: State of acting.
      learning: State of learning: parameters, the optimiser's state, and other state of the learner.
      timesteps: Timesteps of all environments, except the first of each episode.
      evaluated: Results of evaluations, `Evaluated`; () without evaluation.
      envs: States of resumable environments (`EnvGroup.resumable`), to which actions have been sent. () before the
        first iteration and for other environments, which begin new episodes when a run is resumed.
      numbers: With `PBT`, the settings that it explores, `[S]`; otherwise {}.
    """

    key: Array
    acting: Acting
    learning: Any
    timesteps: int
    evaluated: Any = ()
    envs: tuple[ArrayTree, ...] = ()
    numbers: dict[str, Array] = {}  # noqa: RUF012  # it is not changed


def learn(
    settings: Any,
    network: Any,
    env: Env,
    *,
    num_learners: int = 1,
    evaluate_every: int | None = None,
    num_evaluation_episodes: int = 10,
    num_evaluation_envs: int | None = None,
    pbt: PBT | None = None,
    host: bool = False,
    devices: Sequence[Any] | None = None,
) -> Algorithm:
    """Makes an algorithm of a learner's settings, a network and an environment. One step is an iteration.

        algorithm = learn(TD3(), ActorAndCritic.mlp(6), env)
        algorithm = learn(PPO(), network, env, num_learners=10)
        algorithm = learn([PPO(learning_rate=rate) for rate in (1e-4, 3e-4, 1e-3)], network, env)

    Several learners are one program. In pure-JAX environments, learner i is the learner of a run of its own with the
    seed `jax.random.fold_in(jax.random.key(seed), i)`, to rounding; in other environments its episodes differ.
    Learners of TD3 and SAC on one device make their updates together, when each has enough timesteps, so some make
    fewer than alone where lengths of episodes differ.

    Args:
      settings: Settings of the learner, such as `A3C()`, or settings of each of several learners. These may differ in
        the numbers that the class attribute `traced` names, such as `learning_rate`.
      network: Network that these settings train, e.g. a flax module.
      env: The environments of one learner, in groups that take turns. S learners have S times as many.
      num_learners: Number S of learners with these settings.
      evaluate_every: Timesteps of each learner between two evaluations (`volvox.learners.evaluation`). An iteration
        ends in the round in which one is due, so give `train` an amount of timesteps instead of steps. None: no
        evaluation.
      num_evaluation_episodes: Episodes of an evaluation, of each learner; from the second on, the best policy so far
        plays the same number.
      num_evaluation_envs: Largest number of environments of an evaluation, beside those of training. None:
        `env.num_envs` for each learner.
      pbt: Population-based training of several learners in one process, whose settings must be equal.
      host: Whether the loop is driven from Python, for platforms on which it cannot be compiled whole.
      devices: Devices that learn together as one program. Several learners are divided among them and share no
        gradients, so their number is a multiple of the devices. The first device makes the initial state of all
        learners, so it needs the memory for that. With one learner, each device has `env.num_envs`
        environments of its own: N devices learn as one device with N times the environments, and numbers of
        environments, timesteps, frames and transitions in the settings are totals over all devices. None: all devices
        of all processes, if `volvox.distributed.initialize` was called in several processes; otherwise one device.

    Returns:
      `Algorithm`. Its rows hold the learner's metrics; `update`, the number of updates; `frames`, the emulator frames,
      and `timesteps` of each learner, neither with timesteps that begin an episode; `episodes` and the scores of the
      latest 100 episodes (`volvox.data.metrics.scores`); `compression` of sparse networks; and
      `predictions_per_second`, which counts timesteps that begin an episode too, `updates_per_second` of each learner
      and `frames_per_second`. `step` raises FloatingPointError if a number is not finite. In pure-JAX environments, on
      one device, a restored run continues bit by bit. In other environments, it begins new episodes. `variables` gives
      the policy of the best evaluation; `last_variables` the latest policy, of the learner with the best latest
      evaluation, or with the best training episodes if there is none.

    Raises:
      TypeError: An argument has the wrong type, or the optimiser needs more than gradients and parameters.
      ValueError: Network or environment do not fit the settings, settings of several learners differ in more than
        numbers, learners cannot be divided among the devices, or the state does not fit into the free memory.
    """
    integer("num_learners", num_learners, low=1)
    several = list(settings) if isinstance(settings, Sequence) else [settings] * num_learners
    if num_learners not in (1, len(several)) or not several:
        raise ValueError(f"{num_learners=}, and there are settings of {len(several)} learners; leave num_learners out.")
    for one in several:
        check_has("settings", one, ("bind", "schedule", "__dataclass_fields__"), "settings such as vx.A3C()")
    check_type("env", env, Env, "e.g. vx.envs.atari(...)")
    if pbt is not None:
        check_type("pbt", pbt, PBT, "vx.PBT(...)")
    run = Training(several, network, env, host, devices_of(devices), pbt)
    if evaluate_every is not None:
        evaluation = (evaluate_every, num_evaluation_episodes, num_evaluation_envs)
        run.evaluator = PolicyEvaluator(run.learner.policy, run.env, run.num_learners, *evaluation)
        if pbt is not None and pbt.every % evaluate_every:
            raise ValueError(f"{pbt.every=} must be a multiple of {evaluate_every=}: learners are compared after each.")
    state = jax.eval_shape(run.init, jax.random.key(0))  # raises if something does not fit
    acting = jax.eval_shape(run.begin, state.acting)  # with the segments, which the state leaves out
    # Twice, because an iteration works on a copy of the state.
    sizes = {"replay and segments": 2 * size_of(acting), "parameters and optimizer": 2 * size_of(state.learning)}
    remedy = "use a smaller replay (replay_size), shorter segments, fewer environments or smaller networks"
    number, needed = run.num_learners, sum(sizes.values())
    check_memory(sizes, remedy, each=("learners", number, -(-needed // number)) if number > 1 else None)
    saved_arguments: dict[str, Any] = {"network": network, "env": env.config, "num_learners": num_learners}
    saved_arguments |= {"evaluate_every": evaluate_every, "num_evaluation_episodes": num_evaluation_episodes}
    saved_arguments |= {"num_evaluation_envs": num_evaluation_envs, "pbt": pbt}
    local_arguments = {"env": env, "host": host, "devices": devices}
    return Algorithm(
        init=run.init,
        step=run.step,
        variables=run.variables,
        policy=run.learner.policy,
        env=run.env,
        config={"type": "volvox.learn", "settings": settings, **saved_arguments},
        close=run.close,
        save=run.save,
        restore=run.restore,
        last_variables=run.last_variables,
        learners=tuple(functools.partial(run.latest, i=i) for i in range(run.num_learners)),
        profile=run.profile,
        remake=functools.partial(learn, **saved_arguments | local_arguments),
        step_name="iteration",
        max_over_processes=None if jax.process_count() == 1 else run.loop.devices.max_over_processes,
    )


def numbers_of(settings: Any) -> dict[str, Array]:
    """Returns the numbers that `settings.traced` names, as float32 scalars.

    Settings that are None or functions, such as schedules, are left out.
    """
    values = {name: getattr(settings, name) for name in getattr(settings, "traced", ())}
    # A scalar made of a Python float is weakly typed: like a constant, it does not turn bfloat16 into float32.
    return {name: jnp.asarray(float(x)) for name, x in values.items() if x is not None and not callable(x)}


def numbers_of_all(settings: Sequence[Any]) -> dict[str, Array]:
    """Returns the numbers of S learners, `[S]`, or those of one learner; raises ValueError if other settings differ."""
    each, first = [numbers_of(one) for one in settings], settings[0]
    for i, one in enumerate(settings):
        fixed = [field.name for field in dataclasses.fields(first) if field.name not in each[0].keys() & each[i].keys()]
        if type(one) is not type(first):
            raise ValueError(f"settings[{i}] is {type(one).__name__}, settings[0] is {type(first).__name__}.")
        if wrong := [name for name in fixed if getattr(one, name) != getattr(first, name)]:
            values = " and ".join(repr(getattr(x, wrong[0])) for x in (first, one))
            raise ValueError(
                f"{wrong[0]} is {values} in settings[0] and settings[{i}]. Learners of one program may differ in these "
                f"numbers: {', '.join(name for name in each[0] if name in each[i])}. Other objects must be the same, "
                "as dataclasses.replace keeps them."
            )
    return each[0] if len(each) == 1 else jax.tree.map(lambda *x: jnp.stack(x), *each)


def with_numbers(settings: Any, numbers: dict[str, Array]) -> Any:
    """Returns settings with other numbers, which may be traced; they are not checked."""
    settings = copy.copy(settings)
    for name, value in numbers.items():
        object.__setattr__(settings, name, value)
    return settings


class LearnerStages:
    """The pure functions of learners in their environments: the stages of the loop.

    The numbers of the settings are arguments: `constants` is (key of the run, numbers), both `[S]` for S learners.

    Attributes:
      settings: Settings of the learners.
      network: The network.
      env: The environments of one learner. A group has those of all learners, side by side.
      batch: `(S,)` for S learners of one device, whose state has a leading axis; () for one learner without it.
      cache_key: Key of the compiled program: the settings that are not traced, the network, the number of learners, and
        the environments, which are equal if one `Env` makes them, or equal arguments of `volvox.envs.from_functions`.
    """

    def __init__(self, settings: Any, network: Any, env: Env, batch: tuple[int, ...] = ()):
        self.settings, self.network, self.env, self.batch = settings, network, env, batch
        fixed = {field.name for field in dataclasses.fields(settings)} - numbers_of(settings).keys()
        fixed_settings = type(settings), {name: getattr(settings, name) for name in fixed}
        # The text of the spec, because arrays cannot be compared.
        envs = env.make, str(env.spec), env.num_envs, env.num_groups, env.axis
        self.cache_key = *fixed_settings, network, *envs, batch

    def learner(self, numbers: dict[str, Array]) -> Any:
        """Returns the learner for these numbers."""
        return with_numbers(self.settings, numbers).bind(self.network, self.env)

    def each(self, function: Callable[..., Any], *args: ArrayTree) -> Any:
        """Calls a function of one learner's arguments for all learners."""
        if not self.batch:
            return function(*args)
        axes = tuple(_LEARNER_AXES if isinstance(x, Acting) else 0 for x in args)
        return jax.vmap(function, in_axes=axes)(*args)

    def split(self, tree: ArrayTree) -> ArrayTree:
        """Splits the environments of a group by learner: `[S * B, ...]` -> `[S, B, ...]`."""
        return jax.tree.map(lambda x: x.reshape(*self.batch, -1, *x.shape[1:]), tree) if self.batch else tree

    def act(self, acting: Acting, learning: Any, constants: Any, g: int, timestep: TimeStep) -> tuple[Acting, Array]:
        """Counts episodes and timesteps of group `g`, and lets the learners act."""

        def one(acting: Acting, learning: Any, constants: Any, timestep: TimeStep) -> tuple[Any, Any, Any, Array]:
            key, numbers = constants
            scored = timestep._replace(observation=(), extras={})
            episodes, running = metrics.update_episodes(acting.episodes, acting.running[g], scored)
            keys, turn = self.env.keys(key, acting.draws, g), self.turn(acting, g)
            return episodes, running, *self.learner(numbers).act(acting.collected, learning, keys, turn, timestep)

        episodes, running, collected, action = self.each(one, acting, learning, constants, self.split(timestep))
        is_last = g == self.env.num_groups - 1
        acting = acting._replace(
            beat=acting.beat + is_last,
            draws=acting.draws + is_last,
            timesteps=acting.timesteps + (~timestep.first).sum(dtype=jnp.int32),
            episodes=episodes,
            running=replaced(acting.running, g, running),
            collected=collected,
        )
        return acting, action.reshape(-1, *action.shape[2:]) if self.batch else action

    def work(self, acting: Acting, learning: Any, constants: Any, g: int) -> tuple[Acting, Any]:
        """Lets the learners learn while group `g` steps."""

        def one(acting: Acting, learning: Any, constants: Any) -> tuple[Any, Any]:
            (key, numbers), turn = constants, self.turn(acting, g)
            turn = turn._replace(beat=turn.beat - (g == self.env.num_groups - 1))  # `act` has counted the beat
            return self.learner(numbers).work(acting.collected, learning, key, turn)

        collected, learning = self.each(one, acting, learning, constants)
        return acting._replace(collected=collected), learning

    def finish(self, acting: Acting, learning: Any, constants: Any) -> tuple[Acting, Any]:
        """Lets the learners end a round."""

        def one(acting: Acting, learning: Any, constants: Any) -> tuple[Any, Any]:
            (key, numbers), turn = constants, self.turn(acting, self.env.num_groups - 1)
            return self.learner(numbers).finish(acting.collected, learning, key, turn)

        collected, learning = self.each(one, acting, learning, constants)
        return acting._replace(round=acting.round + 1, beat=jnp.int32(0), collected=collected), learning

    def turn(self, acting: Acting, g: int) -> Turn:
        """Returns one learner's turn of group `g`."""
        mean = metrics.latest_mean(acting.episodes, num_envs=self.env.all_envs, axis=self.env.axis)
        return Turn(g, acting.round, acting.beat, mean)


class Training:
    """The functions of the algorithm that `learn` makes.

    Attributes:
      learner: The learner that the first settings make.
      schedule: Its schedule.
      env: The environments of one learner.
      num_learners: Number S of learners.
      stages: Their pure functions.
      loop: The loop. `Acting` is its carry, and the learner's state of learning its memory.
      evaluator: Evaluation during learning; None without.
    """

    def __init__(
        self, settings: Sequence[Any], network: Any, env: Env, host: bool, devices: Devices, pbt: PBT | None = None
    ):
        """Prepares a training; the first iteration makes the environments. Arguments are those of `learn`."""
        numbers, first, self.num_learners, self.pbt = numbers_of_all(settings), settings[0], len(settings), pbt
        if pbt is not None:
            if len(settings) < 2 or any(one != first for one in settings) or jax.process_count() > 1:
                raise ValueError("pbt needs at least two learners with equal settings (num_learners), in one process")
            if wrong := [name for name, x in pbt.explore.items() if name not in numbers or x.whole]:
                raise ValueError(f"explore: {wrong[0]} is not one of {', '.join(numbers)}, or has integers")
            for end in ("low", "high"):  # raises ValueError if the settings refuse it
                changes = {name: getattr(values, end) for name, values in pbt.explore.items()}
                dataclasses.replace(first, **changes).bind(network, env)
        self._batch = () if self.num_learners == 1 else (self.num_learners,)
        share = self.num_learners  # of each device
        if devices.mesh is not None and self._batch:
            size, devices = devices.mesh.size, devices._replace(divided=True)
            share, rest = divmod(share, size)
            if rest:
                raise ValueError(f"{self.num_learners} learners cannot be divided among {size} devices")
        # Each process makes the initial state alone: the axis has a size, and no name to sum over.
        alone = LearnerStages(first, network, env._replace(axis=Axis(size=devices.axis.size)), self._batch)

        def initial(numbers: dict[str, Array], key: Array) -> tuple[Any, Any]:
            def one(given: tuple[dict[str, Array], Array]) -> tuple[Any, Any]:
                return alone.learner(given[0]).init(given[1])

            # One after another: batches of orthogonal kernels can block jaxlib's threads on two cores for ever.
            return jax.lax.map(one, (numbers, key)) if alone.batch else one((numbers, key))

        self._initial = shared_jit(ByValue(alone.cache_key, initial))
        self._numbers = numbers
        self.env = env = env._replace(axis=devices.axis)
        self.learner, self.schedule = first.bind(network, env), first.schedule(env)
        for one in settings:
            if one is not first:
                one.bind(network, env)  # raises if they do not fit
        if (self.schedule.rounds_per_iteration is None) == (self.schedule.timesteps_per_iteration is None):
            raise ValueError("a Schedule needs either rounds_per_iteration or timesteps_per_iteration.")
        if (period := self.schedule.timesteps_per_iteration) is not None:
            integer("timesteps_per_iteration times num_learners", period * self.num_learners, low=1)
        self.stages = pure = LearnerStages(first, network, env, (share,) if self._batch else ())
        self.evaluator: PolicyEvaluator | None = None
        self._join = jax.jit(devices.mapped(functools.partial(metrics.over_devices, axis=env.axis)))

        def make_groups(seed: int, device: int = 0) -> tuple[EnvGroup, ...]:
            further = {"first_group": device * env.num_groups} if device else {}
            further |= {"num_envs": env.num_envs * share} if self._batch else {}
            return env.make(seed, host=host, **further)

        due, turns = self.learner.due, (self.schedule.beats_per_round, env.num_groups)
        if due is not None and np.shape(due) != turns:
            raise ValueError(f"due has shape {np.shape(due)}; it must have shape [beats_per_round, groups], {turns}.")
        stages = Stages(pure.act, pure.work, finish=pure.finish, due=due, cache_key=pure.cache_key)
        beats = self.schedule.beats_per_round
        self.loop = Loop(stages, make_groups, beats_per_round=beats, devices=devices)

    def init(self, key: int | Array) -> LearnState:
        """Returns the state at the beginning of a run."""
        key = typed_key(key)
        init_key, run_key = self.keys(key)
        # Learners have the keys of the numbers below `num_learners`.
        numbers = self.pbt.draw(jax.random.fold_in(key, self.num_learners), self.num_learners) if self.pbt else {}
        collected, learning = self._initial(self._numbers | numbers, init_key)
        zero = jnp.int32(0)
        acting = Acting(zero, zero, zero, zero, metrics.init_episodes(*self._batch), (), collected)
        evaluated: Any = ()
        if self.evaluator is not None:
            worst = jnp.float32(-jnp.inf)
            first = self.policy_of(self.candidates(collected, learning), 0)
            evaluated = Evaluated(first, worst, 0, 0, jnp.full(self.num_learners, worst), 0)
        state = LearnState(run_key, acting, learning, 0, evaluated, numbers=numbers)
        return without(state, "collectors")

    def keys(self, key: Array) -> Array:
        """Returns the keys of the initial state and of the run, `[2]`, or of those of S learners, `[2, S]`."""
        if not self._batch:
            return jax.random.split(key)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(self.num_learners))
        return jax.vmap(jax.random.split, out_axes=1)(keys)

    def candidates(self, collected: Any, learning: Any) -> ArrayTree:
        """Returns the variables of the policy, or of the policies of S learners, leaves `[S, ...]`."""
        return self.stages.each(self.learner.variables, collected, learning)

    def policy_of(self, candidates: ArrayTree, i: int) -> ArrayTree:
        """Returns the variables of the policy of learner `i`."""
        return pick(candidates, i) if self._batch else candidates

    def constants(self, state: LearnState) -> tuple[Any, dict[str, Any]]:
        """Returns the constants of the loop: (key of the run, numbers of the settings)."""
        devices, numbers = self.loop.devices, self._numbers | state.numbers
        if self.env.axis.size > 1:  # placed scalars would not be weakly typed
            return devices.placed(state.key), {name: float(x) for name, x in numbers.items()}
        return devices.placed((state.key, numbers))

    def begin(self, acting: Acting) -> Acting:
        """Returns the state of acting in environments that were just made."""
        collected, b = acting.collected, self.env.num_envs // self.env.num_groups
        fresh, _ = self._initial(self._numbers, self.keys(jax.random.key(0))[0])
        for name in ("collectors", "replays"):
            if hasattr(fresh, name) and (name == "collectors" or not collected.replays):
                collected = collected._replace(**{name: getattr(fresh, name)})
        shape = (*self._batch, b)
        running = ((np.zeros(shape, np.float32), np.zeros(shape, np.int32)),) * self.env.num_groups
        return acting._replace(round=np.int32(0), beat=np.int32(0), running=running, collected=collected)

    def step(
        self, state: LearnState, *, monitor: Monitor | None = None, budget: Budget = UNLIMITED
    ) -> tuple[LearnState, dict[str, Any]]:
        """Makes an iteration, and an evaluation if it is due; see `Algorithm.step`."""
        monitor, evaluator = monitor or (lambda figures: False), self.evaluator
        try:
            try:
                new, row = self.iteration(state, monitor, budget)
            except ActionIsNaN as error:
                width = self.env.num_envs // self.env.num_groups  # of a learner
                learners = sorted({row // width for row in error.rows})
                of = f" (learners {', '.join(map(str, learners))})" if self.num_learners > 1 else ""
                raise NotFinite(f"{error}{of}", learners) from error
            before, after = (x.timesteps // self.num_learners for x in (state, new))
            if evaluator is None or after // evaluator.every == before // evaluator.every:
                return self.exchanged(new, row, before, after)
            began, candidates = time.perf_counter(), self.candidates(new.acting.collected, new.learning)
            seed = seed_of(state.key, new.timesteps, 1)  # differs from the seed of the environments of training
            number, best_returns = self.num_learners, np.zeros(0)
            # Several processes would stop at different moments, so they stop after the evaluation.
            watch = lambda figures: monitor(figures) and jax.process_count() == 1  # noqa: E731
            returns, played = evaluator.play(candidates, number, seed=seed, monitor=watch)
            if state.evaluated.best > -np.inf:
                best_returns, further = evaluator.play(state.evaluated.variables, 1, seed=seed, monitor=watch)
                played += further
            require_finite({"the returns of the evaluation": returns}, self.env.spec.name, number)
            best_of_all = np.tile(best_returns, (number, 1))
            require_finite({"the returns of the best policy": best_of_all}, self.env.spec.name, number)
            counts = {"timesteps": after, "frames": played * self.env.spec.frame_skip}
            policy_of = functools.partial(self.policy_of, candidates)
            evaluated, found = add_evaluation(state.evaluated, policy_of, returns, best_returns, **counts)
            found["evaluation_seconds"] = time.perf_counter() - began
            return self.exchanged(new._replace(evaluated=evaluated), row | found, before, after)
        except BaseException:
            self.close()  # donated buffers and actions in flight cannot be trusted any more
            raise

    def exchanged(
        self, state: LearnState, row: dict[str, Any], before: int, after: int
    ) -> tuple[LearnState, dict[str, Any]]:
        """Lets learners copy better ones if it is due (`PBT`); returns the new state, and the row with the lineage.

        `before` and `after` are the timesteps of each learner before and after the iteration.
        """
        if self.pbt is None:
            return state, row
        for name in self.pbt.explore:
            each = state.numbers[name].tolist()
            row |= {f"pbt_{name}": float(np.mean(each)), f"pbt_{name}{metrics.EACH}": each}
        ranked = "training_mean" if self.evaluator is None else "evaluation_mean"
        parents, scores = np.arange(self.num_learners), row.get(ranked + metrics.EACH)
        if after // self.pbt.every > before // self.pbt.every and scores is not None:
            key = jax.random.key(seed_of(state.key, state.timesteps, 2))
            parents, numbers = self.pbt.exchange(key, jnp.asarray(scores), state.numbers)
            devices, (_, acting, learning) = self.loop.devices, self.loop.continuation

            def copies(tree: ArrayTree) -> Any:
                return devices.placed(pick(devices.whole(tree), parents))

            def copied_moments(x: Any) -> Any:
                return copies(x) if isinstance(x, Moments) else x

            collected = jax.tree.map(copied_moments, acting.collected, is_leaf=lambda x: isinstance(x, Moments))
            acting, learning = acting._replace(collected=collected), copies(learning)
            if self.evaluator is None:  # a copy is not judged by the episodes of the learner that it replaced
                total = jnp.where(parents == np.arange(self.num_learners), devices.whole(acting.episodes.total), 0)
                acting = acting._replace(episodes=acting.episodes._replace(total=devices.placed(total)))
            state = self.completed(state._replace(numbers=numbers), acting, learning)
        return state, row | {"pbt_parent" + metrics.EACH: np.asarray(parents).tolist()}

    def iteration(self, state: LearnState, monitor: Monitor, budget: Budget) -> tuple[LearnState, dict[str, Any]]:
        """Returns the next state and the row of metrics, without evaluation."""
        loop, devices, schedule = self.loop, self.loop.devices, self.schedule
        all_envs = self.env.all_envs * self.num_learners
        is_open, acting, learning = self.opened(state, monitor)
        # The loop donates its arguments, and the state of the caller must outlive it.
        acting = copied(acting._replace(timesteps=devices.placed(jnp.int32(0))))
        learning = copied(learning._replace(metrics=devices.placed(zeros(state.learning.metrics))))
        first_round, rounds, timesteps = int(devices.local(acting.round)), 0, 0
        # Timesteps of the whole run, summed over learners, at which the iteration ends.
        ends = [budget.timesteps * self.num_learners, budget.frames / self.env.spec.frame_skip]
        periods = (schedule.timesteps_per_iteration, *(x and x.every for x in (self.evaluator, self.pbt)))
        for period in (x * self.num_learners for x in periods if x is not None):
            ends.append((state.timesteps // period + 1) * period)
        limit = min(ends) - state.timesteps

        def progress() -> tuple[int, int, int]:
            """Returns (done, total, rounds left), in rounds or timesteps."""
            # Timesteps that begin an episode do not count, so that these rounds may not be enough, and some follow.
            left = max((limit - timesteps) / (all_envs * schedule.beats_per_round), 0)
            if schedule.rounds_per_iteration is None:
                return timesteps // self.num_learners, math.ceil(limit / self.num_learners), math.ceil(left)
            now = first_round + rounds - schedule.delay
            before = max(first_round - schedule.delay, 0)  # the first rounds have nothing to learn from
            total = schedule.rounds_per_iteration
            return max(now, 0) - before, total, math.ceil(min(left, before + total - now))

        rates = uncounted = np.zeros(3)
        began = time.perf_counter()
        chunks = loop.run(acting, learning, self.constants(state), rounds_left=lambda acting: progress()[2])
        for after, new_rounds in chunks:
            acting, learning, rounds = after.carry, after.memory, rounds + new_rounds
            timesteps, learned = int(devices.sum(acting.timesteps)), devices.whole(learning)
            small = devices.whole(emptied(acting.collected, "collectors", "replays"))
            policy = {"the policy": jax.device_get(self.candidates(small, learned))}
            require_finite(learned.metrics | policy, self.env.spec.name, self.num_learners)
            predictions = rounds * schedule.beats_per_round * all_envs
            updates = mean_count(learned.update) - mean_count(state.learning.update)
            counts = np.array([predictions, updates, timesteps * self.env.spec.frame_skip])
            rates = (counts - uncounted) / (time.perf_counter() - began)
            done, total, left = progress()
            if not is_open and rounds == new_rounds and left:  # rates leave compilation out
                began, uncounted = time.perf_counter(), counts
            figures = {"phase": "training", "done": done, "total": total, "stepped": timesteps}
            if self.stops(monitor, figures | {"frames_per_second": float(rates[2])}) and left:
                raise Interrupted(f"{done} of {total} parts of this iteration were made and are dropped")
            if devices.max_over_processes(time.monotonic() >= budget.deadline) > 0:
                break

        new = self.completed(state._replace(timesteps=state.timesteps + timesteps), acting, learning)
        names = ("predictions_per_second", "updates_per_second", "frames_per_second")
        return new, self.row(new) | dict(zip(names, rates.tolist(), strict=True))

    def completed(self, state: LearnState, acting: Acting, learning: Any) -> LearnState:
        """Returns the state with the acting and learning of the devices, from which the loop can continue."""
        loop, devices = self.loop, self.loop.devices
        dropped = () if devices.mesh is None else ("collectors", "replays")  # they stay on their device
        kept, learned = devices.whole((acting._replace(collected=emptied(acting.collected, *dropped)), learning))
        if self.env.axis.size > 1:
            episodes, gathered = devices.local(self._join(acting.episodes, learning.metrics))
            kept, learned = kept._replace(episodes=episodes), learned._replace(metrics=gathered)
            if not devices.agree(getattr(learning, "params", ())):
                raise ValueError("devices have learned different parameters: sum gradients over env.axis.")
        loop.continuation = learned, acting, learning
        new = state._replace(acting=kept, learning=learned)
        if devices.mesh is None and all(group.resumable for group in loop.groups):
            return new._replace(envs=copied(loop.envs))
        return without(new, "collectors")

    def opened(self, state: LearnState, monitor: Monitor) -> tuple[bool, Acting, Any]:
        """Opens the environments of the state; returns (whether they were open, acting, learning) on devices."""
        loop, devices = self.loop, self.loop.devices
        if loop.continuation is not None and loop.continuation[0] is state.learning:
            return True, *loop.continuation[1:]
        if self.stops(monitor, {"phase": "compiling"}):
            raise Interrupted("before the loop was compiled")
        if state.envs and devices.mesh is None:
            loop.open(0, state.envs)
            return False, state.acting, state.learning
        loop.open(seed_of(state.key, state.timesteps))
        rekeys: Any = [group.rekey for group in loop.groups]
        if self._batch and all(rekeys) and (devices.mesh is None or loop.groups[0].traceable):
            # Each learner gets the environments that it would have alone.
            seeds, b = [seed_of(key, state.timesteps) for key in state.key], self.env.num_envs // self.env.num_groups
            keys, begins = jnp.stack([jax.random.key(seed) for seed in seeds]), jnp.ones(b * self.num_learners, bool)
            for g, rekey in enumerate(rekeys):
                of_group = jax.vmap(environment_keys, (0, None, None))(keys, g, b).ravel()
                env = devices.mapped(rekey)(loop.envs[g], *devices.placed((begins, of_group)))
                loop.envs = replaced(loop.envs, g, env)
        acting, learning = devices.placed((self.begin(state.acting), state.learning))
        if self.env.axis.size > 1:  # the episodes so far are counted once
            once = [zeros(state.acting.episodes) if i else state.acting.episodes for i in devices.numbers]
            acting = acting._replace(episodes=devices.joined(*once))
        return False, acting, learning

    def stops(self, monitor: Monitor, figures: dict[str, Any]) -> bool:
        """Returns whether the monitor of any process asks to stop."""
        return self.loop.devices.max_over_processes(bool(monitor(figures))) > 0

    def row(self, state: LearnState) -> dict[str, Any]:
        """Returns the row of an iteration, without rates; raises FloatingPointError if returns are not finite."""
        learning, each, sums = state.learning, [], []
        small = jax.device_get((state.acting.episodes, learning.metrics))
        compressions = compressions_of(learning, self.num_learners)
        for i in range(self.num_learners):
            scored, gathered = pick(small, i) if self._batch else small
            scores = metrics.scores(scored, num_envs=self.env.all_envs)
            sums.append(sum(scores.values()))
            each.append(scores | compressions[i] | metrics.compute(gathered))
        require_finite({"the returns of episodes": np.array(sums)}, self.env.spec.name, self.num_learners)
        row = {"update": mean_count(learning.update), "frames": state.timesteps * self.env.spec.frame_skip}
        row |= {"timesteps": state.timesteps // self.num_learners, "episodes": int(small[0].total.sum())}
        return row | row_of(each)

    def variables(self, state: LearnState) -> ArrayTree:
        """Returns the variables of the best policy, or of the latest if nothing ranks them."""
        evaluated = state.evaluated
        return evaluated.variables if evaluated and evaluated.best > -np.inf else self.last_variables(state)

    def last_variables(self, state: LearnState) -> ArrayTree:
        """Returns the variables of the latest policy, of the best learner if there are several."""
        if not self._batch:
            return self.latest(state, 0)
        if state.evaluated and state.evaluated.best > -np.inf:
            return self.latest(state, int(np.argmax(state.evaluated.latest)))
        episodes = jax.device_get(state.acting.episodes)
        scores = [metrics.scores(pick(episodes, i)).get("training_mean", -np.inf) for i in range(self.num_learners)]
        return self.latest(state, int(np.argmax(scores)))

    def latest(self, state: LearnState, i: int) -> ArrayTree:
        """Returns the variables of the latest policy of learner `i`."""
        return self.policy_of(self.candidates(state.acting.collected, state.learning), i)

    def save(self, state: LearnState) -> LearnState:
        """Returns the part of the state that checkpoints hold."""
        saves_replay = getattr(self.stages.settings, "save_replay", True) and int(state.acting.draws) > 0
        return state if saves_replay else without(state, "collectors", "replays")

    def restore(self, saved: ArrayTree) -> LearnState:
        """Returns the state of nested dictionaries, in which fields that were not saved are missing."""
        if self.loop.devices.mesh is not None:  # environments and replays belong to one device
            collected = saved["acting"].get("collected", {})
            empty = {name: () for name in ("collectors", "replays") if name in collected}
            saved = saved | {"acting": saved["acting"] | {"running": (), "collected": collected | empty}, "envs": ()}
        paths = by_path(saved)
        has_envs = any(path[0] == "envs" for path in paths)
        has_replays = any(path[:3] == ("acting", "collected", "replays") for path in paths)

        def like(key: Array) -> LearnState:
            state = self.init(key)
            state = state if has_replays else without(state, "collectors", "replays")
            if has_envs:
                envs = tuple(group.init() for group in self.loop.make_groups(0))
                state = state._replace(acting=self.begin(state.acting), envs=envs)
            return state

        key = jax.random.key(0, impl=jax.random.key_impl(paths[("key",)]))
        return restored(saved, jax.eval_shape(like, key), owner="algorithm")

    def profile(self, state: LearnState, seconds: float) -> tuple[float, float, float]:
        """Times the parts of the loop on a copy of the state."""
        untimed = self.schedule.delay + 1  # the first rounds have nothing to learn from
        try:
            _, acting, learning = self.opened(state, lambda figures: False)
            acting, learning, constants = *copied((acting, learning)), self.constants(state)
            return time_parts(self.loop, acting, learning, constants, seconds=seconds, untimed_rounds=untimed)
        finally:
            self.loop.close()

    def close(self) -> None:
        """Frees all environments."""
        self.loop.close()
        if self.evaluator is not None:
            self.evaluator.close()


def without(state: LearnState, *names: str) -> LearnState:
    """Returns the state without its environments, and without these fields of `collected`."""
    collected = emptied(state.acting.collected, *names)
    return state._replace(acting=state.acting._replace(running=(), collected=collected), envs=())


def emptied(collected: Any, *names: str) -> Any:
    """Returns the data that acting collects, without these fields."""
    empty = {name: () for name in names if hasattr(collected, name)}
    return collected._replace(**empty) if empty else collected


class NotFinite(FloatingPointError):
    """Numbers of some learners are not finite.

    Attributes:
      learners: Their numbers.
    """

    def __init__(self, message: str, learners: Sequence[int] = ()):
        # Unpickling passes the message alone, and then sets `learners`.
        super().__init__(message)
        self.learners = learners


def require_finite(trees: dict[str, ArrayTree], env_name: str, num_learners: int) -> None:
    """Raises `NotFinite`, which names the trees that are not finite. For several learners, leaves are `[S, ...]`."""
    always = np.zeros(num_learners)  # of a tree without leaves
    finite = {
        name: np.all(
            [np.isfinite(x).reshape(num_learners, -1).all(1) for x in (*jax.tree.leaves(tree), always)], axis=0
        )
        for name, tree in trees.items()
    }
    if wrong := [name for name, each in finite.items() if not each.all()]:
        learners = np.flatnonzero(~np.all(list(finite.values()), axis=0)).tolist()
        of = f" of learners {', '.join(map(str, learners))}" if num_learners > 1 else ""
        raise NotFinite(
            f"not finite: {', '.join(wrong)}{of}; this iteration is dropped. Check the rewards and observations of "
            f"{env_name}, lower the learning rate, or clip the gradient. In a loss of your own, check for empty means.",
            learners,
        )


def networks_and_masks(learning: Any) -> tuple[ArrayTree, ArrayTree]:
    """Returns (parameters, masks or None) of networks by name, on the host."""
    # Networks of their own optimisers are a record, and their optimisers too.
    several = hasattr(learning.params, "_asdict") and type(learning.optimizer) is type(learning.params)
    params, optimizer = (x._asdict() if several else {"params": x} for x in (learning.params, learning.optimizer))
    params = {name: x for name, x in params.items() if jax.tree.leaves(x)}
    masks = {name: masks_of(optimizer[name]) for name in params} if is_sparse(learning.optimizer) else None
    return jax.device_get((params, masks))


def compressions_of(learning: Any, num_learners: int) -> list[dict[str, float]]:
    """Returns the `compression` of each learner's networks; {} if nothing is compressed."""
    has_networks = hasattr(learning, "params") and hasattr(learning, "optimizer")
    if not has_networks or not (is_sparse(learning.optimizer) or is_grouped(learning.params)):
        return [{}] * num_learners
    networks = networks_and_masks(learning)
    each = [networks] if num_learners == 1 else [pick(networks, i) for i in range(num_learners)]
    return [{"compression": table(*one)[-1]["compression"]} for one in each]


def mean_count(update: Array) -> int:
    """Returns the number of updates, the mean over several learners."""
    return int(np.mean(np.asarray(update)))


def row_of(each: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Returns the means of metrics over learners by name, and lists of them by `NAME_each`; the row of one as it is.

    `training_best` is the best of all.
    """
    if len(each) == 1:
        return each[0]
    lists = {name: [row[name] for row in each] for name in each[0] if all(name in row for row in each)}
    means = {name: max(x) if name == "training_best" else float(np.mean(x)) for name, x in lists.items()}
    return means | {name + metrics.EACH: x for name, x in lists.items()}
