"""Gymnasium's environments, and user-defined `gymnasium.Env` classes, as environment groups that Python drives.

Each group is stepped in this process, or by Gymnasium's `AsyncVectorEnv` over worker processes, each of which steps its
share. Autoreset is Gymnasium's `AutoresetMode.NEXT_STEP`, as in envpool: the timestep of an end has the last
observation; the next action is discarded, rewarded 0, and answered with the first observation of the next episode.
"""

import functools
import inspect
import signal
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from volvox._checks import integer
from volvox.envs import groups as blocks
from volvox.types import Env, EnvGroup, EnvSpec, TimeStep

_MOST_CHOICES = 2**20
"""Largest number of values of an integer action."""

_NARROW = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32, np.dtype(np.uint64): np.uint32}


def gymnasium(
    make_env: str | Callable[..., Any],
    *,
    num_envs: int,
    groups: int = 1,
    workers: int = 0,
    max_episode_steps: int | None = None,
    name: str | None = None,
    action_mask: bool = False,
    **options: Any,
) -> Env:
    """Makes a recipe for environments of Gymnasium, by name or by a class or function that makes one.

    Python drives them: they are stepped in this process or, with `workers`, in processes that go on while networks
    act and learn. Workers are started afresh ("spawn" of `multiprocessing`), so a script with workers keeps its own
    statements under `if __name__ == "__main__":`.

    Actions are Discrete, MultiDiscrete, MultiBinary or Box spaces. Observations are Box, Discrete, MultiDiscrete or
    MultiBinary spaces, or Dict and Tuple spaces of these. `groups.convert_observation` transposes images with their
    channels first and converts 64-bit numbers to 32 bits; integers that do not fit raise a ValueError. Continuous
    actions out of bounds raise a ValueError, and so does an action mask that allows no action before the episode ends.
    Extras: `elapsed_steps` (int32 `[B]`). Environments are seeded by their `reset`; their state cannot be saved, so a
    resumed run begins new episodes.

    Example:
      >>> env = volvox.envs.gymnasium("CartPole-v1", num_envs=8, groups=2)

    Args:
      make_env: A name that `gymnasium.make` takes, or a class of `gymnasium.Env` or a function that makes one
        environment when called with `options`; videos need its argument `render_mode`. Workers get it by cloudpickle,
        so a name that only the main program registers is enough. If the class cannot be pickled, name its module, as in
        "my_module:Mine-v0".
      num_envs: Environments in all groups together.
      groups: Number of groups, which take turns; a divisor of `num_envs`.
      workers: Processes that step a group; reduced to a divisor of the group's size. With 0 this process steps it, and
        nothing overlaps. Environments that start processes themselves need 0.
      max_episode_steps: Timesteps after which an episode is truncated. None takes the environment's own limit. A
        shorter limit that a class or function sets itself holds as well.
      name: `EnvSpec.name`; None takes the name given, or that of the environment's class.
      action_mask: Whether to add `info["action_mask"]`, the mask of allowed actions, to the observation, as in Taxi.
        Observations are then dicts of `observation` and `action_mask`, int8 `[num_outputs]`. Networks take the
        observation alone. The mask is an array, or a tuple of arrays as in `MultiDiscrete.sample`.
      **options: Arguments of the environment.

    Returns:
      The recipe. Its groups raise RuntimeError if an environment fails in a worker, or a worker ends.

    Raises:
      gymnasium.error.Error: An unknown name.
      ValueError: A number out of range, spaces other than these, or no limit of episodes.
      TypeError: `make_env` makes no environment of Gymnasium.
    """
    config = {"type": "volvox.envs.gymnasium", **locals()}
    config |= config.pop("options")
    integer("workers", workers, low=0)
    if max_episode_steps is not None:
        max_episode_steps = integer("max_episode_steps", max_episode_steps, low=1)
    probe: Any = _make_environment(make_env, options, max_episode_steps)
    name = str(name or (make_env if isinstance(make_env, str) else type(probe.unwrapped).__name__))
    # Workers know the specification also if they do not know the name.
    recreate = (probe.spec, {}) if isinstance(make_env, str) else (make_env, options)
    limit: Any = max_episode_steps or getattr(probe.spec, "max_episode_steps", None)
    env_spaces = (WithActionMask(probe) if action_mask else probe).observation_space, probe.action_space
    probe.close()
    spec = EnvSpec(
        name=name,
        **spec_fields(name, *env_spaces),
        max_episode_steps=limit,  # `recipe` refuses None
        frame_skip=1,
        extras=("elapsed_steps",),
    )

    if callable(make_env):
        draws = "render_mode" in inspect.signature(make_env).parameters
    else:
        draws = "rgb_array" in (probe.metadata.get("render_modes") or ())

    def make_group(
        spec: EnvSpec, num_envs: int, *, index: int, seed: int, host: bool, render_mode: str | None = None
    ) -> EnvGroup:
        # `host` has no effect: Python always drives these environments.
        drawn = {"render_mode": render_mode} if draws and render_mode else {}

        def make_one() -> gym.Env:
            env = _make_environment(recreate[0], recreate[1] | drawn, spec.max_episode_steps)
            return WithActionMask(env) if action_mask else env

        most = 0 if drawn else workers  # only this process draws
        count = max(count for count in range(most + 1) if num_envs % max(count, 1) == 0)
        group = _Group(spec, num_envs, index, make_one, env_spaces, count)
        init = functools.partial(group.restart, None, seed)
        functions = (init, group.recv, group.send, group.restart, group.close)
        return EnvGroup(spec, num_envs, False, *functions, render=group.render if drawn else None)

    return blocks.recipe(spec, make_group, num_envs=num_envs, groups=groups, config=config)


class _Group:
    """The functions of an `EnvGroup`. `_answer` is a function that returns the result of the last reset or step.

    The state has two arrays `[B]`: whether the next observation begins an episode, and int32 timesteps since it began.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, index: int, make_one: Any, env_spaces: Any, workers: int):
        self._spec, self._num_envs, self._index, self._workers = spec, num_envs, index, workers
        self._make_one, self._spaces = make_one, env_spaces
        self._vector: Any = None
        self._answer: Any = None
        self._components = np.cumsum((0, *(spec.num_choices or ())[:-1]))  # where they begin in a mask

    def _start(self) -> "SyncEnvs | AsyncVectorEnv":
        """Makes the environments."""
        if not self._workers:
            return SyncEnvs(self._make_one, self._spaces, self._num_envs)
        worker = functools.partial(WorkerEnvs, self._make_one, self._spaces, self._num_envs // self._workers)
        # Processes inherit the blocked signals of this thread: Ctrl-C is for the main process to handle.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return AsyncVectorEnv(
                [worker] * self._workers,
                # multiprocessing cannot share float16.
                shared_memory=np.dtype(np.float16) not in jax.tree.leaves(self._spec.observation_dtype),
                context="spawn",  # a fork of a process with threads may block
                autoreset_mode=AutoresetMode.DISABLED,  # the workers reset their environments
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def restart(self, state: Any, seed: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        if self._vector is None:
            self._vector = self._start()
        seeds: Any = [None] * self._num_envs
        if seed is not None:
            seeds = blocks.environment_seeds(seed, group=self._index, num_envs=self._num_envs)
        if self._workers:
            self._vector.reset_async(seed=np.reshape(seeds, (self._workers, -1)).tolist())
            self._answer = self._vector.reset_wait
        else:
            self._answer = functools.partial(self._vector.reset, seed=seeds)
        return np.ones(self._num_envs, np.bool_), np.zeros(self._num_envs, np.int32)

    def recv(self, state: Any) -> tuple[Any, TimeStep]:
        first, elapsed = state
        answer, self._answer = self._answer, None
        try:
            observation, *fields = answer()
        except Exception as error:  # of any environment
            if not self._workers:
                raise
            self._kill()
            raise RuntimeError(
                f"a worker process of {self._spec.name} failed or ended ({type(error).__name__}); an environment that "
                f"starts processes itself needs workers=0:\n{error}"
            ) from error
        fields = fields[:3] if len(fields) > 1 else [np.zeros(self._num_envs)] * 3  # of a reset
        if self._workers:
            observation = jax.tree.map(lambda x: x.reshape(self._num_envs, *x.shape[2:]), observation)
            fields = [field.reshape(self._num_envs) for field in fields]
        # Environments that begin an episode give no reward and no end.
        reward, terminated, truncated = map(np.asarray, fields, (np.float32, np.bool_, np.bool_))
        done, elapsed = terminated | truncated, (elapsed + 1) * ~first
        rest: Any = (reward, first, terminated, truncated & ~terminated, {"elapsed_steps": elapsed})
        timestep = TimeStep(observation, *rest)
        mask = self._spec.split_mask(observation)[1]
        if mask is not None:
            allowed = np.logical_or.reduceat(mask.reshape(len(mask), -1) != 0, self._components, axis=1).all(axis=1)
            if not (allowed | done).all():
                raise ValueError(f"action_mask of {self._spec.name} allows no action, and the episode has not ended")
        return (done, elapsed), timestep

    def send(self, state: Any, action: Any) -> Any:
        if self._workers:
            action = self._environment_action(action)
            self._vector.step_async(action.reshape(self._workers, -1, *action.shape[1:]))
            self._answer = self._vector.step_wait
        else:  # `recv` waits for the action, so that the loop goes on
            self._answer = lambda: self._vector.step(self._environment_action(action))
        return state

    def _environment_action(self, action: Any) -> np.ndarray:
        action = blocks.checked_action(self._spec, self._num_envs, np.asarray(action))
        return blocks.environment_action(self._spec, blocks.bounded_action(self._spec, action))

    def render(self, state: Any) -> np.ndarray:
        return self._vector.render()

    def close(self) -> None:
        if self._vector is None:
            return
        try:
            if self._workers and self._answer is not None:  # an action is in flight
                self._answer(timeout=5.0)
            self._vector.close()
        except Exception:  # of workers, which are ended anyway
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


def _make_environment(make_env: Any, options: dict[str, Any], max_episode_steps: int | None) -> gym.Env:
    """Makes one environment by its name, its specification, or the class or function that makes it."""
    if isinstance(make_env, str | registration.EnvSpec):
        return gym.make(make_env, max_episode_steps=max_episode_steps, **options)
    env = make_env(**options)
    if not isinstance(env, gym.Env):
        raise TypeError(f"make_env must be a name, or make an environment of Gymnasium; {make_env!r} gave {env!r}")
    return env if max_episode_steps is None else gym.wrappers.TimeLimit(env, max_episode_steps)


class WithActionMask(gym.Wrapper):
    """Adds `info["action_mask"]` to the observation."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        fields = _action_fields(str(env), env.action_space)
        self._size = sum(fields.get("num_choices") or (fields["num_actions"] or 0,))
        if not self._size:
            raise ValueError(f"action_mask=True needs discrete actions; {env} has {env.action_space}")
        mask = spaces.MultiBinary(self._size)
        self.observation_space = spaces.Dict({"observation": env.observation_space, "action_mask": mask})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps the environment."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        mask = np.concatenate([np.ravel(part) for part in jax.tree.leaves(info.get("action_mask", ()))] or [[]])
        if mask.shape != (self._size,):
            raise ValueError(f"info['action_mask'] of {self.env} must have {self._size} entries, got {mask.size}")
        return {"observation": observation, "action_mask": (mask != 0).astype(np.int8)}


class SyncEnvs(gym.Env):
    """Environments that are stepped in turn, as `gymnasium.vector.SyncVectorEnv` does, but without `info`.

    Here `info` is not used, and Gymnasium cannot batch it if it differs between environments. This is an environment
    with batched spaces; the first reset makes the environments.
    """

    def __init__(self, make_one: Callable[[], gym.Env], env_spaces: tuple[Any, Any], num_envs: int):
        self.observation_space, self.action_space = (batch_space(space, num_envs) for space in env_spaces)
        self._make_one, self._space, self._num_envs = make_one, env_spaces[0], num_envs
        self._envs: list[gym.Env] = []

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all environments, whose seeds are a list."""
        self._envs = self._envs or [self._make_one() for _ in range(self._num_envs)]
        self._ended = [False] * self._num_envs
        return self._batched([env.reset(seed=one)[0] for env, one in zip(self._envs, seed, strict=True)]), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the environments whose episodes go on, and resets the others."""
        steps = [
            (env.reset()[0], 0.0, False, False) if ended else env.step(one)[:4]
            for env, ended, one in zip(self._envs, self._ended, action, strict=True)
        ]
        observations, rewards, *ends = zip(*steps, strict=True)
        # Rewards and ends may be arrays of one element.
        reward = np.array([np.asarray(x).item() for x in rewards], np.float64)
        terminated, truncated = (np.array([np.asarray(x).item() for x in end], np.bool_) for end in ends)
        self._ended = (terminated | truncated).tolist()
        return self._batched(observations), reward, terminated, truncated, {}

    def render(self) -> Any:
        """Returns a picture of each environment, uint8 `[B, height, width, 3]`."""
        return np.stack([np.asarray(env.render(), np.uint8) for env in self._envs])

    def close(self) -> None:
        """Closes all environments."""
        for env in self._envs:
            env.close()

    def _batched(self, observations: Sequence[Any]) -> Any:
        # A new array each time: JAX may still read the last one.
        return concatenate(self._space, observations, create_empty_array(self._space, self._num_envs))


class WorkerEnvs(SyncEnvs):
    """The environments of one worker, for `AsyncVectorEnv`.

    Errors are raised again as a RuntimeError with the traceback as its message, because Gymnasium waits for ever for an
    error that cannot be pickled.
    """

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all environments."""
        return _with_traceback(super().reset, seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments."""
        return _with_traceback(super().step, action)


def _with_traceback(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return function(*args, **options)
    except Exception:  # an environment may raise anything, and it may not be picklable
        raise RuntimeError(traceback.format_exc()) from None


def spec_fields(name: str, observation_space: spaces.Space, action_space: spaces.Space) -> dict[str, Any]:
    """Returns the fields of `EnvSpec` for two spaces; raises ValueError for spaces that are not supported."""
    arrays = _array_spaces(name, observation_space)
    return {
        "observation_shape": jax.tree.map(lambda space: tuple(space.shape), arrays),
        "observation_dtype": jax.tree.map(lambda space: np.dtype(_NARROW.get(space.dtype, space.dtype)), arrays),
        **_action_fields(name, action_space),
    }


def _array_spaces(name: str, space: Any) -> Any:
    """Returns the spaces of arrays in Dict and Tuple spaces as a dict or a tuple, or the space of a single array."""
    if isinstance(space, spaces.Dict):
        return {key: _array_spaces(name, part) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_array_spaces(name, part) for part in space)
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise ValueError(
            f"{name} has observations of the space {space}; supported are Box, Discrete, MultiDiscrete, MultiBinary, "
            "and Dict and Tuple of these: use gymnasium.wrappers.TransformObservation"
        )
    return space


def _action_fields(name: str, space: Any) -> dict[str, Any]:
    match space:
        case spaces.Box():
            low, high = space.low, space.high
        case spaces.Discrete():
            low, high = (np.asarray(bound, space.dtype) for bound in (space.start, space.start + space.n - 1))
        case spaces.MultiDiscrete():
            low, high = space.start, space.start + space.nvec - 1
        case spaces.MultiBinary():
            low, high = np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)
        case _:
            raise ValueError(
                f"{name} has actions of the space {space}; supported are Discrete, MultiDiscrete, MultiBinary, and "
                "Box: use gymnasium.wrappers.TransformAction"
            )
    fields = {"num_actions": None, "action_low": None, "action_high": None, "action_range": (low, high)}
    if np.issubdtype(space.dtype, np.floating):
        low, high = blocks.action_bounds(low, high, low.shape)
        return {**fields, "action_shape": low.shape, "action_low": low, "action_high": high}
    counts = (high.astype(np.int64) - low + 1).ravel().tolist()
    if not counts or not 0 < min(counts) <= max(counts) <= _MOST_CHOICES:
        raise ValueError(f"{name} has integer actions of {space}, too many to choose from: use TransformAction")
    if isinstance(space, spaces.Discrete):
        return {**fields, "action_shape": None, "num_actions": counts[0]}
    return {**fields, "action_shape": (len(counts),), "num_choices": tuple(counts)}
