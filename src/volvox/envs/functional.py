"""Environments in pure JAX behind envpool's interface: three functions, and the suites gymnax, Brax and Playground.

A time limit of a suite becomes `max_episode_steps`, so that it truncates and everything else terminates: gymnax's
`step_env` reports only the ends by the rules, and the wrapper that limits episodes in the other two is left out.
"""

import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import INT32, import_extra, integer
from volvox.envs.groups import action_bounds, checked_action, consistent, environment_keys, recipe
from volvox.types import Array, ArrayTree, ByValue, Config, Env, EnvGroup, EnvSpec, TimeStep, zeros


class FunctionalState(NamedTuple):
    """State of a group of functional environments.

    Attributes:
      key: Keys `[B]`.
      inner: The environments' own states, leaves `[B, ...]`.
      elapsed: int32 `[B]`: timesteps since the episode began.
      done: bool `[B]`: the last timestep ended the episode, or there was none yet; the next observation begins one.
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
    observe: Callable[[ArrayTree], ArrayTree],
    *,
    name: str,
    num_envs: int,
    max_episode_steps: int,
    groups: int = 1,
    num_actions: int | None = None,
    num_choices: Sequence[int] | None = None,
    action_shape: tuple[int, ...] | None = None,
    action_low: float | np.ndarray = -1.0,
    action_high: float | np.ndarray = 1.0,
    extras: Callable[[ArrayTree], dict[str, Array]] | None = None,
    render: Callable[[ArrayTree], Array] | None = None,
    reset_batch: int | None = None,
    config: Config | None = None,
) -> Env:
    """Makes a recipe for environments given by functions of a single environment (they are vmapped here).

    Autoreset is envpool's: the timestep after an end discards its action, gives reward 0 and reports `first`. An
    episode that has not terminated is truncated after `max_episode_steps` timesteps. `send` only stores the actions,
    `recv` computes the timestep. Extras: `elapsed_steps` (int32 `[B]`), and those of `extras`. With a fixed seed
    everything is exactly repeatable, restarts included, and the state of a group is complete. A population's
    episodes have keys of their own (`EnvGroup.rekey`), so that its results do not depend on `num_envs` and `groups`.

    Example: a point on a line, pushed towards 0.

      >>> env = volvox.envs.from_functions(
      ...     reset=lambda key: jax.random.uniform(key, minval=-1.0),
      ...     step=lambda position, action, key: (position + 0.1 * action[0], -abs(position), False),
      ...     observe=lambda position: position[None],
      ...     name="point",
      ...     num_envs=8,
      ...     max_episode_steps=50,
      ...     action_shape=(1,),
      ... )

    Args:
      reset: key -> state of a new episode.
      step: (state, action, key) -> (state, reward, terminated); action is an int32 scalar, int32 `[len(num_choices)]`
        or float32 `[*action_shape]`, reward and terminated are scalars.
      observe: state -> observation; an array, or a dict or a tuple of arrays. An image with its channels first is
        transposed (`volvox.envs.groups.convert_observation`). The entry `action_mask` of a dict tells which discrete
        actions are allowed (`EnvSpec.split_mask`).
      name: `EnvSpec.name`.
      num_envs: Environments in all groups together.
      max_episode_steps: Timesteps after which an episode is truncated.
      groups: Number of groups; a divisor of `num_envs`.
      num_actions: Number of discrete actions. Exactly one of this, `num_choices` and `action_shape` must be given.
      num_choices: For actions of several discrete components, the number of choices of each.
      action_shape: Shape of a continuous action.
      action_low: Smallest allowed values of a continuous action (not enforced): a number, or an array
        `[*action_shape]`.
      action_high: Largest allowed values, likewise.
      extras: state -> further entries of `TimeStep.extras` by name, besides `elapsed_steps`.
      render: state -> picture for videos, uint8 `[height, width, 3]`.
      reset_batch: Number of environments of a group that are reset together. With None every timestep computes a reset
        of each environment, which is fastest for cheap resets. With a number it computes resets only for episodes that
        begin, in batches of at most this size: use a small number, such as 1 to 8, if a reset costs many timesteps. The
        results are the same. (With 32 environments on a CPU, episodes of 100 timesteps, and resets that cost as much
        as 300 timesteps, runs take 52 times (None), 1.1 times (1) and 3.4 times (4) as long as with cheap resets.)
      config: `Env.config`, for a function that calls this one; None makes it of these arguments.

    Returns:
      The recipe.

    Raises:
      ValueError: A number is out of range, or not exactly one of `num_actions`, `num_choices` and `action_shape` is
        given.
      AssertionError: `step` changes the structure, shapes or dtypes of the state, or its other results are not scalars.
    """
    arguments = {**locals()}
    del arguments["config"]
    config = config or {"type": "volvox.envs.from_functions", **arguments}
    if reset_batch is not None:
        integer("reset_batch", reset_batch, low=1)
    kinds = {"num_actions": num_actions, "num_choices": num_choices, "action_shape": action_shape}
    if sum(kind is not None for kind in kinds.values()) != 1:
        raise ValueError(f"give exactly one of num_actions, num_choices and action_shape, got {kinds}")
    low = high = None
    if num_actions is not None:
        integer("num_actions", num_actions, low=1)
    elif num_choices is not None:
        num_choices = tuple(integer("each of num_choices", number, low=1) for number in num_choices)
        action_shape = (len(num_choices),)
    elif action_shape is not None:
        action_shape = tuple(action_shape)
        low, high = action_bounds(action_low, action_high, action_shape)
    extras = extras or (lambda state: {})
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(reset, key)
    observation = jax.eval_shape(observe, state)
    spec = EnvSpec(
        name=name,
        observation_shape=jax.tree.map(lambda x: tuple(x.shape), observation),
        observation_dtype=jax.tree.map(lambda x: np.dtype(x.dtype), observation),
        num_actions=num_actions,
        action_shape=action_shape,
        action_low=low,
        action_high=high,
        max_episode_steps=max_episode_steps,
        frame_skip=1,
        num_choices=None if num_choices is None else tuple(num_choices),
        extras=("elapsed_steps", *jax.eval_shape(extras, state)),
    )
    after, reward, terminated = jax.eval_shape(step, state, spec.action, key)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    chex.assert_shape((reward, terminated), ())

    def init(key: Array, index: int | Array, *, num_envs: int) -> FunctionalState:
        """Returns the state in which all environments of group `index` are about to begin an episode."""
        keys, elapsed = environment_keys(key, index, num_envs), jnp.zeros(num_envs, jnp.int32)
        # The first `recv` resets all environments; here they are reset for their shapes.
        inner = jax.vmap(reset)(keys)
        return FunctionalState(keys, inner, elapsed, jnp.ones(num_envs, jnp.bool_), zeros(spec.action, num_envs))

    def reset_in_batches(state: FunctionalState, size: int) -> ArrayTree:
        """Resets the environments that begin an episode, `size` at once; returns states for these environments."""
        keys = jax.vmap(lambda key: jax.random.split(key, 3)[1])(state.key)

        def reset_some(carry: tuple[Array, ArrayTree]) -> tuple[Array, ArrayTree]:
            waiting, states = carry
            rows = jnp.nonzero(waiting, size=min(size, len(waiting)), fill_value=len(waiting))[0]
            begun = jax.vmap(reset)(keys[jnp.minimum(rows, len(waiting) - 1)])
            states = jax.tree.map(lambda x, new: x.at[rows].set(new, mode="drop"), states, begun)
            return waiting.at[rows].set(False, mode="drop"), states

        return jax.lax.while_loop(lambda carry: carry[0].any(), reset_some, (state.done, state.inner))[1]

    def recv_one(state: FunctionalState, limit: Array, begun: ArrayTree | None) -> tuple[FunctionalState, TimeStep]:
        """Steps one environment; `begun` is the state of a new episode, None if it is still to be computed."""
        key, reset_key, step_key = jax.random.split(state.key, 3)
        first = state.done
        stepped, reward, terminated = step(state.inner, state.action, step_key)
        begun = reset(reset_key) if begun is None else begun
        inner = jax.tree.map(partial(jnp.where, first), begun, stepped)
        elapsed = jnp.where(first, 0, state.elapsed + 1)
        further = {**extras(inner), "elapsed_steps": elapsed}
        timestep = consistent(TimeStep(observe(inner), reward, first, terminated, elapsed >= limit, further))
        done = timestep.terminated | timestep.truncated
        return FunctionalState(key, inner, elapsed, done, state.action), timestep

    def recv(state: FunctionalState, limit: Array) -> tuple[FunctionalState, TimeStep]:
        """Steps all environments; `limit` is the number of timesteps that truncates an episode."""
        begun = None if reset_batch is None else reset_in_batches(state, reset_batch)
        return jax.vmap(recv_one, in_axes=(0, None, 0))(state, limit, begun)

    # All groups share these compiled functions, so that another group, seed or cutoff compiles nothing twice.
    compiled = jax.jit(init, static_argnames="num_envs"), jax.jit(recv, inline=True)
    draw = None if render is None else jax.jit(jax.vmap(render))
    env = recipe(spec, partial(_group, *compiled, draw), num_envs=num_envs, groups=groups, config=config)
    return env._replace(make=ByValue((name, arguments), env.make))


def _group(
    init: Any, recv: Any, draw: Any, spec: EnvSpec, num_envs: int, *, index: int, seed: int, host: bool
) -> EnvGroup:
    """Makes group number `index`; `init`, `recv` and `draw` are those of `from_functions`, compiled."""

    def receive(state: FunctionalState) -> tuple[FunctionalState, TimeStep]:
        state, timestep = recv(state, np.int32(spec.max_episode_steps))
        return state, jax.device_get(timestep) if host else timestep

    def send(state: FunctionalState, action: Array | np.ndarray) -> FunctionalState:
        action = checked_action(spec, num_envs, jnp.asarray(action))
        return state._replace(action=action.astype(state.action.dtype))

    def restart(state: FunctionalState, seed: int | None = None) -> FunctionalState:
        key = state.key if seed is None else environment_keys(jax.random.key(seed), index, num_envs)
        return state._replace(key=key, done=jnp.ones(num_envs, jnp.bool_))

    def rekey(state: FunctionalState, where: Array, keys: Array) -> FunctionalState:
        return state._replace(key=jnp.where(where, keys, state.key))

    functions = (partial(init, jax.random.key(seed), index, num_envs=num_envs), receive, send, restart, lambda: None)
    render = draw and (lambda state: np.asarray(draw(state.inner)))
    return EnvGroup(spec, num_envs, not host, *functions, resumable=not host, rekey=rekey, render=render)


def gymnax(task: str, *, num_envs: int, groups: int = 1, max_episode_steps: int | None = None, **params: Any) -> Env:
    """Makes a recipe for an environment of gymnax, which is compiled with the loop; it needs the extra `gymnax`.

    Example:
      >>> env = volvox.envs.gymnax("CartPole-v1", num_envs=64, groups=2)  # doctest: +SKIP

    Args:
      task: A name that `gymnax.make` takes.
      num_envs: Environments in all groups together.
      groups: Number of groups, which take turns; a divisor of `num_envs`.
      max_episode_steps: Timesteps after which an episode is truncated; None takes the task's own.
      **params: Fields of the environment's parameters in place of the defaults.

    Returns:
      The recipe.

    Raises:
      ImportError: gymnax is not installed.
      ValueError: An unknown task, or a number out of range.
      TypeError: An unknown parameter.
    """
    config = {"type": "volvox.envs.gymnax", **locals()}
    config |= config.pop("params")
    env, values = import_extra("gymnax", "gymnax").make(task)
    limit = int(values.max_steps_in_episode) if max_episode_steps is None else max_episode_steps
    # Some observations include the share of the limit that has passed.
    values = values.replace(**params, max_steps_in_episode=limit)
    space = env.action_space(values)
    if hasattr(space, "n"):
        actions: dict[str, Any] = {"num_actions": int(space.n)}
    else:
        actions = {"action_shape": space.shape, "action_low": space.low, "action_high": space.high}

    def reset(key: Array) -> Any:
        return env.reset_env(key, values)

    def step(state: Any, action: Array, key: Array) -> tuple[Any, Array, Array]:
        observation, inner, reward, done, _ = env.step_env(key, state[1], action, values)
        return _like(state, (observation, inner)), jnp.float32(reward), done

    return from_functions(
        reset,
        step,
        lambda state: state[0],
        name=task,
        num_envs=num_envs,
        groups=groups,
        max_episode_steps=limit,
        **actions,
        config=config,
    )


def brax(
    task: str,
    *,
    num_envs: int,
    groups: int = 1,
    max_episode_steps: int = 1_000,
    reset_batch: int | None = None,
    **options: Any,
) -> Env:
    """Makes a recipe for an environment of Brax, which is compiled with the loop; it needs the extra `brax`.

    Example:
      >>> env = volvox.envs.brax("ant", num_envs=64, groups=2)  # doctest: +SKIP

    Args:
      task: A name that `brax.envs.get_environment` takes.
      num_envs: Environments in all groups together.
      groups: Number of groups, which take turns; a divisor of `num_envs`.
      max_episode_steps: Timesteps after which an episode is truncated.
      reset_batch: See `from_functions`.
      **options: Further arguments of the environment, such as `backend`, the physics of Brax: "generalized",
        "positional", "spring" or "mjx".

    Returns:
      The recipe.

    Raises:
      ImportError: Brax is not installed.
      KeyError: An unknown task.
      ValueError: A number out of range.
    """
    config = {"type": "volvox.envs.brax", **locals()}
    config |= config.pop("options")
    env = import_extra("brax.envs", "brax").get_environment(task, **options)
    sizes = {"num_envs": num_envs, "groups": groups, "max_episode_steps": max_episode_steps}
    return _from_states(env, name=task, **sizes, reset_batch=reset_batch, config=config)


def playground(
    task: str, *, num_envs: int, groups: int = 1, max_episode_steps: int | None = None, **overrides: Any
) -> Env:
    """Makes a recipe for a task of MuJoCo Playground, which is compiled with the loop; it needs the extra `playground`.

    A simulation that diverges ends its episode, whose last reward and observation have 0 where they are not finite.
    Resets are computed only in timesteps in which an episode begins, because some of them simulate 200 timesteps.
    A timestep takes the task's `action_repeat` steps with one action and adds their rewards, as Playground's wrapper.

    Example:
      >>> env = volvox.envs.playground("CheetahRun", num_envs=2_048)  # doctest: +SKIP

    Args:
      task: A name in `mujoco_playground.registry.ALL_ENVS`. The tasks of the DeepMind Control suite need no download;
        those of robots download MuJoCo Menagerie when one is made for the first time.
      num_envs: Environments in all groups together.
      groups: Number of groups, which take turns; a divisor of `num_envs`.
      max_episode_steps: Timesteps after which an episode is truncated; None takes the task's own.
      **overrides: Entries of the task's configuration. `impl` is "jax" by default, the physics compiled by XLA; "warp"
        is Playground's own default for NVIDIA GPUs.

    Returns:
      The recipe.

    Raises:
      ImportError: Playground is not installed.
      ValueError: An unknown task, or a number out of range.
      KeyError: An unknown entry of the configuration.
      OSError: MuJoCo Menagerie could not be downloaded.
    """
    config = {"type": "volvox.envs.playground", **locals()}
    config |= config.pop("overrides")
    registry = import_extra("mujoco_playground", "playground").registry
    settings = registry.get_default_config(task).lock()
    settings.update_from_flattened_dict({"impl": "jax", **overrides})
    try:
        env = registry.load(task, settings)
    except subprocess.CalledProcessError as error:
        raise OSError(
            f"{task} needs MuJoCo Menagerie, and its download failed: {error}; tasks of the DeepMind Control suite, "
            "such as CheetahRun, need no download"
        ) from error
    repeat: int = settings.get("action_repeat", 1)
    limit = -(-settings.episode_length // repeat) if max_episode_steps is None else max_episode_steps
    sizes = {"num_envs": num_envs, "groups": groups, "max_episode_steps": limit}
    return _from_states(env, repeat, name=task, **sizes, reset_batch=INT32, config=config)


def _from_states(env: Any, repeat: int = 1, **arguments: Any) -> Env:
    """Makes a recipe of an environment as Brax defines them: its functions return a state that holds all results."""

    def finite(state: Any, x: Array) -> Array:
        return jnp.where((state.done > 0) & ~jnp.isfinite(x), 0, x)

    def step(state: Any, action: Array, key: Array) -> tuple[Any, Array, Array]:
        def once(state: Any, _: None) -> tuple[Any, Array]:
            after = _like(state, env.step(state, action))
            return after, after.reward

        after, rewards = jax.lax.scan(once, state, length=repeat)
        return after, finite(after, rewards.sum()), after.done > 0

    def observe(state: Any) -> ArrayTree:
        return jax.tree.map(partial(finite, state), state.obs)

    return from_functions(env.reset, step, observe, action_shape=(env.action_size,), **arguments)


def _like(before: Any, after: Any) -> Any:
    """Returns a state in the dtypes of the one before, which some environments change in their first step."""
    return jax.tree.map(lambda old, new: jnp.asarray(new, jnp.asarray(old).dtype), before, after)
