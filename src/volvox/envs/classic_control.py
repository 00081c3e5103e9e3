"""Classic control in pure JAX, thousands at once, with the equations and constants of Gymnasium."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from volvox.envs.functional import from_functions
from volvox.types import Array, Env

GRAVITY = 9.8  # m / s²
CART_MASS = 1.0  # kg
POLE_MASS = 0.1  # kg
HALF_LENGTH = 0.5  # of the pole, m
FORCE = 10.0  # of a push, N
SECONDS = 0.02  # of a timestep
MAX_POSITION = 2.4  # m
MAX_ANGLE = float(np.deg2rad(12))

# Functions of the module, not lambdas, so that two recipes share compiled programs.
_begin = partial(jax.random.uniform, shape=(4,), minval=-0.05, maxval=0.05)
_MASS = CART_MASS + POLE_MASS
_POLE_MOMENT = POLE_MASS * HALF_LENGTH


def cartpole(*, num_envs: int = 8, groups: int = 1, max_episode_steps: int = 500) -> Env:
    """Makes a recipe for CartPole-v1: a pole on a cart is kept upright by pushes to the left and to the right.

    The task of Barto, Sutton & Anderson (1983) as Gymnasium has it. The observation is float32 `[4]`: position (m),
    velocity, angle of the pole (radians, 0 is upright) and angular velocity; each begins uniformly in [-0.05, 0.05].
    Action 0 pushes to the left, action 1 to the right. Each timestep is rewarded 1. An episode terminates where the
    position leaves ±2.4 or the angle ±12 degrees.

    Example:
      >>> env = volvox.envs.cartpole(num_envs=1)

    Args:
      num_envs: environments in all groups together.
      groups: number of groups, which take turns; a divisor of `num_envs`.
      max_episode_steps: timesteps after which an episode is truncated; 200 in CartPole-v0.

    Returns:
      The recipe.

    Raises:
      ValueError: A number is out of range.
    """
    config = {"type": "volvox.envs.cartpole", **locals()}
    return from_functions(
        _begin,
        cartpole_step,
        jnp.asarray,
        name="CartPole",
        num_envs=num_envs,
        groups=groups,
        num_actions=2,
        max_episode_steps=max_episode_steps,
        render=_picture,
        config=config,
    )


def cartpole_step(state: Array, action: Array, key: Array | None = None) -> tuple[Array, Array, Array]:
    """Moves cart and pole by one timestep (Euler's method) from a state `[4]`; returns (state, reward, terminated)."""
    _, velocity, angle, angular_velocity = state
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    force = jnp.where(action == 1, FORCE, -FORCE)
    push = (force + _POLE_MOMENT * angular_velocity**2 * sin) / _MASS
    inertia = HALF_LENGTH * (4 / 3 - POLE_MASS * cos**2 / _MASS)
    angular_acceleration = (GRAVITY * sin - cos * push) / inertia
    acceleration = push - _POLE_MOMENT * angular_acceleration * cos / _MASS
    change = jnp.stack([velocity, acceleration, angular_velocity, angular_acceleration])
    state = state + SECONDS * change
    terminated = (jnp.abs(state[0]) > MAX_POSITION) | (jnp.abs(state[2]) > MAX_ANGLE)
    return state, jnp.float32(1), terminated


def _picture(state: Array) -> Array:
    """Draws the cart and the pole, 50 pixels a metre."""
    up, right = jnp.mgrid[85:-35:-1, -150:150] / 50
    right = right - state[0]
    sin, cos = jnp.sin(state[2]), jnp.cos(state[2])
    along = right * sin + up * cos
    pole = (jnp.abs(right * cos - up * sin) < 0.05) & (along > 0) & (along < 2 * HALF_LENGTH)
    cart = (jnp.abs(right) < 0.3) & (jnp.abs(up) < 0.15)
    gray = jnp.where(pole, 150, jnp.where(cart, 40, 255))
    return jnp.stack([gray, gray, gray], -1).astype(jnp.uint8)
