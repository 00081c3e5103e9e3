"""envpool behind the `EnvGroup` interface. Nothing outside this file knows envpool.

What is put right here:

- *Autoreset.* After an end envpool discards the next action and answers with the first observation of the next
  episode. The adapter remembers who ended and reports that answer as `TimeStep.first`, with reward 0.
- *Ends.* `truncated` never holds together with `terminated`: where Atari's game is over at the very step of the time
  limit, envpool reports the time limit alone, and the adapter a termination. (MuJoCo does not tell the two apart;
  there such a step is truncated.)
- *Layout.* Images are channels first in envpool, channels last here.
- *Width.* MuJoCo's arrays are 64 bits wide in C++, 32 bits here.
- *Lifetime.* A compiled function holds the pool's address, not a reference to it. The group holds the reference until
  `close`.
"""

import contextlib
import warnings
from typing import Any, NamedTuple

import envpool
import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import group_size, integer, nearest
from volvox._machine import num_cpus
from volvox.types import Array, Config, Env, EnvGroup, EnvSpec, TimeStep

_MACHINERY = frozenset(
    {
        *("num_envs", "batch_size", "num_threads", "thread_affinity_offset", "max_num_players"),
        *("seed", "env_seed", "base_path", "gym_reset_return_info", "reward_threshold"),
    }
)
"""Settings of envpool that this adapter sets itself, or that say nothing about results."""
SCREEN = (210, 160)
"""Rows and columns of an Atari screen; of the few games with more rows envpool shows so many."""
_NARROW = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.int32)}
_EXTRAS = {"ram": "ram", "lives": "lives", "elapsed_step": "elapsed_steps"}


class PoolState(NamedTuple):
    """State of a group of an envpool.

    Attributes:
      token: uint8 `[8]`: orders the calls (traced form); () when driven from Python, where the calls order themselves.
      done: bool `[B]`: the last step ended the episode, or there was none yet; the next observation begins one.
    """

    token: Any
    done: Any


def pool(
    task: str,
    *,
    num_envs: int,
    groups: int = 1,
    frame_skip: int | None = None,
    threads: int | None = None,
    max_episode_steps: int | None = None,
    name: str | None = None,
    **config: Any,
) -> Env:
    """Makes a recipe for groups of one envpool each.

    Groups take turns, so each gets all the threads. Every environment has its own seed, derived from `make`'s; emulator
    state and the history of restarts are not part of it, so a run is repeatable only from its start. Out-of-range
    discrete actions are clamped (envpool would read past the end of its action table).

    Args:
        task: A name envpool knows, such as "Frostbite-v5" or "HalfCheetah-v5".
        num_envs: Environments in all groups together.
        groups: Number of groups; a divisor of `num_envs`.
        frame_skip: Frames per step; None takes the task's default.
        threads: C++ threads stepping a group; None takes every CPU this process may use.
        max_episode_steps: Steps after which an episode is truncated; None takes the task's default.
        name: What `EnvSpec.name` says; None takes `task`.
        **config: Further settings of the task, by envpool's names.

    Returns:
        The recipe. Its `config` holds every setting of the task that bears on results, defaults included.

    Raises:
        ValueError: An unknown task or setting, a number out of range, or a task whose observations or actions are not
            one array.
    """
    group_size(num_envs, groups)
    if threads is not None:
        integer("threads", threads, low=1)
    if task not in (tasks := envpool.list_all_envs()):
        raise ValueError(f"task {task!r} is not one of envpool's{nearest(task, tasks)}")
    defaults = _settings(envpool.make_spec(task))
    if "frame_skip" not in defaults and frame_skip not in (None, 1):
        raise ValueError(f"frame_skip must be 1 or None for task {task!r}, which skips no frames; got {frame_skip!r}")
    for key in config:
        if key not in defaults:
            raise ValueError(f"{key!r} is not a setting of task {task!r}{nearest(key, defaults)}")
    if frame_skip is not None and "frame_skip" in defaults:
        config["frame_skip"] = integer("frame_skip", frame_skip, low=1)
    if max_episode_steps is not None:
        config["max_episode_steps"] = integer("max_episode_steps", max_episode_steps, low=1)
    native_spec = envpool.make_spec(task, **config)
    settings = _settings(native_spec)
    spec = _env_spec(name or task, task, native_spec, settings)

    def make(
        seed: int,
        *,
        max_episode_steps: int | None = None,
        num_envs: int | None = None,
        num_groups: int | None = None,
        host: bool = False,
    ) -> tuple[EnvGroup, ...]:
        count = env.num_groups if num_groups is None else num_groups
        size = group_size(env.num_envs if num_envs is None else num_envs, count)
        steps = spec.max_episode_steps if max_episode_steps is None else max_episode_steps
        steps = integer("max_episode_steps", steps, low=1)
        available = threads or num_cpus()
        made = []
        for index in range(count):
            native = envpool.make(
                task,
                env_type="gymnasium",
                num_envs=size,
                batch_size=size,
                num_threads=min(available, size),
                seed=environment_seeds(seed, group=index, num_envs=size),
                **{**config, "max_episode_steps": steps},
            )
            made.append(_group(spec._replace(max_episode_steps=steps), size, native, host=host))
        return tuple(made)

    record: Config = {
        "environment": "envpool",
        "task": task,
        "num_envs": int(num_envs),
        "groups": int(groups),
        "settings": settings,
    }
    env = Env(spec=spec, num_envs=int(num_envs), num_groups=int(groups), make=make, config=record)
    return env


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


def _env_spec(name: str, task: str, native_spec: Any, settings: dict[str, Any]) -> EnvSpec:
    """Describes a task by our record; raises ValueError where it does not fit."""
    state, action = native_spec.state_array_spec, native_spec.action_array_spec
    if "obs" not in state or "action" not in action:
        raise ValueError(f"task {task!r} has observations or actions of several arrays; only one of each is supported")
    shape = _single(state["obs"].shape)
    if _channels_first(state["obs"]):
        shape = (*shape[1:], shape[0])
    act = action["action"]
    low, high = np.unique(act.minimum), np.unique(act.maximum)
    if low.size != 1 or high.size != 1:
        raise ValueError(f"task {task!r} bounds each component of its action differently, which is not supported")
    discrete = np.issubdtype(act.dtype, np.integer)
    if discrete and (_single(act.shape) or low[0] != 0):
        raise ValueError(f"task {task!r} has actions that are neither one index from 0 nor continuous")
    return EnvSpec(
        name=name,
        observation_shape=shape,
        observation_dtype=_narrow(state["obs"].dtype),
        num_actions=int(high[0]) + 1 if discrete else None,
        action_shape=None if discrete else _single(act.shape),
        action_low=float(low[0]),
        action_high=float(high[0]),
        max_episode_steps=int(settings["max_episode_steps"]),
        frame_skip=int(settings.get("frame_skip", 1)),
        extras=tuple(ours for theirs, ours in _EXTRAS.items() if any(key.split(":")[-1] == theirs for key in state)),
    )


def _single(shape: Any) -> tuple[int, ...]:
    """Returns the shape of one environment's array; envpool marks the axis of players by -1."""
    return tuple(int(size) for size in shape if size != -1)


def _narrow(dtype: Any) -> Any:
    return _NARROW.get(np.dtype(dtype), np.dtype(dtype))


def _channels_first(array_spec: Any) -> bool:
    """Says whether an observation is an image with its channels, fewer than its columns, on the first axis."""
    shape = _single(array_spec.shape)
    return len(shape) == 3 and shape[0] < shape[-1]


def _group(spec: EnvSpec, num_envs: int, native: Any, *, host: bool) -> EnvGroup:
    """Wraps one envpool, made with `batch_size == num_envs`."""
    arrays = native.spec.state_array_spec
    action_dtype = np.dtype(native.spec.action_array_spec["action"].dtype)
    channels_first = _channels_first(arrays["obs"])
    unclipped = "reward_clip" in native.spec.config._fields
    wide = any(np.dtype(a.dtype) in _NARROW for a in (*arrays.values(), *native.spec.action_array_spec.values()))
    action_shape = (num_envs, *(spec.action_shape or ()))
    with warnings.catch_warnings():
        # gymnasium warns of float64 bounds, once, when envpool first looks at its own space; nothing here uses it.
        warnings.simplefilter("ignore")
        _ = native.observation_space

    def narrowed(array: Any) -> Any:
        return array.astype(_narrow(array.dtype))

    def time_step(xp: Any, reply: Any, first: Any) -> TimeStep:
        # Both forms go through here: `xp` is numpy or jax.numpy.
        observation, reward, terminated, truncated, info = reply
        if "terminated" in info:
            terminated = terminated | (truncated & (info["terminated"] != 0))
            truncated = truncated & ~terminated
        if unclipped:
            reward = info["reward"]
        observation = narrowed(observation)
        return TimeStep(
            observation=xp.moveaxis(observation, 1, -1) if channels_first else observation,
            reward=xp.where(first, xp.float32(0), reward.astype(xp.float32)),
            first=first,
            terminated=terminated,
            truncated=truncated,
            extras={ours: narrowed(info[theirs]) for theirs, ours in _EXTRAS.items() if theirs in info},
        )

    def native_action(xp: Any, action: Any, dtype: Any) -> Any:
        action = xp.asarray(action)
        if action.shape != action_shape:
            raise ValueError(f"actions of {spec.name} must have shape {action_shape}, got {action.shape}")
        low, high = (spec.action_low, spec.action_high) if spec.num_actions is None else (0, spec.num_actions - 1)
        if xp is np and spec.num_actions is None:
            slack = 1e-6 * (high - low)  # of rounding to float32
            if (outside := action[~((action >= low - slack) & (action <= high + slack))]).size:
                raise ValueError(
                    f"an action of {outside[0]} is outside of {spec.name}'s bounds, {low} to {high}; clip it"
                )
        return xp.clip(action, low, high).astype(dtype)

    # The only reference to the pool, so that `close` can drop it: envpool's threads end with the last reference.
    held: list[Any] = [native]
    started: list[bool] = []
    environments = np.arange(num_envs, dtype=np.int32)

    def the_pool() -> Any:
        if not held:
            raise RuntimeError(f"this group of {spec.name} was closed; make another")
        return held[0]

    def start() -> None:
        if started:
            raise RuntimeError(f"this group of {spec.name} was started before; use restart(state)")
        started.append(True)
        the_pool().async_reset()

    def restart(state: PoolState, seed: int | None = None) -> PoolState:
        del seed  # envpool's seeds are fixed when a pool is made
        pool = the_pool()
        # The last `recv` may have been dispatched but not run yet; envpool aborts if it is reset in between.
        jax.block_until_ready(state)
        pool._reset(environments)
        return PoolState(state.token, state.done | True)

    def close() -> None:
        # A compiled loop may still be running; it uses the pool by address.
        jax.effects_barrier()
        held.clear()

    def group(init: Any, recv: Any, send: Any) -> EnvGroup:
        return EnvGroup(spec, num_envs, not host, init, recv, send, restart, close)

    if host:

        def host_init() -> PoolState:
            start()
            return PoolState((), np.ones(num_envs, np.bool_))

        def host_recv(state: PoolState) -> tuple[PoolState, TimeStep]:
            step = time_step(np, the_pool().recv(), state.done)
            return PoolState((), step.terminated | step.truncated), step

        def host_send(state: PoolState, action: Any) -> PoolState:
            the_pool().send(native_action(np, action, action_dtype))
            return state

        return group(host_init, host_recv, host_send)

    # Outside x64 mode JAX would narrow the buffers that C++ fills with 8-byte elements.
    def boundary() -> Any:
        return jax.enable_x64(True) if wide else contextlib.nullcontext()

    try:
        with boundary():
            held.append(native.xla())
    except RuntimeError as error:
        raise RuntimeError(
            f"envpool cannot step {spec.name} inside jit on this platform ({error}); drive it from Python: "
            "make(..., host=True)"
        ) from error

    def interface() -> Any:
        the_pool()
        return held[1]

    def init() -> PoolState:
        handle, *_ = interface()
        start()
        return PoolState(jnp.array(handle), jnp.ones(num_envs, jnp.bool_))

    def recv(state: PoolState) -> tuple[PoolState, TimeStep]:
        with boundary():
            token, reply = interface()[1](state.token)
        # Which steps are first is known before, but must come with the others: what stores it could otherwise be moved
        # in front of what still reads the place, and would copy the whole store. Steps are never negative.
        first = state.done | (reply[4]["elapsed_step"] < 0)
        step = time_step(jnp, reply, first)
        return PoolState(token, step.terminated | step.truncated), step

    def send(state: PoolState, action: Array) -> PoolState:
        action = native_action(jnp, action, _narrow(action_dtype))
        with boundary():
            token = interface()[2](state.token, jax.lax.convert_element_type(action, action_dtype))
        return PoolState(token, state.done)

    return group(init, recv, send)
