"""Environments written as three pure functions of one environment, behind the same interface as envpool's."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import group_size, integer
from volvox.types import Array, ArrayTree, Config, Env, EnvGroup, EnvSpec, TimeStep


class FunctionalState(NamedTuple):
    """State of a group of functional environments.

    Attributes:
      key: Keys `[B]`.
      inner: The environments' own states, leaves `[B, ...]`.
      elapsed: int32 `[B]`: steps since the episode began.
      done: bool `[B]`: the last step ended the episode, or there was none yet; the next observation begins one.
      action: The actions sent last, `[B, ...]`.
    """

    key: Array
    inner: ArrayTree
    elapsed: Array
    done: Array
    action: Array


def from_functions(
    reset: Callable[[Array], ArrayTree],
    step: Callable[[ArrayTree, Array, Array], tuple[ArrayTree, Any, Any]],
    observe: Callable[[ArrayTree], Array],
    *,
    name: str,
    num_envs: int,
    max_episode_steps: int,
    groups: int = 1,
    num_actions: int | None = None,
    action_shape: tuple[int, ...] | None = None,
    action_low: float = -1.0,
    action_high: float = 1.0,
    extras: Callable[[ArrayTree], dict[str, Array]] | None = None,
    settings: Config | None = None,
) -> Env:
    """Makes a recipe for environments given by functions of a single environment (they are vmapped here).

    Autoreset is envpool's: the step after an end discards its action, gives reward 0 and reports `first`. An episode
    that has not terminated is truncated after `max_episode_steps` steps. `send` only stores the actions, `recv`
    computes the step. Extras: `elapsed_steps` (int32 `[B]`), and what `extras` gives. With a fixed seed everything is
    exactly repeatable, restarts included, and the state of a group is all there is.

    Args:
        reset: key -> state of a new episode.
        step: (state, action, key) -> (state, reward, terminated); action is an int32 scalar or float32
            `[*action_shape]`, reward and terminated are scalars.
        observe: state -> observation, channels last if it is an image.
        name: What `EnvSpec.name` says.
        num_envs: Environments in all groups together.
        max_episode_steps: Steps after which an episode is truncated.
        groups: Number of groups; a divisor of `num_envs`.
        num_actions: Number of discrete actions; or
        action_shape: shape of a continuous action. Exactly one of the two must be given.
        action_low: Smallest allowed value of a continuous action (not enforced).
        action_high: Largest allowed value of a continuous action (not enforced).
        extras: state -> what else `TimeStep.extras` holds, by name; None: nothing.
        settings: What else makes this environment what it is, for the recipe's `config`: JSON values.

    Raises:
        ValueError: A number out of range, both or neither kind of action given, or functions whose results do not fit.
    """
    group_size(num_envs, groups)
    integer("max_episode_steps", max_episode_steps, low=1)
    if (num_actions is None) == (action_shape is None):
        raise ValueError(
            f"give exactly one of num_actions and action_shape, got num_actions={num_actions!r} and "
            f"action_shape={action_shape!r}"
        )
    discrete = action_shape is None
    if discrete:
        integer("num_actions", num_actions, low=1)
    elif not action_low < action_high:
        raise ValueError(f"action_low must be below action_high, got {action_low!r} and {action_high!r}")
    shape, dtype = ((), jnp.int32) if discrete else (tuple(action_shape), jnp.float32)
    action = jax.ShapeDtypeStruct(shape, dtype)
    observation = _check(reset, step, observe, action)
    tell = extras or (lambda state: {})
    compiled = _compile(reset, step, observe, tell, action)
    told = jax.eval_shape(lambda key: tell(reset(key)), jax.eval_shape(lambda: jax.random.key(0)))
    if not isinstance(told, dict) or "elapsed_steps" in told:
        raise ValueError(f"extras must give a dict without 'elapsed_steps', which is there anyway; it gives {told}")
    spec = EnvSpec(
        name=name,
        observation_shape=tuple(observation.shape),
        observation_dtype=np.dtype(observation.dtype),
        num_actions=num_actions,
        action_shape=None if discrete else shape,
        action_low=0.0 if discrete else float(action_low),
        action_high=float(num_actions - 1) if num_actions is not None else float(action_high),
        max_episode_steps=int(max_episode_steps),
        frame_skip=1,
        extras=("elapsed_steps", *told),
    )

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
        root = jax.random.key(integer("seed", seed, low=0))
        limited = spec._replace(max_episode_steps=steps)
        return tuple(
            _group(limited, size, index, jax.random.fold_in(root, index), compiled, host=host) for index in range(count)
        )

    record: Config = {
        "environment": name,
        "num_envs": int(num_envs),
        "groups": int(groups),
        "settings": {"max_episode_steps": int(max_episode_steps), **(settings or {})},
    }
    env = Env(spec=spec, num_envs=int(num_envs), num_groups=int(groups), make=make, config=record)
    return env


def _check(reset: Any, step: Any, observe: Any, action: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Returns what an observation looks like; raises ValueError where the three functions do not fit together."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(reset, key)
    after, reward, terminated = jax.eval_shape(step, state, action, key)
    described = [jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree) for tree in (state, after)]
    if described[0] != described[1]:
        raise ValueError(f"step must keep the shapes and dtypes of the state: got {described[1]} from {described[0]}")
    for what, result in (("reward", reward), ("terminated", terminated)):
        if result.shape != ():
            raise ValueError(f"step must give a scalar {what} for one environment, got shape {result.shape}")
    return jax.eval_shape(observe, state)


class _Compiled(NamedTuple):
    """What all groups of a recipe share, so that another group, seed or cutoff compiles nothing twice.

    Attributes:
      init: (key, num_envs=) -> state.
      recv: (state, limit=) -> (state, TimeStep); `limit` is the number of steps that truncates an episode.
    """

    init: Callable[..., FunctionalState]
    recv: Callable[..., tuple[FunctionalState, TimeStep]]


def _compile(reset: Any, step: Any, observe: Any, extras: Any, action: jax.ShapeDtypeStruct) -> _Compiled:
    """Vmaps and jits the functions of one environment."""

    @partial(jax.jit, static_argnames="num_envs")
    def init(key: Array, *, num_envs: int) -> FunctionalState:
        keys = jax.random.split(key, num_envs)
        return FunctionalState(
            key=keys,
            # Replaced at the first `recv`, which resets everywhere; here for its shapes.
            inner=jax.vmap(reset)(keys),
            elapsed=jnp.zeros(num_envs, jnp.int32),
            done=jnp.ones(num_envs, jnp.bool_),
            action=jnp.zeros((num_envs, *action.shape), action.dtype),
        )

    def recv_one(state: FunctionalState, limit: Array) -> tuple[FunctionalState, TimeStep]:
        key, reset_key, step_key = jax.random.split(state.key, 3)
        first = state.done
        stepped, reward, terminated = step(state.inner, state.action, step_key)
        inner = jax.tree.map(partial(jnp.where, first), reset(reset_key), stepped)
        elapsed = jnp.where(first, 0, state.elapsed + 1)
        terminated = jnp.asarray(terminated, jnp.bool_) & ~first
        truncated = (elapsed >= limit) & ~terminated & ~first
        time_step = TimeStep(
            observation=observe(inner),
            reward=jnp.where(first, 0.0, jnp.asarray(reward, jnp.float32)),
            first=first,
            terminated=terminated,
            truncated=truncated,
            extras={**extras(inner), "elapsed_steps": elapsed},
        )
        return FunctionalState(key, inner, elapsed, terminated | truncated, state.action), time_step

    return _Compiled(init, jax.jit(jax.vmap(recv_one, in_axes=(0, None)), inline=True))


def _group(spec: EnvSpec, num_envs: int, index: int, key: Array, compiled: _Compiled, *, host: bool) -> EnvGroup:
    """Makes group number `index`, whose environments draw from `key` until they are seeded anew."""
    action_shape = (num_envs, *(spec.action_shape or ()))
    action_dtype = jnp.float32 if spec.num_actions is None else jnp.int32
    limit = np.int32(spec.max_episode_steps)

    def init() -> FunctionalState:
        return compiled.init(key, num_envs=num_envs)

    def recv(state: FunctionalState) -> tuple[FunctionalState, TimeStep]:
        return compiled.recv(state, limit)

    def host_recv(state: FunctionalState) -> tuple[FunctionalState, TimeStep]:
        state, time_step = recv(state)
        return state, jax.device_get(time_step)

    def send(state: FunctionalState, action: Array | np.ndarray) -> FunctionalState:
        action = jnp.asarray(action)
        if action.shape != action_shape:
            raise ValueError(f"actions of {spec.name} must have shape {action_shape}, got {action.shape}")
        return state._replace(action=action.astype(action_dtype))

    def restart(state: FunctionalState, seed: int | None = None) -> FunctionalState:
        if seed is not None:
            anew = jax.random.fold_in(jax.random.key(integer("seed", seed, low=0)), index)
            state = state._replace(key=jax.random.split(anew, num_envs))
        return state._replace(done=jnp.ones(num_envs, jnp.bool_))

    return EnvGroup(spec, num_envs, not host, init, host_recv if host else recv, send, restart, lambda: None)
