"""Small environments with known answers: an algorithm that learns one of them wrongly has a bug, and it shows where.

Each docstring states what is true of the environment, with `g` the discount. Where nothing else is said, observations
are float32 `[1]`, there are two actions, and episodes end by termination. All take further options of
`volvox.envs.from_functions`: `num_envs` (8), `groups` (1), `max_episode_steps`.

Example:
  >>> env = probes.corridor(length=4, num_envs=8, groups=2)
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from volvox.envs.functional import from_functions
from volvox.types import Array, Env


def constant(**options: Any) -> Env:
    """One timestep, always the observation 0 and the reward 1. The value is 1."""
    return _probe("constant", {}, _zero, lambda state, action, key: (state, 1.0, True), **options)


def delayed_reward(**options: Any) -> Env:
    """Two timesteps with the observations 0 and 1 and the rewards 0 and 1. The values are `g` at 0 and 1 at 1."""
    return _probe(
        "delayed-reward", {}, _zero, lambda state, action, key: (jnp.float32(1), state, state == 1), **options
    )


def endless(reward: float = 1.0, **options: Any) -> Env:
    """Every timestep shows 0 and has the same reward, until the time limit. The value is `reward / (1 - g)`."""
    return _probe("endless", {"reward": reward}, _zero, lambda state, action, key: (state, reward, False), **options)


def chosen_reward(**options: Any) -> Env:
    """One timestep, the observation 0; action 0 is rewarded -1, action 1 is rewarded 1. The best value is 1."""

    def step(state: Array, action: Array, key: Array) -> tuple[Array, Array, bool]:
        return state, jnp.where(action == 1, 1.0, -1.0), True

    return _probe("chosen-reward", {}, _zero, step, **options)


def matched_reward(**options: Any) -> Env:
    """One timestep whose observation is -1 or 1, evenly. Reward 1 for action 0 at -1 and action 1 at 1, else -1.

    The best value is 1 everywhere; any policy blind to its observation earns 0 on average.
    """

    def step(state: Array, action: Array, key: Array) -> tuple[Array, Array, bool]:
        return state, jnp.where((action == 1) == (state > 0), 1.0, -1.0), True

    return _probe("matched-reward", {}, _sign, step, **options)


def countdown(*, low: int = 1, high: int = 10, **options: Any) -> Env:
    """Episodes of different lengths, drawn evenly from `low` to `high` timesteps; each timestep is rewarded 1.

    The observation is the number of timesteps that remain, before truncation; it is also the undiscounted value. An
    episode's return is its length. Actions do not matter.
    """
    return _probe(
        "countdown",
        {"low": low, "high": high},
        lambda key: jax.random.randint(key, (), low, high + 1),
        lambda remaining, action, key: (remaining - 1, 1.0, remaining <= 1),
        **options,
    )


def corridor(
    *, length: int = 8, max_episode_steps: int | None = None, random_start: bool = False, **options: Any
) -> Env:
    """A walk from 0 to `length`: action 1 moves right, action 0 left (not below 0). The end terminates.

    The observation is the position divided by `length`, and the reward is its change, so the return is where the walk
    ended: at most 1, reached in `length` timesteps only by always moving right; 0 by always moving left. Random walks
    earn in between, so fitness grows smoothly with the probability of action 1. An episode is truncated after
    `max_episode_steps`, or twice `length` if that is None. With `random_start` a walk begins anywhere.
    """

    def step(position: Array, action: Array, key: Array) -> tuple[Array, Array, Array]:
        moved = jnp.maximum(position + jnp.where(action == 1, 1, -1), 0)
        return moved, (moved - position) / length, moved >= length

    return _probe(
        "corridor",
        {"length": length, "random_start": random_start},
        lambda key: jax.random.randint(key, (), 0, length) if random_start else jnp.int32(0),
        step,
        observe=lambda position: jnp.float32(position)[None] / length,
        max_episode_steps=2 * length if max_episode_steps is None else max_episode_steps,
        **options,
    )


def target(*, size: int = 2, max_episode_steps: int = 8, **options: Any) -> Env:
    """Continuous actions float32 `[size]`: every timestep shows a new target in [-1, 1]^size, to be answered by itself.

    The reward is minus the mean squared difference of action and target. The best return is 0, of the action equal to
    the observation; the action 0 earns -1/3 a timestep on average, and any constant action less. Episodes are
    truncated.
    """
    draw = partial(jax.random.uniform, shape=(size,), minval=-1.0, maxval=1.0)
    return _probe(
        "target",
        {"size": size},
        draw,
        lambda goal, action, key: (draw(key), -jnp.mean((action - goal) ** 2), False),
        observe=lambda goal: goal,
        num_actions=None,
        action_shape=(size,),
        max_episode_steps=max_episode_steps,
        **options,
    )


class Linear(nn.Module):
    """Logits and values that are linear in the observation.

    Attributes:
      num_actions: Number of logits.
    """

    num_actions: int

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        """(logits `[B, num_actions]`, values `[B]`)."""
        policy = self.param("policy", nn.initializers.normal(1.0), (x.shape[-1], self.num_actions))
        return x @ policy, x @ self.param("value", nn.initializers.ones, (x.shape[-1],))


def _zero(key: Array) -> Array:
    return jnp.float32(0)


def _sign(key: Array) -> Array:
    """Draws -1 or 1."""
    return jnp.where(jax.random.bernoulli(key), 1.0, -1.0)


def _number(state: Array) -> Array:
    """Shows a state that is one number."""
    return jnp.float32(state)[None]


def _probe(
    name: str, arguments: dict[str, Any], reset: Callable, step: Callable, observe: Callable = _number, **options: Any
) -> Env:
    """Makes a probe of two actions that shows its state, unless `options` of `from_functions` say otherwise."""
    options = {"num_envs": 8, "num_actions": 2, "max_episode_steps": 1_000, **options}
    given = {key: value for key, value in options.items() if key not in ("num_actions", "action_shape")}
    config = {"type": f"probes.{name.replace('-', '_')}", **arguments, **given}
    return from_functions(reset, step, observe, name=f"probe-{name}", config=config, **options)
