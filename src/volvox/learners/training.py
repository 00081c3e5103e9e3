"""The loop that trains a learner: its state, its iterations, and how it is saved and restored.

algorithm = vx.learn(vx.A3C(), vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso()), env)
run = vx.train(algorithm, seed=0, steps=100, run_dir="runs/pong")
"""

import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import check_has, check_memory, check_type, size_of, typed_key
from volvox.data import metrics
from volvox.learners.evaluation import Evaluated, PolicyEvaluator, require_finite
from volvox.learners.learner import Acting, LearnerSettings, LearnerStages
from volvox.learners.optimizers import compression_row
from volvox.ops.flat import by_path, restored
from volvox.rollout.devices import ALONE, Devices, devices_of
from volvox.rollout.loop import Loop, Monitor, Stages, copied, seed_of, time_parts
from volvox.types import Algorithm, Array, ArrayTree, Env, EnvGroup, Interrupted, zeros


class LearnState(NamedTuple):
    """State of a run between two iterations.

    Attributes:
      key: Key of all random numbers.
      acting: State of acting.
      learning: State of learning: parameters, the optimiser's state, and what else the learner keeps.
      timesteps: Timesteps of all environments, without those that begin an episode.
      evaluated: Results of evaluations, `Evaluated`; () without evaluation.
      envs: States of resumable environments (`EnvGroup.resumable`), to which actions have been sent. () before the
        first iteration and for other environments, which begin new episodes when a run is resumed.
    """

    key: Array
    acting: Acting
    learning: Any
    timesteps: int
    evaluated: Any = ()
    envs: tuple[ArrayTree, ...] = ()


def learn(
    settings: LearnerSettings,
    network: Any,
    env: Env,
    *,
    evaluate_every: int | None = None,
    num_evaluation_episodes: int = 10,
    num_evaluation_envs: int | None = None,
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
      num_evaluation_envs: Largest number of environments of an evaluation, beside those of training. None: the number
        of environments that learn on one device.
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
    evaluation = (evaluate_every, num_evaluation_episodes, num_evaluation_envs)
    run = Training(settings, network, env, evaluation, chunk_seconds, host, devices_of(devices))
    state = jax.eval_shape(run.init, jax.random.key(0))  # raises if something does not fit
    # Twice, because an iteration works on a copy of the state.
    sizes = {"replay and segments": 2 * size_of(state.acting), "parameters and optimizer": 2 * size_of(state.learning)}
    check_memory(sizes, "use a smaller replay (TD3: replay_size), fewer environments or smaller networks")
    config = {"type": "volvox.learn", "settings": settings, "network": network, "env": env.config}
    config |= {"evaluate_every": evaluate_every, "num_evaluation_episodes": num_evaluation_episodes}
    config |= {"num_evaluation_envs": num_evaluation_envs}
    return Algorithm(
        init=run.init,
        step=run.step,
        variables=run.variables,
        policy=run.learner.policy,
        env=run.env,
        config=config,
        close=run.close,
        save=run.save,
        restore=run.restore,
        last_variables=run.last_variables,
        profile=run.profile,
        step_name="iteration",
        max_over_processes=None if jax.process_count() == 1 else run.loop.devices.largest,
    )


class Training:
    """The functions of the algorithm that `learn` makes.

    Attributes:
      learner: The learner.
      schedule: Its schedule.
      env: The environments.
      loop: The loop.
      evaluator: Evaluation during learning; None without.
      saves_replay: Whether checkpoints hold replays.
    """

    def __init__(
        self,
        settings: Any,
        network: Any,
        env: Env,
        evaluation: tuple[Any, ...] = (None,),
        chunk_seconds: float = 1.0,
        host: bool = False,
        devices: Devices = ALONE,
    ):
        """Prepares a training; the first iteration makes the environments. Arguments are those of `learn`."""
        # Each process makes the initial state alone, without a device axis.
        self._initial = jax.jit(settings.bind(network, env).init)
        self.env = env = env._replace(axis=devices.axis)
        self.learner, self.schedule = settings.bind(network, env), settings.schedule(env)
        self.num_learners = self.schedule.num_learners or 1
        self.saves_replay = getattr(settings, "save_replay", True) and env.axis.size == 1
        self.evaluator = None
        if evaluation[0] is not None:
            self.evaluator = PolicyEvaluator(self.learner.policy, env, self.num_learners, *evaluation)

        def make_groups(seed: int, device: int = 0) -> tuple[EnvGroup, ...]:
            return env.make(seed, host=host, **({"first_group": device * env.num_groups} if device else {}))

        stages = LearnerStages(self.learner, self.schedule, env)
        self.loop = Loop(
            Stages(stages.act, stages.work, None, None, stages.finish),
            make_groups,
            beats_per_round=self.schedule.beats_per_round,
            chunk_seconds=chunk_seconds,
            devices=devices,
        )

    def init(self, key: int | Array) -> LearnState:
        """Returns the state at the beginning of a run."""
        init_key, run_key = jax.random.split(typed_key(key))
        collected, learning = self._initial(init_key)
        zero, episodes = jnp.int32(0), metrics.init_episodes()
        if (s := self.schedule.num_learners) is not None:
            episodes = jax.tree.map(lambda x: jnp.broadcast_to(x, (s, *x.shape)), episodes)
        acting = Acting(zero, zero, zero, zero, episodes, (), collected)
        evaluated: Any = ()
        if self.evaluator is not None:
            candidates, worst = self.learner.variables(learning), jnp.float32(-jnp.inf)
            evaluated = Evaluated(candidates[0], worst, jnp.full(len(candidates), worst), 0)
        return without(LearnState(run_key, acting, learning, 0, evaluated), "collectors")

    def begin(self, acting: Acting) -> Acting:
        """Returns the state of acting in environments that were just made."""
        collected, b = acting.collected, self.env.num_envs // self.env.num_groups
        fresh, _ = self._initial(jax.random.key(0))
        for name in ("collectors", "replays"):
            if hasattr(fresh, name) and (name == "collectors" or not collected.replays):
                collected = collected._replace(**{name: getattr(fresh, name)})
        shape = (b,) if self.schedule.num_learners is None else (self.num_learners, -1)
        running = jax.tree.map(lambda x: x.reshape(shape), (metrics.init_running(b),) * self.env.num_groups)
        return acting._replace(round=jnp.int32(0), beat=jnp.int32(0), running=running, collected=collected)

    def step(self, state: LearnState, *, monitor: Monitor | None = None) -> tuple[LearnState, dict[str, Any]]:
        """Makes an iteration, and an evaluation if it is due; see `Algorithm.step`."""
        monitor = monitor or (lambda figures: False)
        try:
            new, row = self.iteration(state, monitor)
            if self.evaluator is not None:
                evaluated, found = self.evaluator.evaluate(
                    state.evaluated,
                    self.learner.variables(new.learning),
                    seed=seed_of(state.key, new.timesteps, 1),  # another than that of the environments of training
                    timesteps=(state.timesteps // self.num_learners, new.timesteps // self.num_learners),
                    monitor=monitor,
                )
                new, row = new._replace(evaluated=evaluated), row | found
            return new, row
        except BaseException:
            self.close()  # donated buffers and actions in flight cannot be trusted any more
            raise

    def iteration(self, state: LearnState, monitor: Monitor) -> tuple[LearnState, dict[str, Any]]:
        """Returns the next state and the row of metrics, without evaluation."""
        loop, devices, frame_skip = self.loop, self.loop.devices, self.env.spec.frame_skip
        is_open, begun, learning = self.opened(state, monitor)
        # The loop donates its arguments, and the state of the caller must outlive it.
        acting, learning = copied((begun, learning))
        learning = learning._replace(metrics=devices.placed(zeros(state.learning.metrics)))
        rounds = timesteps = updates = 0
        began, before = time.perf_counter(), (0, 0, 0)
        rounds_left = lambda acting: self.progress(state, begun, acting)[2]  # noqa: E731
        for chunk in loop.run(acting, learning, devices.placed(state.key), rounds_left=rounds_left):
            acting, learning, rounds = chunk.carry, chunk.memory, rounds + chunk.rounds
            timesteps = self.made(begun, acting)
            updates = _difference(devices.local(learning.update), state.learning.update)
            local = devices.local(learning)
            policies = {f"the policy of learner {i}": x for i, x in enumerate(self.learner.variables(local))}
            require_finite(local.metrics | policies, self.env.spec.name)
            done, total, left = self.progress(state, begun, acting)
            rate = (timesteps - before[1]) * frame_skip / (time.perf_counter() - began)
            if not is_open and rounds == chunk.rounds and left:  # rates leave compilation out
                began, before = time.perf_counter(), (rounds, timesteps, updates)
            figures = {"phase": "training", "done": done, "total": total, "stepped": timesteps}
            if self.stops(monitor, figures | {"frames_per_second": rate}) and left:
                raise Interrupted(f"{done} of {total} parts of this iteration were made and are dropped")
        seconds = time.perf_counter() - began

        kept, learned = devices.local((acting, learning))
        if devices.mesh is not None:
            join = jax.jit(devices.mapped(functools.partial(metrics.over_devices, axis=self.env.axis)))
            episodes, gathered = devices.local(join(acting.episodes, learning.metrics))
            kept, learned = kept._replace(episodes=episodes), learned._replace(metrics=gathered)
            if not devices.agree(getattr(learning, "params", ())):
                raise ValueError("devices have learned different parameters: sum gradients over env.axis.")
        loop.standing = learned, acting, learning
        new = LearnState(state.key, kept, learned, state.timesteps + timesteps, state.evaluated)
        rates = {
            "predictions": (rounds - before[0]) * self.schedule.beats_per_round * self.env.all_envs,
            "updates": updates - before[2],
            "frames": (timesteps - before[1]) * frame_skip,
        }
        row = self.row(new) | {f"{name}_per_second": count / seconds for name, count in rates.items()}
        if devices.mesh is None and all(group.resumable for group in loop.groups):
            return new._replace(envs=copied(loop.envs)), row
        return without(new, "collectors"), row

    def opened(self, state: LearnState, monitor: Monitor) -> tuple[bool, Acting, Any]:
        """Makes environments, unless those of the state are open; returns (are open, acting, learning) on devices."""
        loop, devices = self.loop, self.loop.devices
        if loop.standing is not None and loop.standing[0] is state.learning:
            return True, *loop.standing[1:]
        if self.stops(monitor, {"phase": "compiling"}):
            raise Interrupted("before the loop was compiled")
        if state.envs and devices.mesh is None:
            loop.open(0, state.envs)
            return False, state.acting, state.learning
        loop.open(seed_of(state.key, state.timesteps))
        acting = self.begin(state.acting)
        if devices.mesh is not None:
            # The episodes so far are counted once.
            later = acting._replace(episodes=zeros(acting.episodes))
            acting = devices.placed(*(later if number else acting for number in devices.numbers))
        return False, acting, devices.placed(state.learning)

    def progress(self, state: LearnState, begun: Acting, acting: Acting) -> tuple[int, int, int]:
        """Returns (done, total, rounds left) of the iteration of `state`, in rounds or timesteps."""
        schedule, local = self.schedule, self.loop.devices.local
        if schedule.timesteps_per_iteration is None:
            total, delay = schedule.rounds_per_iteration or 1, schedule.delay
            before, now = (int(local(x.round)) - delay for x in (begun, acting))
            before = max(before, 0)  # the first rounds have nothing to learn from
            return max(now, 0) - before, total, before + total - now
        made = self.made(begun, acting)
        total = schedule.timesteps_per_iteration * self.num_learners
        missing = total - state.timesteps % total - made
        # Timesteps that begin an episode do not count, so that these rounds may not be enough, and some follow.
        left = max(-(-missing // (self.env.all_envs * schedule.beats_per_round)), 0)
        return made // self.num_learners, schedule.timesteps_per_iteration, left

    def made(self, begun: Acting, acting: Acting) -> int:
        """Returns the timesteps that all devices have made since `begun`."""
        return _difference(*self.loop.devices.sum((acting.timesteps, begun.timesteps)))

    def stops(self, monitor: Monitor, figures: dict[str, Any]) -> bool:
        """Returns whether the monitor of any process asks to stop."""
        return self.loop.devices.largest(bool(monitor(figures))) > 0

    def row(self, state: LearnState) -> dict[str, Any]:
        """Returns the row of an iteration, without rates; raises FloatingPointError if returns are not finite."""
        episodes, learning, schedule = state.acting.episodes, state.learning, self.schedule
        scores = metrics.scores(episodes, num_envs=self.env.all_envs // self.num_learners)
        require_finite({"the returns of episodes": scores}, self.env.spec.name)
        row = {"update": int(learning.update), "frames": state.timesteps * self.env.spec.frame_skip}
        row |= {"timesteps": state.timesteps // self.num_learners, "episodes": int(episodes.total.sum())}
        row |= scores | compression_row(learning, schedule.num_learners)
        if schedule.learning_rate is not None:
            row["learning_rate"] = float(schedule.learning_rate(learning))
        return row | metrics.compute(learning.metrics)

    def variables(self, state: LearnState) -> ArrayTree:
        """Returns the variables of the best policy, or of the latest if nothing ranks them."""
        evaluated = state.evaluated
        return evaluated.variables if evaluated and evaluated.best > -np.inf else self.last_variables(state)

    def last_variables(self, state: LearnState) -> ArrayTree:
        """Returns the variables of the latest policy, of the best learner if there are several."""
        candidates, evaluated = self.learner.variables(state.learning), state.evaluated
        if evaluated and evaluated.best > -np.inf:
            return candidates[int(np.argmax(evaluated.latest))]
        row = metrics.scores(state.acting.episodes)
        return candidates[int(np.argmax([row.get(f"training_mean_{i}", -np.inf) for i in range(len(candidates))]))]

    def save(self, state: LearnState) -> LearnState:
        """Returns the state as it is saved."""
        return state if self.saves_replay else without(state, "collectors", "replays")

    def restore(self, saved: ArrayTree) -> LearnState:
        """Returns the state of nested dictionaries, in which fields that were not saved are missing."""
        if self.loop.devices.mesh is not None:  # environments and replays belong to one device
            collected = saved["acting"].get("collected", {})
            own = {name: () for name in ("collectors", "replays") if name in collected}
            saved = saved | {"acting": saved["acting"] | {"running": (), "collected": collected | own}, "envs": ()}
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

        return restored(saved, jax.eval_shape(like, jax.random.key(0)), what="algorithm")

    def profile(self, state: LearnState, seconds: float) -> tuple[LearnState, Any]:
        """Times the parts of the loop on a copy of the state, whose environments begin new episodes."""
        _, acting, learning = self.opened(state, lambda figures: False)
        acting, learning, key = *copied((acting, learning)), self.loop.devices.placed(state.key)
        untimed = self.schedule.delay + 1  # the first rounds have nothing to learn from
        return state, time_parts(self.loop, acting, learning, key, seconds=seconds, untimed_rounds=untimed)

    def close(self) -> None:
        """Frees all environments."""
        self.loop.close()
        if self.evaluator is not None:
            self.evaluator.close()


def without(state: LearnState, *names: str) -> LearnState:
    """Returns the state without its environments, and without these fields of `collected`."""
    collected = state.acting.collected
    empty = {name: () for name in names if hasattr(collected, name)}
    collected = collected._replace(**empty) if empty else collected
    return state._replace(acting=state.acting._replace(running=(), collected=collected), envs=())


def _difference(now: Any, before: Any) -> int:
    """Returns the difference of two int32 counts, which may have overflowed in between."""
    return (int(now) - int(before)) % 2**32
