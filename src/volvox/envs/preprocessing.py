"""Wrappers of recipes that change actions and observations: the preprocessing "uber" of `volvox.envs.atari`.

Each is a recipe made of a recipe. The `Env.config` of a new one is empty, because `atari` writes its own.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox.envs.groups import array_module, consistent, with_cutoff
from volvox.ops.order import rounded
from volvox.types import Array, ArrayTree, Env, EnvGroup, EnvSpec, TimeStep


def wrapped(
    env: Env,
    init: Callable[[int], ArrayTree],
    observe: Callable[[Any, TimeStep], tuple[Any, TimeStep]],
    act: Callable[[Any, Any], Any] = lambda state, action: action,
    *,
    spec: EnvSpec,
    hidden_steps: int = 0,
) -> Env:
    """Makes a recipe whose groups are those of another recipe with other timesteps or actions.

    The three functions are called with NumPy arrays if Python drives the group, and inside `jit` otherwise;
    `array_module` finds the right module.

    Args:
      env: The recipe to wrap.
      init: num_envs -> state, a pytree of NumPy arrays: the wrapper's state before the first episode and after a
        restart.
      observe: (state, timestep) -> (state, timestep): the timestep that replaces the group's.
      act: (state, action) -> action: the actions `[B, ...]` that are sent to the group.
      spec: The spec of the wrapped environment.
      hidden_steps: Timesteps of each episode that the wrapper hides; the episodes of `env` are longer by as many.
    """

    def wrap(inner: Any, spec: EnvSpec) -> EnvGroup:
        """Wraps one group; its state is (state of the group, state of the wrapper)."""
        xp = jnp if inner.traceable else np

        def begin(state: ArrayTree) -> tuple[ArrayTree, ArrayTree]:
            return state, jax.tree.map(xp.asarray, init(inner.num_envs))

        def recv(state: tuple[ArrayTree, ArrayTree]) -> tuple[tuple[ArrayTree, ArrayTree], TimeStep]:
            inner_state, timestep = inner.recv(state[0])
            wrapper_state, timestep = observe(state[1], timestep)
            return (inner_state, wrapper_state), timestep

        def send(state: tuple[ArrayTree, ArrayTree], action: Any) -> tuple[ArrayTree, ArrayTree]:
            return inner.send(state[0], act(state[1], xp.asarray(action))), state[1]

        def rekey(state: tuple[ArrayTree, ArrayTree], where: Any, keys: Any) -> tuple[ArrayTree, ArrayTree]:
            return inner.rekey(state[0], where, keys), state[1]

        return inner._replace(
            spec=spec,
            init=lambda: begin(inner.init()),
            recv=recv,
            send=send,
            restart=lambda state, seed=None: begin(inner.restart(state[0], seed)),
            rekey=inner.rekey and rekey,
            render=inner.render and (lambda state: inner.render(state[0])),
        )

    def make(seed: int, *, max_episode_steps: int | None = None, **options: Any) -> tuple[EnvGroup, ...]:
        new_spec = with_cutoff(spec, max_episode_steps)
        inner = env.make(seed, max_episode_steps=new_spec.max_episode_steps + hidden_steps, **options)
        return tuple(wrap(group, new_spec) for group in inner)

    return env._replace(spec=spec, make=make, config={})


def opening(env: Env, actions: Sequence[int]) -> Env:
    """Begins every episode with given discrete actions, one per timestep; the actions that are sent are ignored then.

    Their timesteps are `first` as well, so none of them is scored, and they count neither in `elapsed_steps` nor
    towards the cutoff. An episode that ends among them begins anew.
    """
    count, table = len(actions), np.array([*actions, 0], np.int32)

    def init(num_envs: int) -> np.ndarray:
        """Returns the numbers `[B]` of actions whose timesteps are still to come."""
        return np.zeros(num_envs, np.int32)

    def observe(left: Any, timestep: TimeStep) -> tuple[Any, TimeStep]:
        xp = array_module(left)
        elapsed = xp.maximum(timestep.extras["elapsed_steps"] - count, 0)
        extras = {**timestep.extras, "elapsed_steps": elapsed}
        shown = consistent(timestep._replace(first=timestep.first | (left > 0), extras=extras))
        return xp.where(timestep.first, count, xp.maximum(left - 1, 0)).astype(xp.int32), shown

    def act(left: Any, action: Any) -> Any:
        xp = array_module(left)
        return xp.where(left > 0, xp.asarray(table)[count - left], action)

    return wrapped(env, init, observe, act, spec=env.spec, hidden_steps=count) if count else env


def bilinear_frames(env: Env, *, image_size: int, stack: int) -> Env:
    """Makes small grey images in [0, 1] of whole screens, uint8 `[B, height, width, 1]`, and stacks them.

    Observations are float32 `[B, image_size, image_size, stack]`, the newest frame last, resized by linear
    interpolation with aligned corners. Frames before the first of an episode are black.
    """
    shape = (image_size, image_size, stack)
    spec = env.spec._replace(observation_shape=shape, observation_dtype=np.dtype(np.float32))

    def init(num_envs: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns older frames `[B, image_size, image_size, stack - 1]`, and the runtime zero of `resize_bilinear`."""
        return np.zeros((num_envs, image_size, image_size, stack - 1), np.float32), np.zeros((), np.int32)

    def observe(state: tuple[Any, Any], timestep: TimeStep) -> tuple[tuple[Any, Any], TimeStep]:
        older, zero = state
        observation = _stacked(older, timestep.observation, timestep.first, zero)
        observation = array_module(timestep.first).asarray(observation)
        return (observation[..., 1:], zero), timestep._replace(observation=observation)

    return wrapped(env, init, observe, spec=spec)


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
