"""envpool's tasks as environment groups. No other module steps an envpool.

What is made different from envpool:

- *Autoreset.* After an end envpool discards the next action and answers with the first observation of the next
  episode. The group remembers which episodes ended and reports that answer as `TimeStep.first`, with reward 0.
- *Ends.* `truncated` never holds together with `terminated`. Where an Atari game is over in the very timestep of the
  time limit, envpool reports the time limit alone, and the group a termination. (MuJoCo does not tell the two apart;
  there such a timestep is truncated.)
- *Layout.* Images are channels first in envpool, and channels last here.
- *Width.* MuJoCo's arrays are 64 bits wide in C++, and 32 bits here.
- *Lifetime.* A compiled function holds the address of an envpool, not a reference to it. The group holds the
  reference until `close`.
"""

import contextlib
import functools
import os
import warnings
from typing import Any, NamedTuple

import chex
import envpool
import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integer, nearest
from volvox.envs.groups import action_bounds, bounded_action, checked_action, consistent, recipe
from volvox.types import Env, EnvGroup, EnvSpec, TimeStep

# Settings of envpool that are set here, or that say nothing about results.
_MACHINERY = frozenset(
    {
        *("num_envs", "batch_size", "num_threads", "thread_affinity_offset", "max_num_players"),
        *("seed", "env_seed", "base_path", "gym_reset_return_info", "reward_threshold"),
    }
)
_NARROW = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.int32)}
_EXTRAS = {"ram": "ram", "lives": "lives", "elapsed_step": "elapsed_steps"}


class PoolState(NamedTuple):
    """State of a group of an envpool.

    Attributes:
      token: uint8 `[8]`: orders the calls inside `jit`; () when driven from Python, where the calls order themselves.
      done: bool `[B]`: the last timestep ended the episode, or there was none yet; the next observation begins one.
    """

    token: Any
    done: Any


def envpool_task(
    task: str, *, num_envs: int, groups: int = 1, threads: int | None = None, name: str | None = None, **config: Any
) -> Env:
    """Makes a recipe for groups of one envpool each, of any task with one array of observations and one of actions.

    Groups take turns, so each gets all the threads. Every environment has its own seed, derived from `make`'s. The
    state of the emulators and the history of restarts are not part of it, so a run is repeatable only from its start.
    Discrete actions out of range are clipped (envpool would read past the end of its table of actions). Continuous
    actions out of bounds are refused with a ValueError where Python drives the environments; inside `jit`, which
    cannot raise, they are clipped.

    Example:
      >>> env = volvox.envs.envpool_task("CartPole-v1", num_envs=8, groups=2)
      >>> car = volvox.envs.envpool_task("CarRacing-v3", num_envs=4, max_episode_steps=500)

    Args:
      task: A name envpool knows, such as "Frostbite-v5" or "HalfCheetah-v5".
      num_envs: Environments in all groups together.
      groups: Number of groups; a divisor of `num_envs`.
      threads: C++ threads that step a group; None takes every CPU this process may use.
      name: What `EnvSpec.name` says; None takes `task`.
      **config: Further settings of the task, by envpool's names; among them are `max_episode_steps`, timesteps after
        which an episode is truncated, and where frames are skipped `frame_skip`, frames per timestep. None takes the
        task's default.

    Returns:
      The recipe. Its `config` holds every setting of the task that bears on results, defaults included. Its `make` also
      takes `seeds`, one for each environment of a group, in place of those derived from `seed`; and settings by
      envpool's names, in place of the recipe's.

    Raises:
      ValueError: an unknown task or setting, a number out of range, or a task whose observations or actions are not
        one array.
    """
    if threads is not None:
        integer("threads", threads, low=1)
    if task not in (tasks := envpool.list_all_envs()):
        raise ValueError(f"task {task!r} is not one of envpool's{nearest(task, tasks)}")
    defaults = _settings(envpool.make_spec(task))
    config = {key: value for key, value in config.items() if value is not None}
    for key, value in config.items():
        if key not in defaults:
            raise ValueError(f"{key!r} is not a setting of task {task!r}{nearest(key, defaults)}")
        if key in ("frame_skip", "max_episode_steps"):
            integer(key, value, low=1)

    def make_group(
        spec: EnvSpec, num_envs: int, *, index: int, seed: int, host: bool, seeds: Any = None, **changes: Any
    ) -> EnvGroup:
        native = envpool.make(
            task,
            env_type="gymnasium",
            num_envs=num_envs,
            batch_size=num_envs,
            num_threads=min(threads or len(os.sched_getaffinity(0)), num_envs),
            seed=seeds or environment_seeds(seed, group=index, num_envs=num_envs),
            **{**config, **changes, "max_episode_steps": spec.max_episode_steps},
        )
        pool = _Pool(spec, num_envs, native, host=host)
        return EnvGroup(spec, num_envs, not host, pool.init, pool.recv, pool.send, pool.restart, pool.close)

    settings = _settings(envpool.make_spec(task, **config))
    spec = _env_spec(task, config)._replace(name=name or task)
    record = {"environment": "envpool", "task": task, "settings": settings}
    return recipe(spec, make_group, num_envs=num_envs, groups=groups, **record)


def environment_seeds(seed: int, *, group: int, num_envs: int) -> list[int]:
    """Returns the seeds of the environments of one group, `num_envs` integers below 2**31.

    They differ between groups (envpool alone would number on from one seed, and neighbouring pools would overlap), and
    a larger group begins with the seeds of a smaller one.

    Raises:
      ValueError: `seed` is not an integer of at least 0.
    """
    sequence = np.random.SeedSequence([integer("seed", seed, low=0), group])
    return [int(word >> 1) for word in sequence.generate_state(num_envs)]


def _settings(native_spec: Any) -> dict[str, Any]:
    """Returns the settings of a task that bear on results."""
    pairs = zip(native_spec._config_keys, native_spec._config_values, strict=True)
    return {key: value for key, value in pairs if key not in _MACHINERY}


def _env_spec(task: str, config: dict[str, Any]) -> EnvSpec:
    """Describes a task as an `EnvSpec`; raises ValueError where that cannot be done."""
    native_spec = envpool.make_spec(task, **config)
    state, actions, settings = native_spec.state_array_spec, native_spec.action_array_spec, _settings(native_spec)
    if "obs" not in state or "action" not in actions:
        raise ValueError(f"task {task!r} has observations or actions of several arrays; only one of each is supported")
    shape, action = _single(state["obs"].shape), actions["action"]
    if len(shape) == 3 and shape[0] < shape[-1]:  # an image, whose channels are fewer than its columns
        shape = (*shape[1:], shape[0])
    action_shape = _single(action.shape)
    discrete = np.issubdtype(action.dtype, np.integer)
    if discrete and (action_shape or np.any(action.minimum != 0)):
        raise ValueError(f"task {task!r} has actions that are neither one index from 0 nor continuous")
    low, high = (None, None) if discrete else action_bounds(action.minimum, action.maximum, action_shape)
    return EnvSpec(
        name=task,
        observation_shape=shape,
        observation_dtype=_narrow(state["obs"].dtype),
        num_actions=int(action.maximum) + 1 if discrete else None,
        action_shape=None if discrete else action_shape,
        action_low=low,
        action_high=high,
        max_episode_steps=int(settings["max_episode_steps"]),
        frame_skip=int(settings.get("frame_skip", 1)),
        extras=tuple(ours for theirs, ours in _EXTRAS.items() if any(key.split(":")[-1] == theirs for key in state)),
    )


def _single(shape: Any) -> tuple[int, ...]:
    """Returns the shape of one environment's array; envpool marks the axis of players by -1."""
    return tuple(int(size) for size in shape if size != -1)


def _narrow(dtype: Any) -> Any:
    return _NARROW.get(np.dtype(dtype), np.dtype(dtype))


def _narrowed(array: Any) -> Any:
    return array.astype(_narrow(array.dtype))


class _Pool:
    """An envpool, made with `batch_size == num_envs`, stepped from Python or by compiled functions.

    Attributes:
      calls: What envpool's `xla()` gave, if compiled functions step the pool.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, native: Any, *, host: bool):
        with warnings.catch_warnings():
            # gymnasium warns of float64 bounds, once, when envpool first looks at its own space, which is not used.
            warnings.simplefilter("ignore")
            _ = native.observation_space
        self.spec, self.num_envs, self._host, self._started = spec, num_envs, host, False
        # The only reference, so that `close` can drop it: envpool's threads end with the last reference.
        self._native = native
        arrays = (*native.spec.state_array_spec.values(), *native.spec.action_array_spec.values())
        # Outside x64 mode JAX would narrow the buffers that C++ fills with 8-byte elements.
        wide = any(np.dtype(array.dtype) in _NARROW for array in arrays)
        self._boundary: Any = functools.partial(jax.enable_x64, True) if wide else contextlib.nullcontext
        try:
            with self._boundary():
                self.calls: Any = None if host else native.xla()
        except RuntimeError as error:
            raise RuntimeError(
                f"envpool cannot step {spec.name} inside jit on this platform ({error}); drive it from Python: "
                "make(..., host=True)"
            ) from error

    @property
    def native(self) -> Any:
        if self._native is None:
            raise RuntimeError(f"this group of {self.spec.name} was closed; make another")
        return self._native

    def init(self) -> PoolState:
        native = self.native
        if self._started:
            raise RuntimeError(f"this group of {self.spec.name} was started before; use restart(state)")
        self._started = True
        native.async_reset()
        if self._host:
            return PoolState((), np.ones(self.num_envs, np.bool_))
        return PoolState(jnp.array(self.calls[0]), jnp.ones(self.num_envs, jnp.bool_))

    def recv(self, state: PoolState) -> tuple[PoolState, TimeStep]:
        native, token = self.native, state.token
        if self._host:
            reply = native.recv()
        else:
            with self._boundary():
                token, reply = self.calls[1](token)
        timestep = self._time_step(state.done, *reply)
        return PoolState(token, timestep.terminated | timestep.truncated), timestep

    def send(self, state: PoolState, action: Any) -> PoolState:
        dtype = np.dtype(self.native.spec.action_array_spec["action"].dtype)
        action = (np if self._host else jnp).asarray(action)
        action = bounded_action(self.spec, checked_action(self.spec, self.num_envs, action))
        if self._host:
            self.native.send(action.astype(dtype))
            return state
        with self._boundary():
            token = self.calls[2](state.token, jax.lax.convert_element_type(action.astype(_narrow(dtype)), dtype))
        return state._replace(token=token)

    def restart(self, state: PoolState, seed: int | None = None) -> PoolState:
        del seed  # envpool's seeds are fixed when a pool is made
        native = self.native
        # The last `recv` may have been dispatched but not run yet; envpool aborts if it is reset in between.
        jax.block_until_ready(state)
        native._reset(np.arange(self.num_envs, dtype=np.int32))
        return state._replace(done=state.done | True)

    def close(self) -> None:
        # A compiled loop may still be running; it uses the pool by address.
        jax.effects_barrier()
        self._native = self.calls = None

    def _time_step(self, first: Any, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        # Which episodes begin is known before, but must come with the others: what stores it could otherwise be moved
        # in front of what still reads the place, and would copy the whole store. Counts are never negative.
        first = first | (info["elapsed_step"] < 0)
        if "terminated" in info:
            terminated = terminated | (truncated & (info["terminated"] != 0))
        if observation.shape[1:] != self.spec.observation_shape:  # channels are first
            observation = observation.transpose(0, 2, 3, 1)
        chex.assert_shape(observation, (self.num_envs, *self.spec.observation_shape))
        unclipped = info["reward"] if "reward_clip" in self.native.spec.config._fields else reward
        extras = {ours: _narrowed(info[theirs]) for theirs, ours in _EXTRAS.items() if theirs in info}
        return consistent(TimeStep(_narrowed(observation), _narrowed(unclipped), first, terminated, truncated, extras))
