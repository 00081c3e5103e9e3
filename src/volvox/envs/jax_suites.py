"""Environments of other packages that are pure JAX, by `from_functions`: gymnax and Brax.

An episode's time limit becomes `max_episode_steps`, so that it truncates and everything else terminates: gymnax's
`step_env` reports only the ends by the rules, and the wrapper of Brax that limits episodes is left out.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox.envs.functional import from_functions
from volvox.envs.groups import unknown_name
from volvox.types import Array, Env

_NO_LIMIT = 2**30
"""Timesteps of the time limit of a task that has none."""


def gymnax(task: str, *, num_envs: int, groups: int = 1, max_episode_steps: int | None = None, **params: Any) -> Env:
    """Makes a recipe for an environment of gymnax, which is compiled with the loop; `pip install "volvox[gymnax]"`.

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
      ValueError: An unknown task or parameter, a number out of range, or actions of another space than Discrete or Box.
    """
    config = {"type": "volvox.envs.gymnax", **locals()}
    config |= config.pop("params")
    try:
        import gymnax as package  # pyright: ignore[reportMissingImports]  # an extra
    except ImportError as error:
        raise ImportError(f'gymnax cannot be imported ({error}): pip install "volvox[gymnax]"') from error
    if task not in package.registered_envs:
        raise unknown_name("task of gymnax", task, package.registered_envs)
    env, defaults = package.make(task)
    known = vars(defaults).keys() - {"max_steps_in_episode"} | {"max_episode_steps"}
    if unknown := params.keys() - known:
        raise unknown_name(f"parameter of {task}", unknown.pop(), known)
    limit = getattr(defaults, "max_steps_in_episode", _NO_LIMIT) if max_episode_steps is None else max_episode_steps
    if hasattr(defaults, "max_steps_in_episode"):  # some observations include the share of it that has passed
        params["max_steps_in_episode"] = limit
    values = defaults.replace(**params)

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
        **_actions(task, env.action_space(values)),
        config=config,
    )


def brax(
    task: str,
    *,
    num_envs: int,
    groups: int = 1,
    max_episode_steps: int = 1_000,
    backend: str | None = None,
    reset_batch: int | None = None,
    **options: Any,
) -> Env:
    """Makes a recipe for an environment of Brax, which is compiled with the loop; `pip install "volvox[brax]"`.

    Example:
      >>> env = volvox.envs.brax("ant", num_envs=64, groups=2)  # doctest: +SKIP

    Args:
      task: A name that `brax.envs.get_environment` takes.
      num_envs: Environments in all groups together.
      groups: Number of groups, which take turns; a divisor of `num_envs`.
      max_episode_steps: Timesteps after which an episode is truncated.
      backend: Physics of Brax, such as "generalized", "positional", "spring" or "mjx"; None takes the task's own.
      reset_batch: See `from_functions`.
      **options: Further arguments of the environment.

    Returns:
      The recipe.

    Raises:
      ImportError: Brax is not installed.
      ValueError: An unknown task, or a number out of range.
    """
    config = {"type": "volvox.envs.brax", **locals()}
    config |= config.pop("options")
    try:
        from brax import envs as package  # pyright: ignore[reportMissingImports]  # an extra
    except ImportError as error:
        raise ImportError(f'Brax cannot be imported ({error}): pip install "volvox[brax]"') from error
    try:
        env = package.get_environment(task, **({"backend": backend} if backend else {}), **options)
    except KeyError as error:
        raise unknown_name("task of Brax", task, ()) from error

    def step(state: Any, action: Array, key: Array) -> tuple[Any, Array, Array]:
        after = _like(state, env.step(state, action))
        return after, after.reward, after.done > 0

    return from_functions(
        env.reset,
        step,
        lambda state: state.obs,
        name=task,
        num_envs=num_envs,
        groups=groups,
        max_episode_steps=max_episode_steps,
        action_shape=(env.action_size,),
        reset_batch=reset_batch,
        config=config,
    )


def _like(before: Any, after: Any) -> Any:
    """Returns a state in the dtypes of the one before, which some environments change in their first step."""
    return jax.tree.map(lambda old, new: jnp.asarray(new, jnp.asarray(old).dtype), before, after)


def _actions(task: str, space: Any) -> dict[str, Any]:
    """Returns the arguments of `from_functions` on the actions of gymnax's space."""
    kind = type(space).__name__
    if kind == "Discrete":
        return {"num_actions": int(space.n)}
    if kind == "Box":
        low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
        return {"action_shape": tuple(space.shape), "action_low": low, "action_high": high}
    raise ValueError(f"{task} has actions of the space {kind}; supported are Discrete and Box")
