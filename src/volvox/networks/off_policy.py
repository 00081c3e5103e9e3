"""Networks that value actions, and what makes pure functions of the two a deterministic policy gradient needs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from volvox.networks.interception import use_kernels
from volvox.networks.policy import module_settings
from volvox.types import Array, ArrayTree, Config, EnvSpec


class QNetwork(nn.Module):
    """A perceptron over an observation and an action side by side.

    Input: `[B, n]` and `[B, A]`. Output: `[B]`.
    """

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""

    @nn.compact
    def __call__(self, observation: Array, action: Array) -> Array:
        """Values `[B]` of actions `[B, A]` at observations `[B, n]`."""
        x = jnp.concatenate([observation.reshape(observation.shape[0], -1).astype(jnp.float32), action], axis=-1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(1)(x)[:, 0]


class ActorAndCritics(NamedTuple):
    """A deterministic actor and twin critics, as pure functions. Actions are scaled to [-1, 1]."""

    init: Callable[[Array], tuple[ArrayTree, tuple[ArrayTree, ArrayTree]]]
    """key -> (actor's params, both critics' params)."""
    act: Callable[[ArrayTree, Array], Array]
    """(actor's params, observation `[B, ...]`) -> action `[B, A]`."""
    value: Callable[[ArrayTree, Array, Array], Array]
    """(a critic's params, observation `[B, ...]`, action `[B, A]`) -> float32 `[B]`."""
    config: Config


def actor_and_critics(actor: nn.Module, critic: nn.Module, spec: EnvSpec) -> ActorAndCritics:
    """Makes the functions of two unmodified flax modules.

    Args:
      actor: observations `[B, ...]` -> `[B, A]`, A being the length of an action; its hyperbolic tangent is the action.
      critic: (observations `[B, ...]`, actions `[B, A]`) -> values `[B]`; two of it are made.
      spec: the environment; its actions are continuous. Observations are float32 here.

    Returns:
      `ActorAndCritics`.

    Raises:
      TypeError: a module is none.
      ValueError: discrete actions, or modules that do not fit.
    """
    for name, module in (("actor", actor), ("critic", critic)):
        if not isinstance(module, nn.Module):
            raise TypeError(f"{name} must be a flax.linen module, an instance and not its class; got {module!r}.")
    if spec.action_shape is None or len(spec.action_shape) != 1:
        raise ValueError(f"{spec.name} has no continuous actions [B, A], which a deterministic policy gradient needs.")
    (size,) = spec.action_shape

    def act(params: ArrayTree, observation: Array) -> Array:
        with use_kernels():
            output: Any = actor.apply({"params": params}, observation)
        return jnp.tanh(output)

    def value(params: ArrayTree, observation: Array, action: Array) -> Array:
        with use_kernels():
            return critic.apply({"params": params}, observation, action)  # pyright: ignore[reportReturnType]

    def init(key: Array) -> tuple[ArrayTree, tuple[ArrayTree, ArrayTree]]:
        keys = jax.random.split(key, 3)
        observation, action = jnp.zeros((1, *spec.observation_shape)), jnp.zeros((1, size))
        first, second = (critic.init(k, observation, action)["params"] for k in keys[1:])
        return actor.init(keys[0], observation)["params"], (first, second)

    batch = 2
    seen, done = (jax.ShapeDtypeStruct((batch, *shape), jnp.float32) for shape in (spec.observation_shape, (size,)))
    try:
        actor_params, critic_params = jax.eval_shape(init, jax.random.key(0))
        action = jax.eval_shape(act, actor_params, seen)
        valued = jax.eval_shape(value, critic_params[0], seen, done)
    except Exception as error:  # whatever the modules' own code raises
        raise ValueError(
            f"{type(actor).__name__} and {type(critic).__name__} do not fit {spec.name}: an actor maps float32 [B, "
            f"{', '.join(map(str, spec.observation_shape))}] to [B, {size}], a critic both to [B]: {error}"
        ) from error
    if action.shape != (batch, size) or valued.shape != (batch,):
        raise ValueError(
            f"actor {type(actor).__name__} must give [B, {size}] and critic {type(critic).__name__} [B] for "
            f"{spec.name}; for B={batch} they give {action.shape} and {valued.shape}."
        )
    config = {
        name: {"network": type(module).__name__, **module_settings(module)}
        for name, module in (("actor", actor), ("critic", critic))
    }
    return ActorAndCritics(init, act, value, config)
