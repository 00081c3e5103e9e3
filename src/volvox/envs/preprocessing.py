"""What is done to an environment's actions and observations before anybody else sees them: recipes made of recipes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integer
from volvox.ops.order import rounded
from volvox.types import Array, ArrayTree, Env, EnvGroup, TimeStep


def opening(env: Env, actions: Sequence[int]) -> Env:
    """Begins every episode with given actions, one a step, in place of those that are sent.

    Their time steps are `first` as well, so nothing of them is scored, and they count neither in `elapsed_steps` nor
    towards the cutoff. An episode that ends among them begins anew.

    Args:
        env: Recipe with discrete actions.
        actions: Played in this order; may be empty.

    Returns:
        The recipe.

    Raises:
        ValueError: An action that the environment does not have.
    """
    if env.spec.num_actions is None:
        raise ValueError(f"{env.spec.name} has continuous actions; an opening is of discrete ones")
    for action in actions:
        if integer("an action of the opening", action, low=0) >= env.spec.num_actions:
            raise ValueError(f"action {action} of the opening is none of {env.spec.name}'s {env.spec.num_actions}")
    count, played = len(actions), np.array([*actions, 0], np.int32)

    def wrap(group: EnvGroup) -> EnvGroup:
        xp: Any = jnp if group.traceable else np

        def recv(state: _Opening) -> tuple[_Opening, TimeStep]:
            inner, step = group.recv(state.inner)
            first = step.first | (state.left > 0)
            left = xp.where(step.first, count, xp.maximum(state.left - 1, 0)).astype(xp.int32)
            step = step._replace(
                first=first,
                reward=xp.where(first, xp.float32(0), step.reward),
                terminated=step.terminated & ~first,
                truncated=step.truncated & ~first,
            )
            if "elapsed_steps" in step.extras:
                elapsed = xp.maximum(step.extras["elapsed_steps"] - count, 0)
                step = step._replace(extras={**step.extras, "elapsed_steps": elapsed})
            return _Opening(inner, left), step

        def send(state: _Opening, action: Any) -> _Opening:
            action = xp.asarray(action)
            if action.shape == state.left.shape:  # others are the group's to refuse
                action = xp.where(state.left > 0, xp.asarray(played)[count - state.left], action)
            return _Opening(group.send(state.inner, action), state.left)

        def init() -> _Opening:
            return _Opening(group.init(), xp.zeros(group.num_envs, xp.int32))

        def restart(state: _Opening, seed: int | None = None) -> _Opening:
            return _Opening(group.restart(state.inner, seed), state.left * 0)

        spec = group.spec._replace(max_episode_steps=group.spec.max_episode_steps - count)
        return group._replace(spec=spec, init=init, recv=recv, send=send, restart=restart)

    def make(seed: int, *, max_episode_steps: int | None = None, **given: Any) -> tuple[EnvGroup, ...]:
        steps = env.spec.max_episode_steps if max_episode_steps is None else max_episode_steps
        steps = integer("max_episode_steps", steps, low=1)
        return tuple(wrap(group) for group in env.make(seed, max_episode_steps=steps + count, **given))

    return env._replace(make=make, config={**env.config, "opening": [int(action) for action in actions]})


class _Opening(NamedTuple):
    """Opening.

    Attributes:
      left: int32 `[B]`: actions of the opening whose time steps are still to come.
    """

    inner: ArrayTree
    left: Any


def bilinear_frames(env: Env, *, image_size: int, stack: int) -> Env:
    """Makes small grey images in [0, 1] of whole screens, and stacks them.

    Observations are float32 `[B, image_size, image_size, stack]`, the newest frame last, resized by linear
    interpolation with aligned corners. What comes before the first frame of an episode is black.

    Args:
        env: Recipe whose observations are uint8 `[B, height, width, 1]`.
        image_size: Height and width of an observation in pixels, at least 2.
        stack: Frames in an observation.

    Returns:
        The recipe.

    Raises:
        ValueError: Other observations, or a number out of range.
    """
    shape = env.spec.observation_shape
    if len(shape) != 3 or shape[-1] != 1 or np.dtype(env.spec.observation_dtype) != np.uint8:
        raise ValueError(
            f"frames are made of uint8 [height, width, 1]; {env.spec.name} has "
            f"{np.dtype(env.spec.observation_dtype)} {list(shape)}"
        )
    size, stack = integer("image_size", image_size, low=2), integer("stack", stack, low=1)
    observed = {"observation_shape": (size, size, stack), "observation_dtype": np.dtype(np.float32)}

    def stacked(older: Array, screen: Array, first: Array, zero: Array) -> Array:
        # Scaled after it is resized: differences of bytes are exact.
        image = resize_bilinear(screen[..., 0].astype(jnp.float32), size, zero) * np.float32(1 / 255)
        return jnp.concatenate([jnp.where(first[:, None, None, None], 0.0, older), image[..., None]], axis=-1)

    def wrap(group: EnvGroup) -> EnvGroup:
        # Driven from Python, the same function runs compiled, and its result is handed on as NumPy.
        compiled = jax.jit(stacked)
        see: Callable[..., Any] = stacked if group.traceable else lambda *args: np.asarray(compiled(*args))

        def init() -> _Frames:
            older = np.zeros((group.num_envs, size, size, stack - 1), np.float32)
            xp: Any = jnp if group.traceable else np
            return _Frames(group.init(), xp.asarray(older), xp.zeros((), xp.int32))

        def recv(state: _Frames) -> tuple[_Frames, TimeStep]:
            inner, step = group.recv(state.inner)
            observation = see(state.older, step.observation, step.first, state.zero)
            return _Frames(inner, observation[..., 1:], state.zero), step._replace(observation=observation)

        def send(state: _Frames, action: Any) -> _Frames:
            return state._replace(inner=group.send(state.inner, action))

        def restart(state: _Frames, seed: int | None = None) -> _Frames:
            return state._replace(inner=group.restart(state.inner, seed))

        return group._replace(spec=group.spec._replace(**observed), init=init, recv=recv, send=send, restart=restart)

    def make(seed: int, **given: Any) -> tuple[EnvGroup, ...]:
        return tuple(wrap(group) for group in env.make(seed, **given))

    config = {**env.config, "frames": {"resize": "bilinear", "image_size": size, "stack": stack}}
    return env._replace(spec=env.spec._replace(**observed), make=make, config=config)


class _Frames(NamedTuple):
    """Frames.

    Attributes:
      older: float32 `[B, image_size, image_size, stack - 1]`: the frames before the next.
      zero: int32, the runtime zero: both forms round alike.
    """

    inner: ArrayTree
    older: Any
    zero: Any


def resize_bilinear(images: Array, size: int, zero: Array) -> Array:
    """Resizes by linear interpolation with aligned corners: corner pixels keep their values.

    Args:
        images: float32 `[B, height, width]`.
        size: Height and width of the result, at least 2.
        zero: The runtime zero (`volvox.ops.order`), so that each operation is rounded by itself wherever this runs.

    Returns:
        float32 `[B, size, size]`.
    """

    def between(length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        at = np.arange(size, dtype=np.float32) * np.float32((length - 1) / (size - 1))
        low = np.minimum(np.floor(at).astype(np.int32), length - 1)
        return low, np.minimum(low + 1, length - 1), at - low

    top, bottom, down = between(images.shape[1])
    left, right, across = between(images.shape[2])

    def along(rows: Array) -> Array:
        return rows[:, :, left] + rounded((rows[:, :, right] - rows[:, :, left]) * across, zero)

    upper, lower = along(images[:, top]), along(images[:, bottom])
    return upper + rounded((lower - upper) * down[:, None], zero)
