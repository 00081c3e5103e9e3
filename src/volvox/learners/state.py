"""The state of a run of `volvox.learn`: how it begins, and how it is saved and restored."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import typed_key
from volvox.data import metrics
from volvox.data.metrics import Episodes, RunningEpisodes
from volvox.ops.flat import by_path, restored
from volvox.rollout.loop import Loop
from volvox.types import Array, ArrayTree, Env

if TYPE_CHECKING:
    from volvox.learners.learner import Learner, Schedule


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


class Evaluated(NamedTuple):
    """Results of the evaluations of a run.

    Attributes:
      variables: Variables of the best policy.
      best: float32: Its mean return, the largest of all evaluations and learners; -inf before the first evaluation.
      best_timesteps: Timesteps of each learner at which it was evaluated.
      latest: float32 `[S]`: Mean returns of the latest evaluation, one for each learner; -inf before the first.
      frames: Emulator frames of all evaluations.
    """

    variables: ArrayTree
    best: Array
    best_timesteps: int
    latest: Array
    frames: int


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


@dataclasses.dataclass(frozen=True, eq=False)
class States:
    """Makes, saves and restores states; the functions of these names in `Algorithm`.

    Attributes:
      learner: The learner.
      schedule: Its schedule.
      env: The environments.
      initial: key -> (collected, learning) at the beginning of a run, compiled.
      evaluates: Whether states have results of evaluations.
      saves_replay: Whether checkpoints hold replays.
    """

    learner: "Learner"
    schedule: "Schedule"
    env: Env
    initial: Callable[[Array], tuple[Any, Any]]
    evaluates: bool
    saves_replay: bool

    def init(self, key: int | Array) -> LearnState:
        """Returns the state at the beginning of a run."""
        init_key, run_key = jax.random.split(typed_key(key))
        collected, learning = self.initial(init_key)
        zero, episodes = jnp.int32(0), metrics.init_episodes()
        if (s := self.schedule.num_learners) is not None:
            episodes = jax.tree.map(lambda x: jnp.broadcast_to(x, (s, *x.shape)), episodes)
        acting = Acting(zero, zero, zero, zero, episodes, (), collected)
        evaluated: Any = ()
        if self.evaluates:
            candidates, worst = self.learner.variables(learning), jnp.float32(-jnp.inf)
            evaluated = Evaluated(candidates[0], worst, 0, jnp.full(len(candidates), worst), 0)
        return without(LearnState(run_key, acting, learning, 0, evaluated), "collectors")

    def begin(self, acting: Acting) -> Acting:
        """Returns the state of acting in environments that were just made."""
        collected, b = acting.collected, self.env.num_envs // self.env.num_groups
        fresh, _ = self.initial(jax.random.key(0))
        for name in ("collectors", "replays"):
            if hasattr(fresh, name) and (name == "collectors" or not collected.replays):
                collected = collected._replace(**{name: getattr(fresh, name)})
        shape = (b,) if self.schedule.num_learners is None else (self.schedule.num_learners, -1)
        running = tuple(
            jax.tree.map(lambda x: x.reshape(shape), metrics.init_running(b)) for _ in range(self.env.num_groups)
        )
        return acting._replace(round=jnp.int32(0), beat=jnp.int32(0), running=running, collected=collected)

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

    def restore(self, saved: ArrayTree, loop: Loop) -> LearnState:
        """Returns the state of nested dictionaries, in which fields that were not saved are missing."""
        if loop.devices.mesh is not None:  # environments and replays belong to one device
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
                envs = tuple(group.init() for group in loop.make_groups(0))
                state = state._replace(acting=self.begin(state.acting), envs=envs)
            return state

        return restored(saved, jax.eval_shape(like, jax.random.key(0)), what="algorithm")


def without(state: LearnState, *names: str) -> LearnState:
    """Returns the state without its environments, and without these fields of `collected`."""
    collected = state.acting.collected
    empty = {name: () for name in names if hasattr(collected, name)}
    collected = collected._replace(**empty) if empty else collected
    return state._replace(acting=state.acting._replace(running=(), collected=collected), envs=())
