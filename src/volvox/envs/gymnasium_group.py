"""Gymnasium's environments, and a user's own of that interface, as environment groups that Python drives.

Each group is a vector environment of Gymnasium: `SyncVectorEnv` in this process, or `AsyncVectorEnv` over worker
processes, each with a `SyncVectorEnv` of its share. What this module adds:

- *Autoreset* is Gymnasium's `AutoresetMode.NEXT_STEP`, which is envpool's: the timestep of an end shows the last
  observation; the next action is discarded, rewarded 0, and answered with the first observation of the next episode.
- *Errors name the environment.* What an environment raises in a worker arrives with its traceback. A worker that ends,
  or that does not answer in time, is a RuntimeError. All workers are stopped then.
- *Interrupts* (Ctrl-C) are handled by this process; workers block them.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volvox._checks import integer, number
from volvox._settings import CannotRebuildError, T, recorded
from volvox.envs.envpool_group import environment_seeds, narrow
from volvox.envs.groups import action_bounds, bounded_action, checked_action, consistent, recipe
from volvox.envs.gymnasium_workers import Here, Workers, load_gymnasium
from volvox.types import Env, EnvGroup, EnvSpec, TimeStep

_OBSERVATIONS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")


def _only_environments(arguments: dict[str, Any]) -> None:
    """Raises CannotRebuildError where a saved call would run a function that makes no environment."""
    made = arguments.get("make_env")
    if isinstance(made, str) and ":" in made:  # gymnasium would import that module
        raise CannotRebuildError(f"{made!r} names a module to import; give the environment, as env=.")
    if not isinstance(made, str) and not (isinstance(made, type) and issubclass(made, load_gymnasium().Env)):
        raise CannotRebuildError(f"{made!r} is no class of gymnasium.Env, and no other function is called.")


def _recorded(make: T) -> T:
    return recorded(make, _only_environments)


@_recorded
def gymnasium(
    make_env: str | Callable[..., Any],
    *,
    num_envs: int,
    groups: int = 1,
    workers: int = 0,
    max_episode_steps: int | None = None,
    timeout: float = 60.0,
    name: str | None = None,
    **options: Any,
) -> Env:
    """Makes a recipe for environments of Gymnasium, by name or by a class or function that makes one.

    Python drives them: they are stepped in this process or, with `workers`, in processes that go on while networks
    act and learn. Workers are started afresh ("spawn" of `multiprocessing`), so a script that has them keeps its own
    statements under `if __name__ == "__main__":`.

    Actions are Discrete, MultiDiscrete, MultiBinary or Box spaces. Observations are Box, Discrete, MultiDiscrete or
    MultiBinary spaces, or Dict and Tuple spaces of these. Numbers of 64 bits become numbers of 32. Continuous actions
    out of bounds are refused with a ValueError. Extras: `elapsed_steps` (int32 `[B]`). Environments are seeded by their
    `reset`; their state cannot be saved, so a resumed run begins new episodes.

    Example:
      >>> env = volvox.envs.gymnasium("CartPole-v1", num_envs=8, groups=2)

    Args:
      make_env: A name that `gymnasium.make` takes, or what makes one environment when called with `options`: a class
        of `gymnasium.Env`, or a function. Cloudpickle takes it to workers.
      num_envs: Environments in all groups together.
      groups: Number of groups, which take turns; a divisor of `num_envs`.
      workers: Processes that step a group: so many, or the largest number below that divides the group. With 0 this
        process steps it, and nothing overlaps.
      max_episode_steps: Timesteps after which an episode is truncated. None takes the environment's own limit. A
        shorter limit that a class or function sets itself holds as well.
      timeout: Seconds that workers may take for one timestep of the whole group, or for its reset, the first of which
        makes the environments. To start, and to import what makes them, they have 120 seconds.
      name: What `EnvSpec.name` says; None takes the name given, or that of the environment's class.
      **options: Arguments of the environment.

    Returns:
      The recipe. `vx.load` makes it again where `make_env` is a name, or a class that `vx.recorded` marks. Its
      groups raise RuntimeError where an environment fails in a worker, or a worker ends or does not answer in time.

    Raises:
      ValueError: An unknown name, a number out of range, spaces other than these, or no limit of episodes.
      TypeError: What `make_env` makes is no environment of Gymnasium.
    """
    integer("workers", workers, low=0)
    number("timeout", timeout, above=0)
    if max_episode_steps is not None:
        integer("max_episode_steps", max_episode_steps, low=1)
    make = functools.partial(_make, make_env, options)
    probe = make(max_episode_steps)
    name = str(name or (make_env if isinstance(make_env, str) else type(probe.unwrapped).__name__))
    limit = max_episode_steps or getattr(probe.spec, "max_episode_steps", None)
    space, action_space = probe.observation_space, probe.action_space
    probe.close()
    if limit is None:
        raise ValueError(f"{name} has no limit on the timesteps of an episode: give max_episode_steps")
    spec = EnvSpec(
        name=name,
        observation_shape=_of_space(name, space, lambda one: tuple(one.shape)),
        observation_dtype=_of_space(name, space, lambda one: narrow(one.dtype)),
        **_actions(name, action_space),
        max_episode_steps=int(limit),
        frame_skip=1,
        extras=("elapsed_steps",),
    )

    vectors = functools.partial(_vector, make, (space, action_space), workers, timeout)
    settings = {"make_env": make_env, "options": options, "max_episode_steps": int(limit)}
    record = {"environment": "gymnasium", "task": name, "settings": settings}
    make_group = functools.partial(_group, vectors, action_space)
    return recipe(spec, make_group, num_envs=num_envs, groups=groups, **record)


def _make(make_env: str | Callable[..., Any], options: dict[str, Any], max_episode_steps: int | None) -> Any:
    """Makes one environment; raises ValueError or TypeError where that is none."""
    library = load_gymnasium()
    if isinstance(make_env, str):
        try:
            return library.make(make_env, max_episode_steps=max_episode_steps, **options)
        except library.error.Error as error:
            raise ValueError(f"Gymnasium cannot make {make_env!r}: {error}") from error
    if isinstance(make_env, library.Env) or not callable(make_env):
        raise TypeError(f"give the name, the class or the function that makes one environment, not {make_env!r}")
    env = make_env(**options)
    if not isinstance(env, library.Env):
        raise TypeError(f"{make_env!r} makes {env!r}, which is no gymnasium.Env")
    try:
        inspect.signature(env.unwrapped.reset).bind(seed=0, options=None)
    except TypeError as error:
        raise TypeError(
            f"reset of {type(env.unwrapped).__name__} cannot be seeded ({error}): write reset(self, *, seed=None, "
            "options=None), and call super().reset(seed=seed) in it"
        ) from error
    return env if max_episode_steps is None else library.wrappers.TimeLimit(env, max_episode_steps)


def _of_space(name: str, space: Any, read: Callable[[Any], Any]) -> Any:
    """Reads something of each space in a Dict or a Tuple, or of one space."""
    spaces = load_gymnasium().spaces
    if isinstance(space, spaces.Dict):
        return {key: _of_space(name, one, read) for key, one in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_of_space(name, one, read) for one in space)
    if type(space).__name__ not in _OBSERVATIONS:
        raise ValueError(
            f"{name} has observations of the space {space}; supported are {', '.join(_OBSERVATIONS)}, and Dict and "
            "Tuple of these: wrap it (gymnasium.wrappers.TransformObservation)"
        )
    return read(space)


def _actions(name: str, space: Any) -> dict[str, Any]:
    """Returns the fields of `EnvSpec` on actions."""
    spaces = load_gymnasium().spaces
    fields = dict.fromkeys(("num_actions", "num_choices", "action_shape", "action_low", "action_high"))
    if isinstance(space, spaces.Discrete):
        return fields | {"num_actions": int(space.n)}
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        counts = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
        choices = tuple(int(count) for count in counts.ravel())
        return fields | {"num_choices": choices, "action_shape": (len(choices),)}
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = action_bounds(space.low, space.high, space.shape)
        return fields | {"action_shape": low.shape, "action_low": low, "action_high": high}
    raise ValueError(
        f"{name} has actions of the space {space}; supported are Discrete, MultiDiscrete, MultiBinary, and Box of "
        "floating-point numbers: wrap it (gymnasium.wrappers.TransformAction)"
    )


def _vector(
    make: Callable[[int], Any], spaces: tuple[Any, Any], workers: int, timeout: float, spec: EnvSpec, num_envs: int
) -> Any:
    """Returns the environments of a group, not yet made: `Here`, or `Workers`."""
    make_one = functools.partial(make, spec.max_episode_steps)
    if workers == 0:
        return Here(make_one, num_envs)
    count = max(count for count in range(1, workers + 1) if num_envs % count == 0)
    return Workers(spec.name, make_one, spaces, count, num_envs, timeout)


def maker(group: EnvGroup) -> Callable[[], Any] | None:
    """Returns what makes one environment of a group of Gymnasium's, wrapped or not; None for other groups."""
    vector = getattr(group.close, "__self__", None)
    return vector.make_one if isinstance(vector, Here | Workers) else None


def _group(
    vectors: Callable[..., Any], action_space: Any, spec: EnvSpec, num_envs: int, *, index: int, seed: int, host: bool
) -> EnvGroup:
    """Makes group number `index`, which Python drives whether it is asked to or not."""
    del host
    vector, seeds = vectors(spec, num_envs), functools.partial(environment_seeds, group=index, num_envs=num_envs)
    group = _Group(spec, num_envs, action_space, vector, seeds)
    init = functools.partial(group.init, seed)
    return EnvGroup(spec, num_envs, False, init, group.recv, group.send, group.restart, vector.close)


class GymnasiumState(NamedTuple):
    """State of a group; the environments themselves are outside of it.

    Attributes:
      done: bool `[B]`: the last timestep ended the episode, or there was none yet; the next observation begins one.
      elapsed: int32 `[B]`: timesteps since the episode began.
    """

    done: np.ndarray
    elapsed: np.ndarray


class _Group:
    """The functions of an `EnvGroup`, over environments that are stepped here or in workers."""

    def __init__(self, spec: EnvSpec, num_envs: int, action_space: Any, vector: Any, seeds: Callable[[int], list[int]]):
        self._spec, self._num_envs, self._action_space = spec, num_envs, action_space
        self._vector, self._seeds = vector, seeds

    def init(self, seed: int | None) -> GymnasiumState:
        self._vector.reset(None if seed is None else self._seeds(seed))
        return GymnasiumState(np.ones(self._num_envs, np.bool_), np.zeros(self._num_envs, np.int32))

    def restart(self, state: GymnasiumState, seed: int | None = None) -> GymnasiumState:
        del state
        return self.init(seed)

    def recv(self, state: GymnasiumState) -> tuple[GymnasiumState, TimeStep]:
        observation, reward, terminated, truncated = self._vector.wait()
        elapsed = np.where(state.done, 0, state.elapsed + 1).astype(np.int32)
        observation = _shown(observation, self._spec.observation)
        ends: list[Any] = [state.done, terminated, truncated, {"elapsed_steps": elapsed}]
        timestep = TimeStep(observation, reward, *ends)
        timestep = consistent(timestep)
        return GymnasiumState(np.asarray(timestep.terminated | timestep.truncated), elapsed), timestep

    def send(self, state: GymnasiumState, action: Any) -> GymnasiumState:
        space = self._action_space
        action = checked_action(self._spec, self._num_envs, np.asarray(action))
        action = bounded_action(self._spec, action).reshape(self._num_envs, *space.shape).astype(space.dtype)
        if self._spec.continuous:
            action = np.clip(action, space.low, space.high)  # bounds of 64 bits may lie between numbers of 32
        self._vector.step(action + getattr(space, "start", 0))
        return state


def _shown(observation: Any, like: Any) -> Any:
    """Copies observations `[B, ...]`, or `[workers, B / workers, ...]`, as the spec says."""
    if isinstance(like, dict):
        return {name: _shown(observation[name], one) for name, one in like.items()}
    if isinstance(like, tuple):
        return tuple(_shown(part, one) for part, one in zip(observation, like, strict=True))
    return np.array(observation, like.dtype).reshape(-1, *like.shape)
