"""envpool's tasks as environment groups, of every family in its wheel. No other module steps an envpool.

What is made different from envpool:

- *Autoreset.* After an end envpool discards the next action and answers with the first observation of the next
  episode. The group remembers which episodes ended and reports that answer as `TimeStep.first`, with reward 0.
- *Ends.* `truncated` never holds together with `terminated`. Where a game is over in the very timestep of the time
  limit, envpool reports the time limit alone. The group reports a termination on Atari, where emulators tell the two
  apart; in other families such a timestep is truncated. What ends after the limit is a termination.
- *Layout.* Images are channels first in most of envpool, and channels last here. Observations of several arrays are
  nested dicts.
- *Width.* MuJoCo's arrays are 64 bits wide in C++, and 32 bits here.
- *Lifetime.* A compiled function holds the address of an envpool, not a reference to it. The group holds the
  reference until `close`.
"""

import contextlib
import functools
import os
import re
import warnings
from types import ModuleType
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import INT32, integer, nearest
from volvox._settings import recorded
from volvox.envs.groups import Answers, action_bounds, bounded_action, checked_action, consistent, recipe
from volvox.types import Env, EnvGroup, EnvSpec, TimeStep

# Settings of envpool that are set here, or that say nothing about results.
_MACHINERY = frozenset(
    {
        *("num_envs", "batch_size", "num_threads", "thread_affinity_offset", "max_num_players"),
        *("seed", "env_seed", "base_path", "gym_reset_return_info", "reward_threshold"),
    }
)
_NARROW = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32, np.dtype(np.uint64): np.uint32}
_MOST_ACTIONS = 2**20
"""Integer actions with more values than this are numbers, not choices."""
_OWN_LIMIT = re.compile(r"(gfootball|highway|jumanji|pgx|procgen)/|toy_text/.*(Blackjack|Catch|CliffWalking)")
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


@recorded
def envpool(
    task: str, *, num_envs: int, groups: int = 1, threads: int | None = None, name: str | None = None, **config: Any
) -> Env:
    """Makes a recipe for groups of one envpool each, of any task for one player. `atari` and `mujoco` are presets.

    Families are Atari, Box2D, classic control, Google football, Highway, Jumanji, MiniGrid, MuJoCo (Gymnasium,
    dm_control, Meta-World, MyoSuite, Playground, robotics), Pgx, Procgen, toy text and VizDoom; `docs/environments.md`
    says what was tried of each. An observation is an array, or a dict of arrays by envpool's names.

    Groups take turns, so each gets all the threads. Every environment has its own seed, derived from `make`'s. The
    state of the emulators and the history of restarts are not part of it, so a run is repeatable only from its start.
    Discrete actions out of range are clipped (envpool would read past the end of its table of actions). Continuous
    actions out of bounds are refused with a ValueError where Python drives the environments; inside `jit`, which
    cannot raise, they are clipped.

    Example:
      >>> env = volvox.envs.envpool("CartPole-v1", num_envs=8, groups=2)
      >>> car = volvox.envs.envpool("CarRacing-v3", num_envs=4, max_episode_steps=500)
      >>> grid = volvox.envs.envpool("MiniGrid-Empty-5x5-v0", num_envs=8)  # observations are dicts

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
      ValueError: an unknown task or setting, a number out of range, a time limit other than that of a task which ends
        by its own rules alone, or a task of several players, without observations, or with actions of several arrays.
    """
    if threads is not None:
        integer("threads", threads, low=1)
    make_spec = load_envpool().make_spec
    if task not in (tasks := load_envpool().list_all_envs()):
        plain = re.sub(r"^ALE/|NoFrameskip|Deterministic", "", str(task))  # as Gymnasium calls Atari's games
        raise ValueError(f"task {task!r} is not one of envpool's{nearest(plain, tasks)}")
    defaults = _settings(make_spec(task))
    config = {key: value for key, value in config.items() if value is not None}
    for key, value in config.items():
        if key not in defaults:
            raise ValueError(f"{key!r} is not a setting of task {task!r}{nearest(key, defaults)}")
        if key in ("frame_skip", "max_episode_steps"):
            integer(key, value, low=1)
    family = _family(task)
    if fixed := bool(_OWN_LIMIT.match(f"{family}/{task}")):
        given = defaults | config
        # Episodes of Highway last `duration` seconds, whatever else is said.
        seconds = family == "highway" and given["duration"] * given["policy_frequency"]
        own = round(seconds) or int(defaults["max_episode_steps"])
        _limit(task, own, fixed, config.get("max_episode_steps", own or INT32))
        config["max_episode_steps"] = own

    def make_group(
        spec: EnvSpec, num_envs: int, *, index: int, seed: int, host: bool, seeds: Any = None, **changes: Any
    ) -> EnvGroup:
        native = load_envpool().make(
            task,
            env_type="gymnasium",
            num_envs=num_envs,
            batch_size=num_envs,
            num_threads=min(threads or len(os.sched_getaffinity(0)), num_envs),
            seed=seeds or environment_seeds(seed, group=index, num_envs=num_envs),
            **{**config, **changes, "max_episode_steps": limit_of(spec.max_episode_steps)},
        )
        pool = _Pool(spec, num_envs, native, host=host)
        return EnvGroup(spec, num_envs, not host, pool.init, pool.recv, pool.send, pool.restart, pool.close)

    settings = _settings(make_spec(task, **config))
    limit_of = functools.partial(_limit, task, int(settings["max_episode_steps"]), fixed)
    spec = _env_spec(task, family, config)._replace(name=name or task)
    record = {"environment": "envpool", "task": task, "settings": settings}
    return recipe(spec, make_group, num_envs=num_envs, groups=groups, **record)


def load_envpool() -> ModuleType:
    """Imports envpool when it is first needed: that takes most of a second, and fails where its ROMs are missing.

    Raises:
      ImportError: It cannot be imported; the message says why.
    """
    try:
        import envpool
    except (ImportError, OSError) as error:
        raise ImportError(
            f"envpool cannot be imported ({type(error).__name__}: {error}), so there are no Atari games and no MuJoCo "
            "tasks: reinstall it (pip install envpool). Environments of pure JAX work without it."
        ) from error
    return envpool


def environment_seeds(seed: int, *, group: int, num_envs: int) -> list[int]:
    """Returns the seeds of the environments of one group, `num_envs` integers below 2**31.

    They differ between groups (envpool alone would number on from one seed, and neighbouring pools would overlap), and
    a larger group begins with the seeds of a smaller one.

    Raises:
      ValueError: `seed` is not an integer of at least 0.
    """
    sequence = np.random.SeedSequence([integer("seed", seed, low=0, high=None), group])
    return [int(word >> 1) for word in sequence.generate_state(num_envs)]


def _family(task: str) -> str:
    return load_envpool().registration.registry.specs[task][0].removeprefix("envpool.")


def has_own_limit(env: Env) -> bool:
    """Whether episodes of a recipe end by the task's own rules, whatever `max_episode_steps` is."""
    task = str(env.config.get("task"))
    return env.config.get("environment") == "envpool" and bool(_OWN_LIMIT.match(f"{_family(task)}/{task}"))


def check_limit(env: Env, name: str, limit: int) -> None:
    """Checks that the environments of a recipe keep a time limit, the argument `name`.

    Raises:
      ValueError: They have their own, which is another.
    """
    if has_own_limit(env):
        _limit(env.config["task"], int(env.config["settings"]["max_episode_steps"]), True, limit, name)


def _limit(task: str, own: int, fixed: bool, limit: int, name: str = "max_episode_steps") -> int:
    """Returns what envpool is given as a time limit, 0 for as many timesteps as the task says in each episode.

    Args:
      task: The task.
      own: What envpool says its limit is.
      fixed: Whether it keeps no other.
      limit: What is asked for.
      name: The argument that asks for it.

    Raises:
      ValueError: It would not be kept.
    """
    if fixed and limit != (own or INT32):
        raise ValueError(
            f"{name}={limit}: envpool ends the episodes of {task!r} by the task's own rules alone; leave {name} out."
        )
    return 0 if own == 0 and limit == INT32 else limit


def _settings(native_spec: Any) -> dict[str, Any]:
    """Returns the settings of a task that bear on results."""
    pairs = zip(native_spec._config_keys, native_spec._config_values, strict=True)
    return {key: value for key, value in pairs if key not in _MACHINERY}


def _env_spec(task: str, family: str, config: dict[str, Any]) -> EnvSpec:
    """Describes a task as an `EnvSpec`; raises ValueError where that cannot be done."""
    native_spec = load_envpool().make_spec(task, **config)
    state, settings = native_spec.state_array_spec, _settings(native_spec)
    if native_spec.config.max_num_players > 1:
        raise ValueError(f"task {task!r} is for {native_spec.config.max_num_players} players; only one can be trained")
    names = {key: key.removeprefix("obs").strip(":").replace(":", ".") for key in state if key.startswith("obs")}
    if not names:
        raise ValueError(f"task {task!r} shows no observations")
    shapes = {name: _shown_shape(_single(state[key].shape), family) for key, name in names.items()}
    dtypes = {name: narrow(state[key].dtype) for key, name in names.items()}
    return EnvSpec(
        name=task,
        observation_shape=_nested(shapes),
        observation_dtype=_nested(dtypes),
        **_actions(task, native_spec.action_array_spec),
        max_episode_steps=int(settings["max_episode_steps"]) or INT32,  # 0: as many as the task says in each episode
        frame_skip=int(settings.get("frame_skip", 1)),
        extras=tuple(ours for theirs, ours in _EXTRAS.items() if any(key.split(":")[-1] == theirs for key in state)),
    )


def _actions(task: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of `EnvSpec` on actions."""
    if set(arrays) != {"env_id", "players.env_id", "action"}:
        names = ", ".join(name for name in arrays if "env_id" not in name)
        raise ValueError(f"task {task!r} has actions of several arrays ({names}); only one array is supported")
    action = arrays["action"]
    shape = _single(action.shape)
    fields = dict.fromkeys(("num_actions", "num_choices", "action_shape", "action_low", "action_high"))
    if not np.issubdtype(action.dtype, np.integer):
        limits = np.finfo(action.dtype)  # what C++ says where a task has no bounds
        low, high = np.asarray(action.minimum, np.float64), np.asarray(action.maximum, np.float64)
        low, high = np.where(low == limits.tiny, -np.inf, low), np.where(high == limits.max, np.inf, high)
        low, high = action_bounds(low, high, shape)
        return fields | {"action_shape": low.shape, "action_low": low, "action_high": high}
    choices = np.broadcast_to(np.asarray(action.maximum, np.int64) + 1, shape).ravel().tolist()
    if np.any(np.asarray(action.minimum) != 0) or len(shape) > 1 or max(choices) > _MOST_ACTIONS:
        raise ValueError(f"task {task!r} has actions that are neither indices from 0 nor continuous")
    if not shape:
        return fields | {"num_actions": choices[0]}
    return fields | {"num_choices": tuple(choices), "action_shape": shape}


def _shown_shape(shape: tuple[int, ...], family: str) -> tuple[int, ...]:
    """Returns the shape of one observation as it is shown here: the channels of images are last."""
    # An image has fewer channels than rows and columns. Jumanji has other arrays of this kind, and no images of it.
    channels_first = len(shape) == 3 and shape[0] < min(shape[1:]) and family != "jumanji"
    return (*shape[1:], shape[0]) if channels_first else shape


def _single(shape: Any) -> tuple[int, ...]:
    """Returns the shape of one environment's array; envpool marks the axis of players by -1."""
    return tuple(int(size) for size in shape if size != -1)


def _nested(named: dict[str, Any]) -> Any:
    """Returns a nested dict of names such as "left.eye"; one array without a dict, as envpool does."""
    if len(named) == 1:
        return next(iter(named.values()))
    tree: dict[str, Any] = {}
    for name, value in named.items():
        *path, last = name.split(".")
        functools.reduce(lambda at, step: at.setdefault(step, {}), path, tree)[last] = value
    return tree


def narrow(dtype: Any) -> np.dtype:
    """Returns the dtype of 32 bits in place of one of 64, which JAX does not have; others as they are."""
    return np.dtype(_NARROW.get(np.dtype(dtype), dtype))


def _narrowed(array: Any) -> Any:
    return array.astype(narrow(array.dtype))


_blocked: list[Any] = []
"""Pools in which a thread waits for ever: freeing one would wait for it."""


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
        self._answers = Answers() if host else None
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
        if self._answers is not None:
            reply = self._answers.of(native.recv, self.spec.name)
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
            token = self.calls[2](state.token, jax.lax.convert_element_type(action.astype(narrow(dtype)), dtype))
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
        if self._answers is not None and not self._answers.close():
            _blocked.append(self._native)
        self._native = self.calls = None

    def _time_step(self, first: Any, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        # `first` is known beforehand, but is made to depend on what arrives: otherwise XLA could write it to a replay
        # before other reads of that row, and would copy the whole replay. `elapsed_step` is never negative.
        first = first | (info["elapsed_step"] < 0)
        if "terminated" in info:
            terminated = terminated | (truncated & (info["terminated"] != 0))
        terminated = terminated | (truncated & (info["elapsed_step"] > self.spec.max_episode_steps))
        observation = jax.tree.map(self._shown, observation, self.spec.observation)
        unclipped = info["reward"] if "reward_clip" in self.native.spec.config._fields else reward
        extras = {ours: _narrowed(info[theirs]) for theirs, ours in _EXTRAS.items() if theirs in info}
        return consistent(TimeStep(observation, _narrowed(unclipped), first, terminated, truncated, extras))

    def _shown(self, observation: Any, like: jax.ShapeDtypeStruct) -> Any:
        if observation.shape[1:] != like.shape:  # channels are first
            observation = observation.transpose(0, 2, 3, 1)
        chex.assert_shape(observation, (self.num_envs, *like.shape))
        return _narrowed(observation)
