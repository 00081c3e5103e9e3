"""What all learners share: the loop, the row of metrics, and what happens between two iterations.

    algorithm = vx.learn(vx.A3C(), vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso()), env)
    run = vx.train(algorithm, seed=0, steps=100, run_dir="runs/pong")

An algorithm is one file beside this one: its settings, a frozen dataclass with a method `bind`, and the `Learner`
(`learners/protocol.py`) that this method returns.
"""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox._arguments import check_env, check_network, said
from volvox._checks import integer, one_thread, typed_key
from volvox._resources import check_memory, size_of
from volvox.checkpoint import restored
from volvox.data import metrics
from volvox.data.metrics import Metrics
from volvox.learners import evaluation, side_by_side
from volvox.learners.evaluation import PolicyEvaluator
from volvox.learners.protocol import Learner, LearnerSettings, Made, Progress
from volvox.ops.flat import by_path
from volvox.rollout.devices import devices_of
from volvox.rollout.driver import Loop, Monitor, copied, is_timed, seed_of
from volvox.rollout.pipeline import Stages
from volvox.types import Algorithm, Array, ArrayTree, Env, EnvGroup, Interrupted

_EVALUATION_EPISODES = 10
_OF_DEVICES = {"collectors", "replays"}
"""Fields of `acting` that are not saved if there are several devices, each of which has its own."""


class LearnState(NamedTuple):
    """A run between two iterations.

    Attributes:
      key: Key of all random numbers; the loop's constant.
      acting: What acting changes and what outlives pools of environments.
      learning: What learning changes: parameters, the optimiser's state and whatever else the learner keeps.
      timesteps: Timesteps of all environments, without those that begin an episode.
      evaluated: What evaluations have found, `Evaluated`; () without them.
      place: Where resumable environments (`EnvGroup.resumable`) are, `Place`; () before the first iteration, and with
        other environments, which begin new episodes when a state is restored.
    """

    key: Array
    acting: Any
    learning: Any
    timesteps: int
    evaluated: Any = ()
    place: Any = ()


class Place(NamedTuple):
    """States of the environments between two iterations, from which a run continues with the same bits.

    Attributes:
      envs: States of the groups of environments, to which actions have been sent.
      iterations: Iterations made since they began.
    """

    envs: tuple[ArrayTree, ...]
    iterations: int


def learn(
    settings: LearnerSettings,
    network: Any,
    env: Env,
    *,
    evaluate_every: int | None = None,
    num_evaluation_episodes: int = _EVALUATION_EPISODES,
    chunk_seconds: float = 1.0,
    host: bool = False,
    devices: Sequence[Any] | None = None,
) -> Algorithm:
    """Joins a learner's settings, networks and an environment into an algorithm; one step is an iteration.

        algorithm = learn(TD3(), ActorAndCritic(MLP(6, (256, 256), activation=nn.relu), QNetwork()), env)
        state, metrics = algorithm.step(algorithm.init(jax.random.key(0)))

    Args:
      settings: Settings of the learner, which also say how long an iteration is.
      network: The network that these settings train, e.g. a flax module.
      env: The environments, in groups that take turns.
      evaluate_every: Timesteps of each learner between two evaluations, which are made at the end of the iteration in
        which they are due. None: there are none.
      num_evaluation_episodes: Episodes of an evaluation, of each learner.
      chunk_seconds: Seconds, about, between two looks at progress and interrupts.
      host: Whether the loop is driven from Python, for platforms where it cannot be compiled whole.
      devices: Devices that learn together as one program, each with environments of its own, as many as `env` says:
        N devices learn what one with N times the environments would, and settings that count environments, timesteps,
        frames or transitions count those of all. None: all devices of all processes, where
        `volvox.distributed.initialize` was called in several; otherwise one device.

    Returns:
      `Algorithm`. Its rows hold the learner's own metrics; `update`, the updates so far; `frames`, the emulator frames
      so far, without those that begin an episode; `predictions_per_second`, which counts the timesteps that begin an
      episode too; `updates_per_second` and `frames_per_second`. In the second iteration after a start, and in every
      tenth from there, a few rounds are played with a stopwatch, which the rates leave out; the row then also has
      `share_emulators`, `share_inference`, `share_learning` and `speed_over_turns` (`Times`). `step` raises
      FloatingPointError when a number is no longer finite. In pure-JAX environments, on one device and with all of its
      state saved (`TD3.save_replay`), a restored run goes on bit by bit. In others it begins new episodes, and the
      seed of the environments depends on the timesteps before.

      An evaluation plays whole episodes with the likeliest actions, in environments of its own. Rows then have
      `evaluation_mean`; its `evaluation_standard_error` over episodes; `evaluation_best`, the largest mean so far;
      `evaluation_timesteps`, those of each learner so far; `evaluation_frames`, the emulator frames of all evaluations,
      which `frames` does not count; and `evaluation_seconds`, which no rate counts. With several learners there is an
      `evaluation_mean_0` and so on for each, and the mean is over all of them. `Algorithm.variables` gives the policy
      of the best evaluation, and `Algorithm.last_variables` that of the learner which was best in the latest. As a
      maximum, `evaluation_best` is higher than the mean return of its policy: play fresh episodes to know that.

    Raises:
      ValueError: The network or the environment does not fit the settings, a number is not positive, the learner cannot
        learn on several devices, or the state does not fit into the memory that is free.
    """
    if not hasattr(settings, "bind") or isinstance(settings, type | nn.Module):
        wanted = "a learner's settings, such as vx.A3C() or vx.TD3(), a network, an env"
        raise TypeError(f"learn takes {wanted}; got {said(settings)}")
    if not (dataclasses.is_dataclass(settings) and getattr(settings, "__dataclass_params__").frozen):  # noqa: B009
        raise TypeError(
            f"{type(settings).__name__} is no frozen dataclass, whose fields are what a resumed run is compared with: "
            "write @dataclasses.dataclass(frozen=True) above it."
        )
    check_network("learn(settings, network, env)", network)
    check_env("learn(settings, network, env)", env)
    integer("num_evaluation_episodes", num_evaluation_episodes, low=1)
    if evaluate_every is None and num_evaluation_episodes != _EVALUATION_EPISODES:
        raise ValueError(f"num_evaluation_episodes={num_evaluation_episodes} needs evaluate_every; give both, or none.")
    together = devices_of(devices)
    env = env._replace(axis=together.axis)
    learner = settings.bind(network, env)
    if not hasattr(learner, "act"):
        raise TypeError(f"{type(settings).__name__}.bind must return a learner; it returned {said(learner)}")
    # What is made before the first step is made by each process alone.
    alone = settings.bind(network, env._replace(axis=dataclasses.replace(env.axis, name=None)))
    if together.mesh is not None and not getattr(learner, "parallel", False):
        instead = "start one process" if devices is None else f"leave out devices={devices}"
        raise ValueError(f"{type(settings).__name__} learns on one device: {instead}, or take A3C, PPO or TD3.")
    stages = Stages(learner.act, learner.work, None, None, learner.finish)
    make_groups, how = functools.partial(_make_groups, env, host), {"beats_per_round": learner.beats_per_round}
    loop = Loop(stages, make_groups, **how, chunk_seconds=chunk_seconds, devices=together)
    config = {"type": "volvox.learn", "settings": settings, "network": network, "env": dict(env.config)}
    evaluator = None
    if evaluate_every is not None:
        config["evaluate_every"] = integer("evaluate_every", evaluate_every, low=1, high=None)
        config["num_evaluation_episodes"] = num_evaluation_episodes
        policies = jax.eval_shape(lambda key: learner.candidates(alone.init(key)[1]), jax.random.key(0))
        sizes = {"num_learners": len(policies), "num_episodes": num_evaluation_episodes}
        evaluator = PolicyEvaluator(learner.policy, env, **sizes)
    run = _Run(learner, loop, env, evaluator, evaluate_every or 0, alone.init)
    state = jax.eval_shape(run.init, jax.random.key(0))  # raises where something does not fit
    # Twice: an iteration works on a copy, and what it began with is kept until it ends.
    sizes = {"replay and what else acting keeps": 2 * size_of(state.acting)}
    sizes["parameters and optimizer"] = 2 * size_of(state.learning)
    check_memory(sizes, "take a smaller replay (TD3: replay_size), fewer environments or smaller networks")
    return Algorithm(
        init=run.init,
        step=run.step,
        variables=run.variables,
        policy=learner.policy,
        env=env,
        config=config,
        close=run.close,
        save=run.save,
        restore=run.restore,
        last_variables=run.last_variables,
        step_name="iteration",
        lock=run.lock,
        max_over_processes=None if jax.process_count() == 1 else together.largest,
    )


def _make_groups(env: Env, host: bool, seed: int, device: int = 0) -> tuple[EnvGroup, ...]:
    """Makes the groups of the device of a number."""
    first = {"first_group": device * env.num_groups} if device else {}
    return env.make(seed, host=host, **first)


class _Standing(NamedTuple):
    """Where the loop stands between two iterations.

    Attributes:
      of: `LearnState.learning` of the state that continues from here.
      learning: The same, placed on all devices.
      acting: `LearnState.acting` of that state, with the collectors of the pools, on all devices.
      iterations: Iterations made with these pools.
    """

    of: Any
    learning: Any
    acting: Any
    iterations: int


@dataclasses.dataclass(frozen=True, eq=False)
class _Run:
    learner: Learner
    loop: Loop
    env: Env
    evaluator: PolicyEvaluator | None
    evaluate_every: int
    first: Callable[[Array], tuple[Any, Any]]
    lock: Any = dataclasses.field(default_factory=threading.RLock)

    def init(self, key: int | Array) -> LearnState:
        init_key, run_key = jax.random.split(typed_key(key))
        acting, learning = jax.jit(self.first)(init_key)
        evaluated = () if self.evaluator is None else evaluation.init(self.learner.candidates(learning))
        return LearnState(run_key, acting, learning, 0, evaluated)

    def close(self) -> None:
        with one_thread(self.lock):
            self.loop.close()
            if self.evaluator is not None:
                self.evaluator.close()

    def variables(self, state: LearnState) -> ArrayTree:
        evaluated = state.evaluated
        return evaluated.variables if evaluated and evaluated.best > -np.inf else self.last_variables(state)

    def last_variables(self, state: LearnState) -> ArrayTree:
        candidates, evaluated = self.learner.candidates(state.learning), state.evaluated
        if len(candidates) == 1:
            return candidates[0]
        if evaluated and evaluated.best > -np.inf:
            return candidates[int(np.argmax(evaluated.latest))]
        scores = [one.get("training_mean", -np.inf) for one in side_by_side.scores(state.acting.episodes)]
        return candidates[int(np.argmax(scores))]

    def save(self, state: LearnState) -> LearnState:
        if not self.learner.unsaved:
            return state
        parts = dict.fromkeys(("collectors", *self.learner.unsaved), ())
        return state._replace(acting=state.acting._replace(**parts), place=())

    def restore(self, saved: ArrayTree) -> LearnState:
        if self.loop.devices.mesh is not None:  # what belongs to one device is not for several
            own = dict.fromkeys(("collectors", *self.learner.unsaved), ())
            saved = {**saved, "acting": {**saved["acting"], **own}, "place": ()}
        held = {path[1] for path in by_path(saved) if path[0] == "acting"}

        def like(key: Array) -> LearnState:
            state = self.save(self.init(key))
            # Several devices save less.
            acting = state.acting._replace(**dict.fromkeys(_OF_DEVICES & {*state.acting._fields} - held, ()))
            state = state._replace(acting=acting)
            if not any(path[0] == "place" for path in by_path(saved)):
                return state
            groups = self.loop.make_groups(0)
            envs = tuple(group.init() for group in groups)
            return state._replace(acting=self.learner.begin(state.acting, groups), place=Place(envs, 0))

        return restored(saved, jax.eval_shape(like, jax.random.key(0)), what="state")

    def step(self, state: LearnState, *, monitor: Monitor | None = None) -> tuple[LearnState, dict[str, Any]]:
        with one_thread(self.lock):
            try:
                monitor = monitor or (lambda progress: False)
                with self.loop.devices.together():
                    new, row = self.iteration(state, monitor)
                if self.evaluator is not None:
                    new, evaluated = self.evaluate(new, state.timesteps, self.evaluator, monitor)
                    row |= evaluated
                return new, row
            except BaseException:
                self.close()  # donated buffers and pools in flight cannot be trusted any more
                raise

    def evaluate(
        self, state: LearnState, before: int, evaluator: PolicyEvaluator, monitor: Monitor
    ) -> tuple[LearnState, dict[str, Any]]:
        """Evaluates the policies if that is due, `before` being the timesteps before the iteration."""
        candidates = self.learner.candidates(state.learning)
        timesteps, earlier = (count // len(candidates) for count in (state.timesteps, before))
        if timesteps // self.evaluate_every == earlier // self.evaluate_every:
            return state, {}
        began = time.perf_counter()
        # Another seed than that of the training's pools.
        returns, played = evaluator.play(candidates, seed=seed_of(state.key, state.timesteps, 1), monitor=monitor)
        self.check_finite({"the returns of the evaluation": returns}, int(state.learning.update))  # NaN has no rank
        how = {"timesteps": timesteps, "frames": played * self.env.spec.frame_skip}
        evaluated, row = evaluation.update(state.evaluated, candidates, returns, **how)
        return state._replace(evaluated=evaluated), row | {"evaluation_seconds": time.perf_counter() - began}

    def iteration(self, state: LearnState, monitor: Monitor) -> tuple[LearnState, dict[str, Any]]:
        learner, loop, frame_skip = self.learner, self.loop, self.env.spec.frame_skip
        standing, devices = self.stand(state, monitor), self.loop.devices
        uncompiled = standing is not loop.standing  # the loop was opened just now
        begun, first, key = standing.acting, int(state.learning.update), devices.placed(state.key)
        # The loop donates what it is given; the state passed in, and what the last iteration returned, must outlive it.
        acting, learning = copied((begun, standing.learning))
        learning = learning._replace(metrics=devices.placed(metrics.zeros(learning.metrics)))
        times, rounds_left = None, lambda acting: self.progress(state, begun, acting).rounds_left
        if is_timed(standing.iterations) and learner.timed_rounds < rounds_left(acting):
            note = "measuring what bounds the run; its program is compiled first"
            if (uncompiled or standing.iterations == 1) and self.stops(monitor, {"phase": "compiling", "note": note}):
                raise Interrupted("before the stopwatch was compiled")
            acting, learning, times = loop.time_parts(acting, learning, key, rounds=learner.timed_rounds)
        began, updates, rounds, counted = time.perf_counter(), int(learning.update), 0, 0
        timesteps = before = self.made(begun, acting)
        for chunk in loop.run(acting, learning, key, rounds_left=rounds_left):
            acting, learning = chunk.carry, chunk.memory
            rounds, timesteps = rounds + chunk.rounds, self.made(begun, acting)
            self.check_finite(learning.metrics | learner.watched(learning), int(learning.update))
            progress = self.progress(state, begun, acting, _difference(learning.update, first))
            shown = {"phase": "training", "done": progress.done, "total": progress.total, "stepped": timesteps}
            rate = (timesteps - before) * frame_skip / (time.perf_counter() - began)
            if uncompiled and rounds == chunk.rounds and progress.rounds_left:  # rates leave compiling out
                began, before, updates, counted = time.perf_counter(), timesteps, int(learning.update), rounds
            if self.stops(monitor, shown | {"frames_per_second": rate}) and progress.rounds_left:
                raise Interrupted(f"{progress.done} of {progress.total} {progress.unit} were made and are dropped")
        seconds = time.perf_counter() - began

        iterations, place = standing.iterations + 1, ()
        here, learned = devices.local((acting, learning))
        here, gathered = self.joined(acting, learning.metrics, here)
        loop.standing, kept = _Standing(learned, learning, acting, iterations), here._replace(collectors=())
        if devices.mesh is None and all(group.resumable for group in loop.groups):
            place, kept = Place(copied(loop.envs), iterations), here
        total = state.timesteps + timesteps
        row = {"update": int(learned.update), "frames": total * frame_skip}
        row |= learner.row(here, learned, total) | metrics.compute(gathered)
        returns = {name: value for name, value in row.items() if name.startswith("training_")}
        self.check_finite({"the returns of episodes": returns}, int(learned.update))
        row["predictions_per_second"] = (rounds - counted) * learner.beats_per_round * self.env.all_envs / seconds
        row["updates_per_second"] = _difference(learned.update, updates) / seconds
        row["frames_per_second"] = (timesteps - before) * frame_skip / seconds
        if times is not None:
            row |= times.shares(row["predictions_per_second"] / self.env.axis.size, working="learning")
        return LearnState(state.key, kept, learned, total, state.evaluated, place), row

    def stops(self, monitor: Monitor, figures: dict[str, Any]) -> bool:
        """Whether the monitor of any process asks to stop."""
        return self.loop.devices.largest(bool(monitor(figures))) > 0

    def made(self, begun: Any, acting: Any) -> int:
        """Timesteps that all devices have made since `begun`."""
        return _difference(*self.loop.devices.sum((acting.timesteps, begun.timesteps)))

    def joined(self, acting: Any, gathered: Metrics, here: Any) -> tuple[Any, Metrics]:
        """Returns `here`, what acting is on this device, with the episodes of all devices, and the metrics of all."""
        devices = self.loop.devices
        if devices.mesh is None:
            return here, gathered
        join = jax.jit(devices.mapped(functools.partial(metrics.joined, axis=self.env.axis)))
        episodes, gathered = devices.local(devices.waited(join(acting.episodes, gathered)))
        return here._replace(episodes=episodes), gathered

    def progress(self, state: LearnState, start: Any, acting: Any, updates: int = 0) -> Progress:
        """Returns the progress of the iteration after `state`."""
        return self.learner.progress(start, acting, Made(state.timesteps, self.made(start, acting), updates))

    def stand(self, state: LearnState, monitor: Monitor) -> _Standing:
        """Returns where the loop stands if the state is its latest; otherwise the state with new pools."""
        standing, devices = self.loop.standing, self.loop.devices
        if standing is not None and standing.of is state.learning:
            return standing
        if self.stops(monitor, {"phase": "compiling"}):
            raise Interrupted("before the loop was compiled")
        if state.place and devices.mesh is None:
            self.loop.open(0, state.place.envs)
            return _Standing(state.learning, state.learning, state.acting, state.place.iterations)
        self.loop.open(seed_of(state.key, state.timesteps))
        acting = self.learner.begin(state.acting, self.loop.groups)
        if devices.mesh is not None:
            # The episodes so far are counted once.
            later = acting._replace(episodes=jax.tree.map(jnp.zeros_like, acting.episodes))
            acting = devices.placed(*(later if number else acting for number in devices.numbers))
        return _Standing(state.learning, devices.placed(state.learning), acting, 0)

    def check_finite(self, watched: dict[str, ArrayTree], update: int) -> None:
        wrong = [name for name, tree in watched.items() if not all(np.isfinite(x).all() for x in jax.tree.leaves(tree))]
        if wrong:
            raise FloatingPointError(
                f"no longer finite by update {update}: {', '.join(wrong)}; nothing of this iteration is kept. First "
                f"make sure that all rewards and observations of {self.env.spec.name} are finite. If they are, lower "
                "the learning rate, or clip the gradient; in a loss of your own, look for a mean over nothing."
            )


def _difference(now: Any, before: Any) -> int:
    """Returns the difference of two int32 counts, whatever overflow there was between them."""
    return (int(now) - int(before)) % 2**32
