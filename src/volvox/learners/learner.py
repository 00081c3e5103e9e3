"""What all learners share: the loop, the row of metrics, and what happens between two iterations.

    algorithm = vx.learn(vx.A3C(), vx.networks.ActorCritic(env.spec.num_actions, vx.networks.SmallTorso()), env)
    run = vx.train(algorithm, seed=0, steps=100, run_dir="runs/pong")

An algorithm is one file beside this one: its settings, a frozen dataclass with a method `bind`, and the `Learner` that
this method returns.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integer
from volvox._settings import describe
from volvox.checkpoint import restored
from volvox.data import metrics
from volvox.learners import evaluation
from volvox.learners.evaluation import Monitor, PolicyEvaluator
from volvox.loop.driver import Loop, seed_of
from volvox.loop.pipeline import Stages
from volvox.types import Algorithm, Array, ArrayTree, Env, EnvGroup, Interrupted, Policy, TimeStep

_TIMED_EVERY = 10
"""Iterations: the second after pools were made has a stopwatch, and every tenth from there."""


class LearnState(NamedTuple):
    """A run between two iterations.

    Attributes:
      key: Key of all random numbers; the loop's constant.
      acting: What acting changes and what outlives pools of environments.
      learning: What learning changes: parameters, the optimiser's state and whatever else the learner keeps.
      timesteps: Timesteps of all environments, without those that begin an episode.
      evaluated: What evaluations have found, `Evaluated`; () without them.
    """

    key: Array
    acting: Any
    learning: Any
    timesteps: int
    evaluated: Any = ()


class Progress(NamedTuple):
    """How far an iteration is.

    Attributes:
      done: Number of `unit` done so far.
      total: Number of `unit` in the iteration.
      unit: What is counted, e.g. "updates".
      rounds_left: Rounds of the loop that may still be run; the iteration ends when there are none.
    """

    done: int
    total: int
    unit: str
    rounds_left: int


class Learner(Protocol):
    """A learning algorithm in an environment: pure functions of what acting and what learning changes.

    The two are the loop's `carry` and `memory`, and `key` is its constant. `acting` has the fields `timesteps`, int32,
    which `act` increases, and `collectors`, which belong to pools of environments and are () between pools. `learning`
    has the fields `update`, int32, the number of updates, and `metrics` (see `volvox.data.metrics`), which is set to
    zero before each iteration.
    """

    @property
    def policy(self) -> Policy:
        """The policy that acts with `variables`."""
        ...

    @property
    def beats_per_round(self) -> int:
        """Beats of a round."""
        ...

    @property
    def timed_rounds(self) -> int:
        """Rounds that are played with the stopwatch, at least 2."""
        ...

    @property
    def unsaved(self) -> tuple[str, ...]:
        """Fields of `acting` that checkpoints do not hold; they are () when a run is resumed, until `begin`."""
        ...

    @property
    def finish(self) -> Callable[[Any, Any, Array], tuple[Any, Any]] | None:
        """(acting, learning, key) -> (acting, learning) at the end of a round, or None; see `volvox.loop.Stages`."""
        ...

    def act(self, acting: Any, learning: Any, key: Array, g: int, timestep: TimeStep) -> tuple[Any, Array]:
        """Returns (acting, action) of group `g`."""
        ...

    def work(self, acting: Any, learning: Any, key: Array, g: int) -> tuple[Any, Any]:
        """Learns while group `g` steps; returns (acting, learning)."""
        ...

    def init(self, key: Array) -> tuple[Any, Any]:
        """Returns (acting, learning) at the beginning of a run."""
        ...

    def begin(self, acting: Any, groups: tuple[EnvGroup, ...]) -> Any:
        """Returns `acting` with the collectors, and what else belongs to pools, for pools that were just made."""
        ...

    def progress(self, begun: Any, acting: Any, updates: int) -> Progress:
        """Returns the progress of an iteration that began at `begun`, after `updates` updates."""
        ...

    def watched(self, learning: Any) -> dict[str, ArrayTree]:
        """Returns, by name, what must stay finite besides the metrics."""
        ...

    def row(self, acting: Any, learning: Any) -> dict[str, Any]:
        """Returns the metrics of an iteration besides `learning.metrics`."""
        ...

    def candidates(self, learning: Any) -> Sequence[ArrayTree]:
        """Returns the variables for `policy.apply`, of each learner where several learn side by side."""
        ...

    def training_scores(self, acting: Any) -> Sequence[float]:
        """Returns a score in training for each of the candidates, by which they are ranked before an evaluation."""
        ...


class LearnerSettings(Protocol):
    """Settings of a learner, such as `A3C` and `TD3`: a frozen dataclass with this method."""

    def bind(self, network: Any, env: Env) -> Learner:
        """Returns the learner of a network in an environment; raises ValueError if they do not fit the settings."""
        ...


def learn(
    settings: LearnerSettings,
    network: Any,
    env: Env,
    *,
    evaluate_every: int | None = None,
    num_evaluation_episodes: int = 10,
    chunk_seconds: float = 1.0,
    host: bool = False,
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

    Returns:
      `Algorithm`. Its rows hold the learner's own metrics; `update`, the updates so far; `frames`, the emulator frames
      so far, without those that begin an episode; `predictions_per_second`, which counts the timesteps that begin an
      episode too; `updates_per_second` and `frames_per_second`. In the second iteration after a start, and in every
      tenth from there, a few rounds are played with a stopwatch, which the rates leave out; the row then also has
      `share_emulators`, `share_inference`, `share_learning` and `speed_over_turns` (`volvox.loop.Times`). `step` raises
      FloatingPointError when a number is no longer finite. A restored state goes on in new environments, whose seed
      depends on the number of timesteps before.

      An evaluation plays whole episodes with the likeliest actions, in environments of its own. Rows then have
      `evaluation_mean`; its `evaluation_standard_error` over episodes; `evaluation_best`, the largest mean so far;
      `evaluation_timesteps`, those of each learner so far; `evaluation_frames`, the emulator frames of all evaluations,
      which `frames` does not count; and `evaluation_seconds`, which no rate counts. With several learners there is an
      `evaluation_mean_0` and so on for each, and the mean is over all of them. `Algorithm.variables` gives the policy
      of the best evaluation, and `Algorithm.last_variables` that of the learner which was best in the latest. As a
      maximum, `evaluation_best` is higher than the mean return of its policy: play fresh episodes to know that.

    Raises:
      ValueError: The network or the environment does not fit the settings, or a number is not positive.
    """
    learner = settings.bind(network, env)
    stages = Stages(learner.act, learner.work, None, None, learner.finish)
    make_groups = functools.partial(env.make, host=host)
    loop = Loop(stages, make_groups, beats_per_round=learner.beats_per_round, chunk_seconds=chunk_seconds)
    config = {"settings": describe(settings), "network": dict(learner.policy.config), "env": dict(env.config)}
    evaluator = None
    if evaluate_every is not None:
        config["evaluate_every"] = integer("evaluate_every", evaluate_every, low=1)
        config["num_evaluation_episodes"] = num_evaluation_episodes
        policies = jax.eval_shape(lambda key: learner.candidates(learner.init(key)[1]), jax.random.key(0))
        sizes = {"num_learners": len(policies), "num_episodes": num_evaluation_episodes}
        evaluator = PolicyEvaluator(learner.policy, env, **sizes)
    run = _Run(learner, loop, env, evaluator, evaluate_every or 0)
    jax.eval_shape(run.init, jax.random.key(0))  # raises where something does not fit
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
    )


class _Standing(NamedTuple):
    """Where the loop stands between two iterations.

    Attributes:
      learning: `LearnState.learning` of the state that goes on from here.
      acting: `LearnState.acting` of that state, with the collectors of the pools.
      iterations: Iterations made with these pools.
    """

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

    def init(self, key: Array) -> LearnState:
        init_key, run_key = jax.random.split(key)
        acting, learning = jax.jit(self.learner.init)(init_key)
        evaluated = () if self.evaluator is None else evaluation.init(self.learner.candidates(learning))
        return LearnState(run_key, acting, learning, 0, evaluated)

    def close(self) -> None:
        self.loop.close()
        if self.evaluator is not None:
            self.evaluator.close()

    def variables(self, state: LearnState) -> ArrayTree:
        evaluated = state.evaluated
        return evaluated.variables if evaluated and evaluated.best > -np.inf else self.last_variables(state)

    def last_variables(self, state: LearnState) -> ArrayTree:
        evaluated = state.evaluated
        known = evaluated and evaluated.best > -np.inf
        scores = evaluated.latest if known else self.learner.training_scores(state.acting)
        return self.learner.candidates(state.learning)[int(np.argmax(scores))]

    def save(self, state: LearnState) -> LearnState:
        return state._replace(acting=state.acting._replace(**dict.fromkeys(self.learner.unsaved, ())))

    def restore(self, saved: ArrayTree) -> LearnState:
        like = jax.eval_shape(lambda key: self.save(self.init(key)), jax.random.key(0))
        return restored(saved, like, what="state")

    def step(self, state: LearnState, *, monitor: Monitor | None = None) -> tuple[LearnState, dict[str, Any]]:
        try:
            monitor = monitor or (lambda progress: False)
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
        how = {"timesteps": timesteps, "frames": played * self.env.spec.frame_skip}
        evaluated, row = evaluation.update(state.evaluated, candidates, returns, **how)
        return state._replace(evaluated=evaluated), row | {"evaluation_seconds": time.perf_counter() - began}

    def iteration(self, state: LearnState, monitor: Monitor) -> tuple[LearnState, dict[str, Any]]:
        learner, loop, frame_skip = self.learner, self.loop, self.env.spec.frame_skip
        standing = self.stand(state, monitor)
        begun, first = standing.acting, int(state.learning.update)
        # The loop donates what it is given; the state passed in, and what the last iteration returned, must outlive it.
        acting, learning = jax.tree.map(jnp.copy, (begun, state.learning))
        learning = learning._replace(metrics=metrics.zeros(learning.metrics))
        times, rounds_left = None, lambda acting: learner.progress(begun, acting, 0).rounds_left
        # Not in the first iteration, whose time is compilation anyway.
        if standing.iterations % _TIMED_EVERY == 1 and learner.timed_rounds < rounds_left(acting):
            if standing.iterations == 1 and monitor({"phase": "compiling"}):
                raise Interrupted("before the stopwatch was compiled")
            acting, learning, times = loop.time_parts(acting, learning, state.key, rounds=learner.timed_rounds)

        began, before, updates, rounds = time.perf_counter(), int(acting.timesteps), int(learning.update), 0
        for chunk in loop.run(acting, learning, state.key, rounds_left=rounds_left):
            acting, learning = chunk.carry, chunk.memory
            rounds += chunk.rounds
            _check_finite(learning.metrics | learner.watched(learning), int(learning.update))
            progress = learner.progress(begun, acting, int(learning.update) - first)
            shown = {"phase": "training", "done": progress.done, "total": progress.total}
            shown["stepped"] = _difference(acting.timesteps, begun.timesteps)
            frames = _difference(acting.timesteps, before) * frame_skip
            if monitor(shown | {"frames_per_second": frames / (time.perf_counter() - began)}) and progress.rounds_left:
                raise Interrupted(f"{progress.done} of {progress.total} {progress.unit} were made and are dropped")
        seconds = time.perf_counter() - began

        timesteps = state.timesteps + _difference(acting.timesteps, begun.timesteps)
        loop.standing = _Standing(learning, acting, standing.iterations + 1)
        row = {"update": int(learning.update), "frames": timesteps * frame_skip}
        row |= learner.row(acting, learning) | metrics.compute(learning.metrics)
        row["predictions_per_second"] = rounds * learner.beats_per_round * self.env.num_envs / seconds
        row["updates_per_second"] = (int(learning.update) - updates) / seconds
        row["frames_per_second"] = _difference(acting.timesteps, before) * frame_skip / seconds
        if times is not None:
            row |= times.shares(row["predictions_per_second"], working="learning")
        return LearnState(state.key, acting._replace(collectors=()), learning, timesteps, state.evaluated), row

    def stand(self, state: LearnState, monitor: Monitor) -> _Standing:
        """Returns where the loop stands if the state is its latest; otherwise the state with new pools."""
        standing = self.loop.standing
        if standing is not None and standing.learning is state.learning:
            return standing
        if monitor({"phase": "compiling"}):
            raise Interrupted("before the loop was compiled")
        self.loop.open(seed_of(state.key, state.timesteps))
        return _Standing(state.learning, self.learner.begin(state.acting, self.loop.groups), 0)


def _difference(now: Any, before: Any) -> int:
    """Returns the difference of two int32 counts, whatever overflow there was between them."""
    return (int(now) - int(before)) % 2**32


def _check_finite(watched: dict[str, ArrayTree], update: int) -> None:
    wrong = [name for name, tree in watched.items() if not all(np.isfinite(x).all() for x in jax.tree.leaves(tree))]
    if wrong:
        raise FloatingPointError(
            f"no longer finite by update {update}: {', '.join(wrong)}; nothing of this iteration is kept. Lower the "
            "learning rate, or clip the gradient, unless the environment's observations or rewards are not finite."
        )
