"""Gymnasium's environments, and a user's own of that interface, as environment groups that Python drives.

Each group is a vector environment of Gymnasium: `SyncVectorEnv` in this process, or `AsyncVectorEnv` over worker
processes, each with a `SyncVectorEnv` of its share. Autoreset is Gymnasium's `AutoresetMode.NEXT_STEP`, as in envpool:
the timestep of an end has the last observation; the next action is discarded, rewarded 0, and answered with the first
observation of the next episode.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from volvox._checks import integer
from volvox.envs.groups import (
    bounded_action,
    checked_action,
    consistent,
    environment_action,
    environment_seeds,
    recipe,
)
from volvox.types import Env, EnvGroup, EnvSpec, TimeStep

_CLOSE_SECONDS = 5.0
"""Time that workers have to answer a last call before they are killed."""


def gymnasium(
    make_env: str | Callable[..., Any],
    *,
    num_envs: int,
    groups: int = 1,
    workers: int = 0,
    max_episode_steps: int | None = None,
    name: str | None = None,
    **options: Any,
) -> Env:
    """Makes a recipe for environments of Gymnasium, by name or by a class or function that makes one.

    Python drives them: they are stepped in this process or, with `workers`, in processes that go on while networks
    act and learn. Workers are started afresh ("spawn" of `multiprocessing`), so a script with workers keeps its own
    statements under `if __name__ == "__main__":`.

    Actions are Discrete, MultiDiscrete, MultiBinary or Box spaces. Observations are Box, Discrete, MultiDiscrete or
    MultiBinary spaces, or Dict and Tuple spaces of these. `groups.convert_observation` transposes images with their
    channels first and makes numbers of 32 bits of those of 64; integers that do not fit raise a ValueError. Continuous
    actions out of bounds raise a ValueError. Extras: `elapsed_steps` (int32 `[B]`). Environments are seeded by their
    `reset`; their state cannot be saved, so a resumed run begins new episodes.

    Example:
      >>> env = volvox.envs.gymnasium("CartPole-v1", num_envs=8, groups=2)

    Args:
      make_env: A name that `gymnasium.make` takes, or a class of `gymnasium.Env` or a function that makes one
        environment when called with `options`. Cloudpickle takes it to workers, and so names that are registered in
        the main program only are known there.
      num_envs: Environments in all groups together.
      groups: Number of groups, which take turns; a divisor of `num_envs`.
      workers: Processes that step a group; reduced to a divisor of the group's size. With 0 this process steps it, and
        nothing overlaps. Environments that start processes themselves need 0.
      max_episode_steps: Timesteps after which an episode is truncated. None takes the environment's own limit. A
        shorter limit that a class or function sets itself holds as well.
      name: `EnvSpec.name`; None takes the name given, or that of the environment's class.
      **options: Arguments of the environment.

    Returns:
      The recipe. Its groups raise RuntimeError if an environment fails in a worker, or a worker ends.

    Raises:
      ValueError: An unknown name, a number out of range, spaces other than these, or no limit of episodes.
      TypeError: `make_env` makes no environment of Gymnasium.
    """
    config = {"type": "volvox.envs.gymnasium", **locals()}
    config |= config.pop("options")
    from volvox.envs import gymnasium_vector, spaces

    integer("workers", workers, low=0)
    if max_episode_steps is not None:
        integer("max_episode_steps", max_episode_steps, low=1)
    probe: Any = gymnasium_vector.make_environment(make_env, options, max_episode_steps)
    name = str(name or (make_env if isinstance(make_env, str) else type(probe.unwrapped).__name__))
    # Workers know the specification also if they do not know the name.
    recreate = (probe.spec, {}) if isinstance(make_env, str) else (make_env, options)
    limit = max_episode_steps or getattr(probe.spec, "max_episode_steps", None)
    own_spaces = probe.observation_space, probe.action_space
    probe.close()
    if limit is None:
        raise ValueError(f"{name} has no limit on the timesteps of an episode: give max_episode_steps")
    spec = EnvSpec(
        name=name,
        **spaces.spec_fields(name, *own_spaces),
        max_episode_steps=int(limit),
        frame_skip=1,
        extras=("elapsed_steps",),
    )

    def make_group(spec: EnvSpec, num_envs: int, *, index: int, seed: int, host: bool) -> EnvGroup:
        del host  # Python always drives it
        make_one = functools.partial(gymnasium_vector.make_environment, *recreate, spec.max_episode_steps)
        if count := max(count for count in range(workers + 1) if num_envs % max(count, 1) == 0):
            # multiprocessing cannot share float16.
            shared = np.dtype(np.float16) not in jax.tree.leaves(spec.observation_dtype)
            arguments = (make_one, own_spaces, num_envs, count)
            start = functools.partial(gymnasium_vector.in_workers, *arguments, shared_memory=shared)
        else:
            start = functools.partial(gymnasium_vector.in_process, make_one, num_envs)
        group = _Group(spec, num_envs, index, start, count)
        init = functools.partial(group.restart, None, seed)
        return EnvGroup(spec, num_envs, False, init, group.recv, group.send, group.restart, group.close)

    return recipe(spec, make_group, num_envs=num_envs, groups=groups, config=config)


class GymnasiumState(NamedTuple):
    """State of a group; the environments themselves are outside of it.

    Attributes:
      done: bool `[B]`: the last timestep ended the episode, or there was none yet; the next observation begins one.
      elapsed: int32 `[B]`: timesteps since the episode began.
    """

    done: np.ndarray
    elapsed: np.ndarray


class _Group:
    """The functions of an `EnvGroup`. `_answer` computes, or waits for, the answer of the environments."""

    def __init__(self, spec: EnvSpec, num_envs: int, index: int, start: Callable[[], Any], workers: int):
        self._spec, self._num_envs, self._index, self._workers = spec, num_envs, index, workers
        self._start = start
        self._vector: Any = None
        self._answer: Callable[..., Any] | None = None

    def restart(self, state: Any, seed: int | None = None) -> GymnasiumState:
        del state
        if self._vector is None:
            self._vector = self._start()
        seeds: Any = None
        if seed is not None:
            seeds = environment_seeds(seed, group=self._index, num_envs=self._num_envs)
        if self._workers:
            per_worker = [None] * self._workers if seeds is None else np.reshape(seeds, (self._workers, -1)).tolist()
            self._vector.reset_async(seed=per_worker)
            self._answer = self._vector.reset_wait
        else:
            self._answer = functools.partial(self._vector.reset, seed=seeds)
        return GymnasiumState(np.ones(self._num_envs, np.bool_), np.zeros(self._num_envs, np.int32))

    def recv(self, state: GymnasiumState) -> tuple[GymnasiumState, TimeStep]:
        answer, self._answer = self._answer, None
        if answer is None:
            raise RuntimeError(f"no action was sent to this group of {self._spec.name}, or it was closed")
        try:
            observation, *fields = answer()
        except Exception as error:
            if not self._workers:
                raise
            self._kill()
            raise RuntimeError(
                f"a worker process of {self._spec.name} failed or ended ({type(error).__name__}); an environment that "
                f"starts processes itself needs workers=0:\n{error}"
            ) from error
        if self._workers:
            observation = jax.tree.map(lambda x: x.reshape(self._num_envs, *x.shape[2:]), observation)
        fields = fields[:3] if len(fields) > 1 else [np.zeros(self._num_envs)] * 3  # of a reset
        reward, terminated, truncated = (np.reshape(field, self._num_envs) for field in fields)
        elapsed = np.where(state.done, 0, state.elapsed + 1).astype(np.int32)
        rest: Any = (reward, state.done, terminated, truncated, {"elapsed_steps": elapsed})
        timestep: Any = consistent(TimeStep(observation, *rest))
        return GymnasiumState(timestep.terminated | timestep.truncated, elapsed), timestep

    def send(self, state: GymnasiumState, action: Any) -> GymnasiumState:
        action = checked_action(self._spec, self._num_envs, np.asarray(action))
        action = environment_action(self._spec, bounded_action(self._spec, action))
        if self._workers:
            self._vector.step_async(action.reshape(self._workers, -1, *action.shape[1:]))
            self._answer = self._vector.step_wait
        else:
            self._answer = functools.partial(self._vector.step, action)
        return state

    def close(self) -> None:
        if self._vector is None:
            return
        try:
            if self._workers and self._answer is not None:  # an action is in flight
                self._answer(timeout=_CLOSE_SECONDS)
            self._vector.close()
        except Exception:
            if not self._workers:
                raise
            self._kill()
        self._vector = self._answer = None

    def _kill(self) -> None:
        """Ends the workers at once; Gymnasium's `close` would wait for their answers."""
        for process in self._vector.processes:
            process.kill()
            process.join()
        self._vector.closed, self._vector = True, None
