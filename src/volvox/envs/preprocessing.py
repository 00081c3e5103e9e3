"""Wrappers that change actions and observations before anything else sees them: recipes made of recipes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integer
from volvox.envs.groups import array_module, consistent, wrapped
from volvox.ops.order import rounded
from volvox.types import Array, Env, TimeStep


def opening(env: Env, actions: Sequence[int]) -> Env:
    """Begins every episode with given actions, one a timestep, in place of those that are sent.

    Their timesteps are `first` as well, so none of them is scored, and they count neither in `elapsed_steps` nor
    towards the cutoff. An episode that ends among them begins anew.

    Example:
      >>> env = opening(volvox.envs.envpool("Breakout-v5", num_envs=8), (1,))  # FIRE, which serves the ball

    Args:
      env: Recipe with discrete actions.
      actions: Played in this order; may be empty.

    Returns:
      The recipe.

    Raises:
      ValueError: an action that the environment does not have. `make` raises ValueError for tasks of envpool that end
        by their own rules, because the timesteps of the opening would count towards their limit.
    """
    if env.spec.num_actions is None:
        raise ValueError(f"{env.spec.name} has no discrete actions; an opening needs them")
    highest = env.spec.num_actions - 1
    played = tuple(integer("each action of the opening", action, low=0, high=highest) for action in actions)
    if not played:
        return env
    config = {"type": "volvox.envs.preprocessing.opening", "env": env.config, "actions": played}
    count = len(played)

    def init(num_envs: int) -> np.ndarray:
        """Returns the numbers `[B]` of actions whose timesteps are still to come."""
        return np.zeros(num_envs, np.int32)

    def observe(left: Any, timestep: TimeStep) -> tuple[Any, TimeStep]:
        xp, extras = array_module(left), dict(timestep.extras)
        if "elapsed_steps" in extras:
            extras["elapsed_steps"] = xp.maximum(extras["elapsed_steps"] - count, 0)
        shown = consistent(timestep._replace(first=timestep.first | (left > 0), extras=extras))
        return xp.where(timestep.first, count, xp.maximum(left - 1, 0)).astype(xp.int32), shown

    def act(left: Any, action: Any) -> Any:
        xp = array_module(left)
        table = xp.asarray(np.array([*played, 0], np.int32))
        return xp.where(left > 0, table[count - left], action)

    return wrapped(env, init, observe, act, hidden_steps=count, config=config)


def bilinear_frames(env: Env, *, image_size: int, stack: int) -> Env:
    """Makes small grey images in [0, 1] of whole screens, and stacks them.

    Observations are float32 `[B, image_size, image_size, stack]`, the newest frame last, resized by linear
    interpolation with aligned corners. What comes before the first frame of an episode is black.

    Example:
      >>> screens = {"stack_num": 1, "img_height": 210, "img_width": 160}
      >>> env = volvox.envs.envpool("Pong-v5", num_envs=8, **screens)
      >>> env = bilinear_frames(env, image_size=84, stack=4)

    Args:
      env: Recipe whose observations are uint8 `[B, height, width, 1]`.
      image_size: Height and width of an observation in pixels, at least 2.
      stack: Frames in an observation.

    Returns:
      The recipe.

    Raises:
      ValueError: other observations, or a number out of range.
    """
    shape = env.spec.observation_shape
    if not isinstance(shape, tuple) or (*shape[2:], env.spec.observation_dtype) != (1, np.uint8):
        raise ValueError(
            f"frames are made of uint8 [height, width, 1]; {env.spec.name} has {env.spec.observation_dtype} {shape}"
        )
    size, stack = integer("image_size", image_size, low=2), integer("stack", stack, low=1)
    spec = env.spec._replace(observation_shape=(size, size, stack), observation_dtype=np.dtype(np.float32))
    config = {"type": "volvox.envs.preprocessing.bilinear_frames", "env": env.config}
    config |= {"image_size": size, "stack": stack}

    def init(num_envs: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the frames before the next, `[B, size, size, stack - 1]`, and the runtime zero.

        With it, both forms of the loop round alike.
        """
        return np.zeros((num_envs, size, size, stack - 1), np.float32), np.zeros((), np.int32)

    def observe(state: tuple[Any, Any], timestep: TimeStep) -> tuple[tuple[Any, Any], TimeStep]:
        older, zero = state
        observation = _stacked(older, timestep.observation, timestep.first, zero)
        if not isinstance(timestep.first, jax.Array):
            observation = np.asarray(observation)
        return (observation[..., 1:], zero), timestep._replace(observation=observation)

    return wrapped(env, init, observe, spec=spec, config=config)


@partial(jax.jit, inline=True)
def _stacked(older: Array, screen: Array, first: Array, zero: Array) -> Array:
    """Adds a screen, uint8 `[B, height, width, 1]`, to the older frames of its episode."""
    # Scaled after it is resized: differences of bytes are exact.
    image = resize_bilinear(screen[..., 0].astype(jnp.float32), older.shape[1], zero) * np.float32(1 / 255)
    return jnp.concatenate([jnp.where(first[:, None, None, None], 0.0, older), image[..., None]], axis=-1)


def resize_bilinear(images: Array, size: int, zero: Array) -> Array:
    """Resizes by linear interpolation with aligned corners: corner pixels keep their values.

    Args:
      images: float32 `[B, height, width]`.
      size: Height and width of the result, at least 2.
      zero: The runtime zero (`volvox.ops.order`), so that each operation is rounded by itself wherever this runs.

    Returns:
      float32 `[B, size, size]`.
    """
    chex.assert_rank(images, 3)

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
