"""Multi-layer perceptrons, for vectors and small probes."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox._arguments import said
from volvox._settings import describe
from volvox.networks.distributions import Deterministic
from volvox.networks.genotypes import Sized, apply_module, batch_of, check_module
from volvox.types import Array, ArrayTree, EnvSpec, Policy


class MLP(Sized, nn.Module):
    """Dense layers with an activation between them.

    Input: `[B, ...]`, flattened to `[B, n]` and cast to float32 if integer.
    Output: `[B, num_outputs]`.

    Attributes:
      num_outputs: Length of the output.
      hidden: Widths of the hidden layers; may be empty.
      activation: Applied after each hidden layer, not after the output.
      densely_connected: Each layer takes the outputs of all layers before it, and the input (Ota et al. 2021, arXiv
        2102.07920, section 3.2).
    """

    num_outputs: int
    hidden: tuple[int, ...] = (64, 64)
    activation: Callable[[Array], Array] = nn.tanh
    densely_connected: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Outputs `[B, num_outputs]` of observations `[B, ...]`."""
        x = hidden_layers(flat(x), dense_layers(self.hidden), self.activation, self.densely_connected)
        return nn.Dense(self.num_outputs)(x)


def dense_layers(hidden: Sequence[int], **options: Any) -> list[nn.Module]:
    """Dense layers of these widths; raises TypeError for one width alone."""
    if isinstance(hidden, int | np.integer):
        raise TypeError(f"hidden={hidden!r}: give the widths of the hidden layers, such as (64, 64)")
    return [nn.Dense(width, **options) for width in hidden]


def hidden_layers(
    x: Array, layers: Iterable[nn.Module], activation: Callable[[Array], Array], densely_connected: bool
) -> Array:
    """Applies hidden layers to `[B, n]`, each with the activation; densely connected: see `MLP`."""
    if not callable(activation):
        raise TypeError(f"activation={activation!r}: give a function, such as flax.linen.relu")
    for layer in layers:
        out = activation(layer(x))  # pyright: ignore[reportCallIssue]
        x = jnp.concatenate([out, x], axis=-1) if densely_connected else out
    return x


def flat(observation: ArrayTree) -> Array:
    """Observations `[B, ...]`, or all arrays of a dict or a tuple of them, as `[B, n]`; integers as float32.

    The arrays of a dict stand in the order of their sorted names.
    """
    leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(observation)]
    leaves = [x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32) for x in leaves]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


class QNetwork(nn.Module):
    """A perceptron over an observation and an action side by side.

    Input: `[B, n]` and `[B, A]`. Output: `[B]`.

    Attributes:
      hidden: Widths of the hidden layers.
      densely_connected: As in `MLP`.
    """

    hidden: tuple[int, ...] = (256, 256)
    densely_connected: bool = False

    @nn.compact
    def __call__(self, observation: Array, action: Array) -> Array:
        """Values `[B]` of actions `[B, A]` at observations `[B, n]`."""
        x = jnp.concatenate([flat(observation), action], axis=-1)
        x = hidden_layers(x, dense_layers(self.hidden), nn.relu, self.densely_connected)
        return nn.Dense(1)(x)[:, 0]


class NextObservationNetwork(nn.Module):
    """Features of observations, and of observations with actions, that learn to predict what is observed next.

    The online feature extractor of Ota et al. (2020, arXiv 2003.01629): two stacks of densely connected layers with
    swish, and a linear prediction; without the batch normalisation of the paper. The features are wider than what they
    are made of, and are learned apart from actor and critics (`ActorAndCritic.representation`).

        features = vx.networks.NextObservationNetwork((32,) * 4, (32,) * 4)
        networks = vx.networks.ActorAndCritic(vx.networks.MLP(6), vx.networks.QNetwork(), features)

    Input: `[B, n]`, and `[B, A]`.

    Attributes:
      observation_widths: Widths of the layers on observations; there are `n + sum(observation_widths)` features.
      action_widths: Widths of the layers on those features and actions.
    """

    observation_widths: tuple[int, ...] = (30,) * 8
    action_widths: tuple[int, ...] = (30,) * 8

    def setup(self):
        """Makes the layers."""
        self.of_observation = [nn.Dense(width) for width in self.observation_widths]
        self.of_action = [nn.Dense(width) for width in self.action_widths]

    def encode_observation(self, observation: Array) -> Array:
        """Features `[B, n + sum(observation_widths)]` of observations `[B, n]`."""
        return hidden_layers(flat(observation), self.of_observation, nn.swish, densely_connected=True)

    def encode_action(self, features: Array, action: Array) -> Array:
        """Features of features `[B, F]` and actions `[B, A]`: `[B, F + A + sum(action_widths)]`."""
        x = jnp.concatenate([features, action], axis=-1)
        return hidden_layers(x, self.of_action, nn.swish, densely_connected=True)

    @nn.compact
    def __call__(self, observation: Array, action: Array) -> Array:
        """Predictions `[B, n]` of the next observations."""
        features = self.encode_action(self.encode_observation(observation), action)
        return nn.Dense(flat(observation).shape[-1], name="predict")(features)


@dataclasses.dataclass(frozen=True)
class ActorAndCritic:
    """The networks of a deterministic policy gradient, as flax modules.

        networks = ActorAndCritic(MLP(6, (256, 256), activation=nn.relu), QNetwork((256, 256)))

    Attributes:
      actor: observations `[B, ...]` -> `[B, A]`, A being the length of an action; its hyperbolic tangent is the action.
      critic: (observations `[B, ...]`, actions `[B, A]` in [-1, 1]) -> values `[B]`; two of it are made.
      representation: A module with the methods of `NextObservationNetwork`. The actor takes what `encode_observation`
        makes of observations, and critics take what `encode_action` makes of that and of actions. None: actor and
        critics take the observations themselves.
    """

    actor: nn.Module
    critic: nn.Module
    representation: nn.Module | None = None


def _params(variables: Any) -> Any:
    """The parameters of a module, which may have none."""
    return variables.get("params", {})


class Params(NamedTuple):
    """Parameters of the networks.

    Attributes:
      actor: Parameters of the actor.
      critics: Parameters of the two critics.
      representation: Parameters of the representation; () without one.
    """

    actor: ArrayTree
    critics: tuple[ArrayTree, ArrayTree]
    representation: ArrayTree


@dataclasses.dataclass(frozen=True, eq=False)
class ActorAndCritics:
    """A deterministic actor and twin critics in an environment, as pure functions. Actions are scaled to [-1, 1].

    Observations are float32 here. Made by `actor_and_critics`.

    Attributes:
      networks: The modules.
      spec: The environment.
    """

    networks: ActorAndCritic
    spec: EnvSpec

    def init(self, key: Array) -> Params:
        """Draws all parameters."""
        modules, (k_actor, *k_critics) = self.networks, jax.random.split(key, 3)
        seen = (self.spec.observation, self.spec.action)
        observation, action = jax.tree.map(lambda x: jnp.zeros((1, *x.shape)), seen)
        representation: ArrayTree = ()
        if modules.representation is not None:
            k_representation = jax.random.fold_in(key, 3)
            representation = _params(modules.representation.init(k_representation, observation, action))
        features = self.encode_observation(representation, observation)
        encoded = self.encode_action(representation, features, action)
        first, second = (_params(modules.critic.init(k, encoded, action)) for k in k_critics)
        return Params(_params(modules.actor.init(k_actor, features)), (first, second), representation)

    def act(self, params: ArrayTree, features: Array) -> Array:
        """Actions `[B, A]` of an actor's parameters at features of observations `[B, ...]`."""
        return jnp.tanh(apply_module(self.networks.actor, params, features))

    def value(self, params: ArrayTree, encoded: Array, action: Array) -> Array:
        """Values `[B]` of one critic's parameters, of actions `[B, A]` encoded with their observations `[B, ...]`."""
        return apply_module(self.networks.critic, params, encoded, action)

    def encode_observation(self, params: ArrayTree, observation: Array) -> Array:
        """Features of observations `[B, ...]`; without a representation the observations themselves."""
        module = self.networks.representation
        return observation if module is None else apply_module(module, params, observation, method="encode_observation")

    def encode_action(self, params: ArrayTree, features: Array, action: Array) -> Array:
        """Features of features and actions `[B, A]`; without a representation the features of observations alone."""
        module = self.networks.representation
        return features if module is None else apply_module(module, params, features, action, method="encode_action")

    def predict(self, params: ArrayTree, observation: Array, action: Array) -> Array:
        """The representation's prediction of the next observations."""
        assert self.networks.representation is not None
        return apply_module(self.networks.representation, params, observation, action)

    def scale(self, action: Array) -> Array:
        """Actions in [-1, 1] -> the environment's."""
        low, high = jnp.asarray(self.spec.action_low), jnp.asarray(self.spec.action_high)
        return jnp.clip(low + (action + 1.0) * ((high - low) / 2), low, high)  # rounding may exceed a bound

    def policy(self, init: Callable[[Array], ArrayTree], act: Callable[[ArrayTree, Array], Array]) -> Policy:
        """A policy of deterministic actions.

        Args:
          init: key -> variables.
          act: (variables, observation `[B, ...]`) -> action `[B, A]` in [-1, 1].
        """
        return Policy(
            init=init,
            initial_state=lambda batch_size: (),
            apply=lambda variables, observation, state: (act(variables, observation), state),
            sample=Deterministic((), type(self.networks.actor).__name__).sample,
            mode=self.scale,
            config=describe(self.networks),
        )


def actor_and_critics(networks: ActorAndCritic, spec: EnvSpec) -> ActorAndCritics:
    """Makes pure functions of unmodified flax modules.

        networks = actor_and_critics(ActorAndCritic(MLP(6), QNetwork()), env.spec)
        params = networks.init(jax.random.key(0))
        action = networks.act(params.actor, observation)

    Args:
      networks: The modules.
      spec: The environment; its actions are continuous.

    Returns:
      `ActorAndCritics`.

    Raises:
      TypeError: one of the networks is no flax module.
      ValueError: the actions are discrete or without finite bounds, or the modules do not fit the environment or one
        another.
    """
    if not isinstance(networks, ActorAndCritic):
        raise TypeError(f"the networks must be given as ActorAndCritic(actor, critic); got {said(networks)}.")
    if not spec.continuous or len(spec.action_shape or ()) != 1:
        raise ValueError(f"{spec.name} has no continuous actions [B, A], which TD3 needs: take A3C or PPO.")
    low, high = np.asarray(spec.action_low, float), np.asarray(spec.action_high, float)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and np.less(low, high).all()):
        raise ValueError(f"{spec.name} has actions from {low} to {high}; TD3 scales its own to finite bounds.")
    made = ActorAndCritics(networks, spec)
    observation, action = jax.tree.map(lambda x: batch_of(*x.shape), (spec.observation, spec.action))
    features = encoded = observation
    if (module := networks.representation) is not None:
        if not isinstance(observation, jax.ShapeDtypeStruct):
            raise ValueError(f"{spec.name} has observations of several arrays; a representation predicts one array.")
        variables = check_module(module, spec, (observation, action), observation, role="representation")
        features = jax.eval_shape(made.encode_observation, _params(variables), observation)
        encoded = jax.eval_shape(made.encode_action, _params(variables), features, action)
    check_module(networks.actor, spec, (features,), action, role="actor", meaning="an action before its tanh")
    check_module(networks.critic, spec, (encoded, action), batch_of(), role="critic", meaning="a value")
    return made
