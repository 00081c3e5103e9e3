"""Small environments with known answers: whoever learns them wrongly has a bug, and it shows where.

Each docstring states what is true of the environment, with `g` the discount. Where nothing else is said, observations
are float32 `[1]`, there are two actions, and episodes end by termination.
"""

from functools import partial

import jax
import jax.numpy as jnp

from volvox._checks import integer
from volvox.envs.functional import from_functions
from volvox.types import Array, Env


def constant(*, num_envs: int = 8, groups: int = 1) -> Env:
    """One step, always the observation 0 and the reward 1. The value is 1."""
    return _probe(
        "probe-constant",
        reset=lambda key: jnp.float32(0),
        step=lambda state, action, key: (state, 1.0, True),
        num_envs=num_envs,
        groups=groups,
    )


def observed_reward(*, num_envs: int = 8, groups: int = 1) -> Env:
    """One step whose observation is -1 or 1, evenly, and whose reward is the observation. The value of `x` is `x`."""
    return _probe(
        "probe-observed-reward",
        reset=_sign,
        step=lambda state, action, key: (state, state, True),
        num_envs=num_envs,
        groups=groups,
    )


def delayed_reward(*, num_envs: int = 8, groups: int = 1) -> Env:
    """Two steps with the observations 0 and 1 and the rewards 0 and 1. The values are `g` at 0 and 1 at 1."""
    return _probe(
        "probe-delayed-reward",
        reset=lambda key: jnp.float32(0),
        step=lambda state, action, key: (jnp.float32(1), state, state == 1),
        num_envs=num_envs,
        groups=groups,
    )


def chosen_reward(*, num_envs: int = 8, groups: int = 1) -> Env:
    """One step, the observation 0; action 0 is rewarded -1, action 1 is rewarded 1. The best value is 1."""
    return _probe(
        "probe-chosen-reward",
        reset=lambda key: jnp.float32(0),
        step=lambda state, action, key: (state, jnp.where(action == 1, 1.0, -1.0), True),
        num_envs=num_envs,
        groups=groups,
    )


def matched_reward(*, num_envs: int = 8, groups: int = 1) -> Env:
    """One step whose observation is -1 or 1, evenly. Reward 1 for action 0 at -1 and action 1 at 1, else -1.

    The best value is 1 everywhere; any policy blind to its observation earns 0 on average.
    """
    return _probe(
        "probe-matched-reward",
        reset=_sign,
        step=lambda state, action, key: (state, jnp.where((action == 1) == (state > 0), 1.0, -1.0), True),
        num_envs=num_envs,
        groups=groups,
    )


def countdown(
    *, low: int = 1, high: int = 10, max_episode_steps: int = 1_000, num_envs: int = 8, groups: int = 1
) -> Env:
    """Episodes of different lengths, drawn evenly from `low` to `high` steps; each step is rewarded 1.

    The observation is the number of steps that remain, before truncation; it is also the undiscounted value. An
    episode's return is its length. Actions do not matter.

    Raises:
        ValueError: `low` is below 1 or `high` below `low`.
    """
    integer("low", low, low=1)
    integer("high", high, low=low)
    return _probe(
        "probe-countdown",
        reset=lambda key: jax.random.randint(key, (), low, high + 1),
        step=lambda remaining, action, key: (remaining - 1, 1.0, remaining <= 1),
        num_envs=num_envs,
        groups=groups,
        max_episode_steps=max_episode_steps,
        settings={"low": int(low), "high": int(high)},
    )


def corridor(*, length: int = 8, max_episode_steps: int | None = None, num_envs: int = 8, groups: int = 1) -> Env:
    """A walk from 0 to `length`: action 1 moves right, action 0 left (not below 0). The end terminates.

    The observation is the position divided by `length`, and the reward is its change, so the return is where the walk
    ended: at most 1, reached in `length` steps only by always moving right; 0 by always moving left. Random walks earn
    in between, so fitness grows smoothly with the probability of action 1.

    Args:
        length: Steps to the end.
        max_episode_steps: Steps after which an episode is truncated; None means twice `length`.
        num_envs: Environments in all groups together.
        groups: Number of groups.

    Raises:
        ValueError: A number is below 1.
    """
    integer("length", length, low=1)

    def step(position: Array, action: Array, key: Array) -> tuple[Array, Array, Array]:
        moved = jnp.maximum(position + jnp.where(action == 1, 1, -1), 0)
        return moved, (moved - position) / length, moved >= length

    return from_functions(
        lambda key: jnp.int32(0),
        step,
        lambda position: jnp.float32(position)[None] / length,
        name="probe-corridor",
        num_envs=num_envs,
        groups=groups,
        num_actions=2,
        max_episode_steps=2 * length if max_episode_steps is None else max_episode_steps,
        settings={"length": int(length)},
    )


def target(*, size: int = 2, max_episode_steps: int = 8, num_envs: int = 8, groups: int = 1) -> Env:
    """Continuous actions float32 `[size]`: every step shows a new target in [-1, 1]^size, to be answered by itself.

    The reward is minus the mean squared difference of action and target. The best return is 0, of the action equal to
    the observation; the action 0 earns -1/3 a step on average, and any constant action less. Episodes are truncated.

    Raises:
        ValueError: A number is below 1.
    """
    integer("size", size, low=1)
    draw = partial(jax.random.uniform, shape=(size,), minval=-1.0, maxval=1.0)
    return from_functions(
        draw,
        lambda goal, action, key: (draw(key), -jnp.mean((action - goal) ** 2), False),
        lambda goal: goal,
        name="probe-target",
        num_envs=num_envs,
        groups=groups,
        action_shape=(size,),
        max_episode_steps=max_episode_steps,
        settings={"size": int(size)},
    )


def _sign(key: Array) -> Array:
    """Draws -1 or 1."""
    return jnp.where(jax.random.bernoulli(key), 1.0, -1.0)


def _probe(name: str, *, reset, step, num_envs: int, groups: int, max_episode_steps: int = 1_000, settings=None) -> Env:
    """Makes a probe of two actions whose state is one number, which it shows."""
    return from_functions(
        reset,
        step,
        lambda state: jnp.float32(state)[None],
        name=name,
        num_envs=num_envs,
        groups=groups,
        num_actions=2,
        max_episode_steps=max_episode_steps,
        settings=settings,
    )
