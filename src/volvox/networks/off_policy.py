"""Networks that value actions, and what makes pure functions of the two a deterministic policy gradient needs."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from volvox._settings import describe
from volvox.networks.interception import use_kernels
from volvox.networks.mlp import hidden_layers
from volvox.types import Array, ArrayTree, Config, EnvSpec


class QNetwork(nn.Module):
    """A perceptron over an observation and an action side by side.

    Input: `[B, n]` and `[B, A]`. Output: `[B]`.

    Attributes:
      hidden: Widths of the hidden layers.
      densely_connected: As of `MLP`.
    """

    hidden: tuple[int, ...] = (256, 256)
    densely_connected: bool = False

    @nn.compact
    def __call__(self, observation: Array, action: Array) -> Array:
        """Values `[B]` of actions `[B, A]` at observations `[B, n]`."""
        x = jnp.concatenate([observation.reshape(observation.shape[0], -1).astype(jnp.float32), action], axis=-1)
        x = hidden_layers(x, self.hidden, nn.relu, self.densely_connected)
        return nn.Dense(1)(x)[:, 0]


class NextObservationNetwork(nn.Module):
    """Features of observations, and of observations with actions, that learn to predict what is observed next.

    The online feature extractor of Ota et al. (2020, arXiv 2003.01629): two stacks of densely connected layers, swish,
    and a linear prediction; without the batch normalisation of theirs. Its features are wider than what they are made
    of, and are learned apart from actor and critics (`td3`, `representation`).

    Input: `[B, n]`, and `[B, A]`.

    Attributes:
      observation_widths: Of the layers on observations; features have n numbers more than all of them.
      action_widths: Of the layers on those features and actions.
    """

    observation_widths: tuple[int, ...] = (30,) * 8
    action_widths: tuple[int, ...] = (30,) * 8

    def setup(self):
        """Makes the layers."""
        self.of_observation = [nn.Dense(width) for width in self.observation_widths]
        self.of_action = [nn.Dense(width) for width in self.action_widths]

    def observed(self, observation: Array) -> Array:
        """Features `[B, n + sum(observation_widths)]` of observations `[B, n]`."""
        return _stacked(observation.reshape(observation.shape[0], -1).astype(jnp.float32), self.of_observation)

    def acted(self, features: Array, action: Array) -> Array:
        """Features of features `[B, F]` and actions `[B, A]`: `[B, F + A + sum(action_widths)]`."""
        return _stacked(jnp.concatenate([features, action], axis=-1), self.of_action)

    @nn.compact
    def __call__(self, observation: Array, action: Array) -> Array:
        """Predictions `[B, n]` of the next observations."""
        features = self.acted(self.observed(observation), action)
        return nn.Dense(observation.reshape(observation.shape[0], -1).shape[-1], name="predict")(features)


def _stacked(x: Array, layers: Any) -> Array:
    for layer in layers:
        x = jnp.concatenate([nn.swish(layer(x)), x], axis=-1)
    return x


class ActorAndCritics(NamedTuple):
    """A deterministic actor and twin critics, as pure functions. Actions are scaled to [-1, 1].

    Attributes:
      init: key -> (actor's params, both critics' params, the representation's; () without one).
      act: (actor's params, what is observed `[B, ...]`) -> action `[B, A]`.
      value: (a critic's params, what is observed or acted `[B, ...]`, action `[B, A]`) -> float32 `[B]`.
      observed: (the representation's params, observation `[B, ...]`) -> features, or the observation itself.
      acted: (the representation's params, what is observed, action `[B, A]`) -> features, or what is observed.
      predicted: (the representation's params, observation, action) -> next observation `[B, n]`; None without one.
    """

    init: Callable[[Array], tuple[ArrayTree, tuple[ArrayTree, ArrayTree], ArrayTree]]
    act: Callable[[ArrayTree, Array], Array]
    value: Callable[[ArrayTree, Array, Array], Array]
    observed: Callable[[ArrayTree, Array], Array]
    acted: Callable[[ArrayTree, Array, Array], Array]
    predicted: Callable[[ArrayTree, Array, Array], Array] | None
    config: Config


def actor_and_critics(
    actor: nn.Module, critic: nn.Module, spec: EnvSpec, representation: nn.Module | None = None
) -> ActorAndCritics:
    """Makes the functions of unmodified flax modules.

    Args:
      actor: observations `[B, ...]` -> `[B, A]`, A being the length of an action; its hyperbolic tangent is the action.
      critic: (observations `[B, ...]`, actions `[B, A]`) -> values `[B]`; two of it are made.
      spec: the environment; its actions are continuous. Observations are float32 here.
      representation: with the methods of `NextObservationNetwork`; the actor is given what its `observed` makes of
        observations, and critics what its `acted` makes of that and actions. None: observations as they are.

    Returns:
      `ActorAndCritics`.

    Raises:
      TypeError: a module is none.
      ValueError: discrete actions, or modules that do not fit.
    """
    modules = {"actor": actor, "critic": critic} | (
        {} if representation is None else {"representation": representation}
    )
    for name, module in modules.items():
        if not isinstance(module, nn.Module):
            raise TypeError(f"{name} must be a flax.linen module, an instance and not its class; got {module!r}.")
    if spec.action_shape is None or len(spec.action_shape) != 1:
        raise ValueError(f"{spec.name} has no continuous actions [B, A], which a deterministic policy gradient needs.")
    (size,) = spec.action_shape

    def applied(module: nn.Module, params: ArrayTree, *args: Array, method: str | None = None) -> Any:
        with use_kernels():
            return module.apply({"params": params}, *args, method=method)

    def act(params: ArrayTree, seen: Array) -> Array:
        return jnp.tanh(applied(actor, params, seen))

    def value(params: ArrayTree, seen: Array, action: Array) -> Array:
        return applied(critic, params, seen, action)

    def observed(params: ArrayTree, observation: Array) -> Array:
        return (
            observation if representation is None else applied(representation, params, observation, method="observed")
        )

    def acted(params: ArrayTree, seen: Array, action: Array) -> Array:
        return seen if representation is None else applied(representation, params, seen, action, method="acted")

    def init(key: Array) -> tuple[ArrayTree, tuple[ArrayTree, ArrayTree], ArrayTree]:
        keys = jax.random.split(key, 3)
        observation, action = jnp.zeros((1, *spec.observation_shape)), jnp.zeros((1, size))
        params: ArrayTree = ()
        if representation is not None:
            params = representation.init(jax.random.fold_in(key, 3), observation, action)["params"]
        seen = observed(params, observation)
        first, second = (critic.init(k, acted(params, seen, action), action)["params"] for k in keys[1:])
        return actor.init(keys[0], seen)["params"], (first, second), params

    def shapes(observation: Array, action: Array) -> tuple[Any, ...]:
        actor_params, critic_params, params = init(jax.random.key(0))
        seen = observed(params, observation)
        known = acted(params, seen, action)
        predicted = observation if representation is None else applied(representation, params, observation, action)
        return act(actor_params, seen), value(critic_params[0], known, action), predicted

    batch = 2
    given = (jax.ShapeDtypeStruct((batch, *shape), jnp.float32) for shape in (spec.observation_shape, (size,)))
    names = ", ".join(type(module).__name__ for module in modules.values())
    observations = ", ".join(map(str, spec.observation_shape))
    try:
        action, valued, predicted = jax.eval_shape(shapes, *given)
    except Exception as error:  # whatever the modules' own code raises
        raise ValueError(
            f"{names} do not fit {spec.name}: an actor maps float32 [B, {observations}], or features of it, to "
            f"[B, {size}], a critic both to [B]: {error}"
        ) from error
    wanted = ((batch, size), (batch,), (batch, *spec.observation_shape))
    if (action.shape, valued.shape, predicted.shape) != wanted:
        raise ValueError(
            f"actor {type(actor).__name__} must give [B, {size}] and critic {type(critic).__name__} [B] for "
            f"{spec.name}, and a representation predict observations; for B={batch} they give {action.shape}, "
            f"{valued.shape} and {predicted.shape}."
        )
    config = {name: {"network": type(module).__name__, **describe(module)} for name, module in modules.items()}
    predict = None if representation is None else partial(applied, representation)
    return ActorAndCritics(init, act, value, observed, acted, predict, config)
