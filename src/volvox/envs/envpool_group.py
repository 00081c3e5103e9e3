"""envpool's tasks as environment groups, of every family in its wheel. No other module steps an envpool.

Differences from envpool:

- *Autoreset.* After an end envpool discards the next action and answers with the first observation of the next
  episode. The group remembers which episodes ended and reports that answer as `TimeStep.first`, with reward 0.
- *Ends.* `truncated` never holds together with `terminated`. If a game is over in the very timestep of the time limit,
  envpool reports the time limit alone. The group reports a termination on Atari, whose emulators tell the two apart; in
  other families such a timestep is truncated. An end after the limit is a termination.
- *Layout.* Most images of envpool have their channels first; here they have them last. Observations of several arrays
  are nested dicts.
- *Width.* MuJoCo's arrays are 64 bits wide in C++, and 32 bits here.
- *Lifetime.* A compiled function holds the address of an envpool, not a reference to it. The group holds the
  reference until `close`.
"""

import contextlib
import functools
import os
import re
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import INT32, integer
from volvox.envs.groups import (
    bounded_action,
    checked_action,
    consistent,
    environment_seeds,
    narrow,
    recipe,
    unknown_name,
)
from volvox.types import Env, EnvGroup, EnvSpec, TimeStep

# Settings of envpool that are set here.
_OWN_SETTINGS = frozenset(
    ("num_envs", "batch_size", "num_threads", "seed", "env_seed", "base_path", "gym_reset_return_info")
)
_OWN_RULES = re.compile(r"(gfootball|highway|jumanji|pgx|procgen)/|toy_text/.*(Blackjack|Catch|CliffWalking)")
"""Families and tasks whose episodes end by the task's own rules, whatever `max_episode_steps` is."""
_EXTRAS = {"ram": "ram", "lives": "lives", "elapsed_step": "elapsed_steps"}


class PoolState(NamedTuple):
    """State of a group of an envpool.

    Attributes:
      token: uint8 `[8]`: orders the calls inside `jit`; () when driven from Python, where the calls order themselves.
      done: bool `[B]`: the last timestep ended the episode, or there was none yet; the next observation begins one.
    """

    token: Any
    done: Any


def envpool(
    task: str, *, num_envs: int, groups: int = 1, threads: int | None = None, name: str | None = None, **options: Any
) -> Env:
    """Makes a recipe for groups of one envpool each, of any task for one player. `atari` and `mujoco` are presets.

    Families are Atari, Box2D, classic control, Google football, Highway, Jumanji, MiniGrid, MuJoCo (Gymnasium,
    dm_control, Meta-World, MyoSuite, Playground, robotics), Pgx, Procgen, toy text and VizDoom; `docs/environments.md`
    lists what was tried of each. An observation is an array, or a dict of arrays by envpool's names.

    Groups take turns, so each gets all the threads. Every environment has its own seed, derived from `make`'s. The
    state of the emulators and the history of restarts are not part of it, so a run is repeatable only from its start.
    Discrete actions out of range are clipped (envpool would read past the end of its table of actions). Continuous
    actions out of bounds are refused with a ValueError if Python drives the environments; inside `jit`, which cannot
    raise, they are clipped.

    Example:
      >>> env = volvox.envs.envpool("CartPole-v1", num_envs=8, groups=2)
      >>> car = volvox.envs.envpool("CarRacing-v3", num_envs=4, max_episode_steps=500)
      >>> grid = volvox.envs.envpool("MiniGrid-Empty-5x5-v0", num_envs=8)  # observations are dicts

    Args:
      task: A name envpool knows, such as "Frostbite-v5" or "HalfCheetah-v5".
      num_envs: Environments in all groups together.
      groups: Number of groups; a divisor of `num_envs`.
      threads: C++ threads that step a group; None takes every CPU this process may use.
      name: `EnvSpec.name`; None takes `task`.
      **options: Further settings of the task, by envpool's names; among them are `max_episode_steps`, timesteps after
        which an episode is truncated, and `frame_skip`, frames per timestep, for emulators. None takes the task's
        default.

    Returns:
      The recipe. Its `make` also takes `seeds`, one for each environment of a group, in place of those derived from
      `seed`; and settings by envpool's names, in place of the recipe's.

    Raises:
      ValueError: an unknown task or setting, a number out of range, a time limit other than that of a task which ends
        by its own rules alone, or a task of several players, without observations, or with actions of several arrays.
    """
    options = {key: value for key, value in options.items() if value is not None}
    config = {"type": "volvox.envs.envpool", **locals()}
    config |= config.pop("options")
    library = load_envpool()
    if threads is not None:
        integer("threads", threads, low=1)
    if task not in (tasks := library.list_all_envs()):
        plain = re.sub(r"^ALE/|NoFrameskip|Deterministic", "", str(task))  # as Gymnasium calls Atari's games
        raise unknown_name("task of envpool", plain, tasks)
    settings = set(library.make_spec(task).config._fields) - _OWN_SETTINGS
    for key, value in options.items():
        if key not in settings:
            raise unknown_name(f"setting of {task}", key, settings)
        if key in ("frame_skip", "max_episode_steps"):
            integer(key, value, low=1)
    own = _own_limit(task, options)

    def require_limit(limit: int) -> None:
        if own not in (None, limit):
            raise ValueError(f"max_episode_steps={limit}: {task!r} ends its episodes by its own rules; leave it out")

    if own is not None:
        require_limit(options.get("max_episode_steps", own))
        options["max_episode_steps"] = own if own < INT32 else 0
    native_spec = library.make_spec(task, **options)
    unlimited = native_spec.config.max_episode_steps == 0  # the task says how long each episode is

    def make_group(
        spec: EnvSpec, num_envs: int, *, index: int, seed: int, host: bool, seeds: Any = None, **changes: Any
    ) -> EnvGroup:
        limit = spec.max_episode_steps
        require_limit(limit)
        native = library.make(
            task,
            env_type="gymnasium",
            num_envs=num_envs,
            batch_size=num_envs,
            num_threads=min(threads or len(os.sched_getaffinity(0)), num_envs),
            seed=seeds or environment_seeds(seed, group=index, num_envs=num_envs),
            **{**options, **changes, "max_episode_steps": 0 if unlimited and limit == INT32 else limit},
        )
        pool = _Pool(spec, num_envs, native, host=host)
        return EnvGroup(spec, num_envs, not host, pool.init, pool.recv, pool.send, pool.restart, pool.close)

    spec = _env_spec(name or task, native_spec)
    return recipe(spec, make_group, num_envs=num_envs, groups=groups, config=config)


def load_envpool() -> ModuleType:
    """Imports envpool when it is first needed, because that takes a second."""
    import envpool

    return envpool


def _own_limit(task: str, options: Mapping[str, Any]) -> int | None:
    """Returns the longest episode of a task that ends by its own rules alone; None for other tasks."""
    native_spec = load_envpool().make_spec(task)
    modules = [base.__module__.split(".") for base in type(native_spec).__mro__]
    family = next(module[1] for module in modules if module[0] == "envpool")
    if not _OWN_RULES.match(f"{family}/{task}"):
        return None
    settings = native_spec.config._asdict()
    if family == "highway":  # its episodes last `duration` seconds
        settings |= options
        return round(settings["duration"] * settings["policy_frequency"])
    return int(settings["max_episode_steps"]) or INT32


def _env_spec(name: str, native_spec: Any) -> EnvSpec:
    """Describes a task as an `EnvSpec`; raises ValueError if that is impossible."""
    from gymnasium.spaces import Box

    from volvox.envs.spaces import spec_fields

    settings, names = native_spec.config, {key.rpartition(":")[2] for key in native_spec.state_array_spec}
    if settings.max_num_players > 1:
        raise ValueError(f"{name!r} is for {settings.max_num_players} players; only tasks for one are supported")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of float64 bounds
        observation_space, action_space = native_spec.gymnasium_observation_space, native_spec.gymnasium_action_space
        if isinstance(action_space, Box) and np.any(action_space.high == np.finfo(np.float64).max):
            action_space = Box(-np.inf, np.inf, action_space.shape, np.float64)  # C++ has other numbers for no bounds
    fields = spec_fields(name, observation_space, action_space)
    if fields["action_low"] is None and np.any(fields["action_range"][0]):
        raise ValueError(f"{name!r} has discrete actions that do not begin at 0")
    return EnvSpec(
        name=name,
        **fields,
        max_episode_steps=int(settings.max_episode_steps) or INT32,
        frame_skip=int(getattr(settings, "frame_skip", 1)),
        extras=tuple(ours for theirs, ours in _EXTRAS.items() if theirs in names),
    )._replace(action_range=None)


class _Pool:
    """An envpool, made with `batch_size == num_envs`, stepped from Python or by compiled functions."""

    def __init__(self, spec: EnvSpec, num_envs: int, native: Any, *, host: bool):
        with warnings.catch_warnings():
            # gymnasium warns of float64 bounds, once, when envpool first looks at its own space, which is not used.
            warnings.simplefilter("ignore")
            _ = native.observation_space
        self._spec, self._num_envs, self._host = spec, num_envs, host
        # The only reference, so that `close` can drop it: envpool's threads end with the last reference.
        self._native: Any = native
        arrays = (*native.spec.state_array_spec.values(), *native.spec.action_array_spec.values())
        # Outside x64 mode JAX would narrow the buffers that C++ fills with 8-byte elements.
        wide = any(narrow(array.dtype) != array.dtype for array in arrays)
        self._boundary: Any = functools.partial(jax.enable_x64, True) if wide else contextlib.nullcontext
        with self._boundary():
            self._calls: Any = None if host else native.xla()

    def init(self) -> PoolState:
        self._native.async_reset()
        if self._host:
            return PoolState((), np.ones(self._num_envs, np.bool_))
        return PoolState(jnp.array(self._calls[0]), jnp.ones(self._num_envs, jnp.bool_))

    def recv(self, state: PoolState) -> tuple[PoolState, TimeStep]:
        token = state.token
        if self._host:
            answer = self._native.recv()
        else:
            with self._boundary():
                token, answer = self._calls[1](token)
        timestep = _time_step(state.done, *answer, limit=self._spec.max_episode_steps)
        return PoolState(token, timestep.terminated | timestep.truncated), timestep

    def send(self, state: PoolState, action: Any) -> PoolState:
        dtype = np.dtype(self._native.spec.action_array_spec["action"].dtype)
        action = (np if self._host else jnp).asarray(action)
        action = bounded_action(self._spec, checked_action(self._spec, self._num_envs, action))
        if self._host:
            self._native.send(action.astype(dtype))
            return state
        with self._boundary():
            token = self._calls[2](state.token, jax.lax.convert_element_type(action.astype(narrow(dtype)), dtype))
        return state._replace(token=token)

    def restart(self, state: PoolState, seed: int | None = None) -> PoolState:
        del seed  # envpool's seeds are fixed when a pool is made
        # The last `recv` may have been dispatched but not run yet; envpool aborts if it is reset in between.
        jax.block_until_ready(state)
        self._native.async_reset()
        return state._replace(done=state.done | True)

    def close(self) -> None:
        # A compiled loop may still be running; it uses the pool by address.
        jax.effects_barrier()
        self._native = self._calls = None


def _time_step(
    first: Any, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any, *, limit: int
) -> TimeStep:
    """Makes a time step of an answer of envpool; `limit` is the cutoff in timesteps."""
    # `first` is known beforehand, but is made to depend on the answer: otherwise XLA could write it to a replay
    # before other reads of that row, and would copy the whole replay. `elapsed_step` is never negative.
    first = first | (info["elapsed_step"] < 0)
    if "terminated" in info:
        terminated = terminated | (truncated & (info["terminated"] != 0))
    terminated = terminated | (truncated & (info["elapsed_step"] > limit))
    if "reward" in info:  # of Atari, not clipped
        reward = info["reward"]
    extras = {ours: _narrowed(info[theirs]) for theirs, ours in _EXTRAS.items() if theirs in info}
    return consistent(TimeStep(observation, _narrowed(reward), first, terminated, truncated, extras))


def _narrowed(array: Any) -> Any:
    return array.astype(narrow(array.dtype))
