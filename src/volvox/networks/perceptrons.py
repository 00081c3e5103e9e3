"""Multi-layer perceptrons, and the actor and critics of TD3 and SAC."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox._checks import check_type
from volvox.networks.genotypes import Activation, apply_module, batch_of, check_module
from volvox.networks.initializers import ZEROS, Initializer, bias_like_kernel, fan_in_uniform
from volvox.types import Array, ArrayTree, EnvSpec, zeros


class MLP(nn.Module):
    """Dense layers with an activation between them.

    Input: `[B, ...]`, flattened to `[B, n]` and cast to float32 if integer.
    Output: `[B, num_outputs]`.

    Attributes:
      num_outputs: Length of the output.
      hidden: Widths of the hidden layers; may be empty.
      activation: Applied after each hidden layer, not after the output.
      densely_connected: Each layer takes the outputs of all layers before it, and the input (Ota et al. 2021, arXiv
        2102.07920, section 3.2).
      layer_norm: Whether hidden layers are normalised before the activation.
      kernel_init: Initialiser of the kernels, one of `nn.initializers` or `volvox.networks.fan_in_uniform`.
      bias_init: Initialiser of the biases, called with the shape `(fan_in, width)`. The first row is the bias.
    """

    num_outputs: int
    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = nn.tanh
    densely_connected: bool = False
    layer_norm: bool = False
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = ZEROS

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Outputs `[B, num_outputs]` of observations `[B, ...]`."""
        return perceptron(self, flat(x), self.num_outputs, self.densely_connected)


def dense(module: Any, width: int, x: Array, **options: Any) -> Array:
    """Applies a new dense layer with a module's `kernel_init` and `bias_init`, inside a compact method of it."""
    bias_init = bias_like_kernel(module.bias_init, x.shape[-1])
    return nn.Dense(width, **{"kernel_init": module.kernel_init, "bias_init": bias_init, **options})(x)


def normalized_activation(module: Any) -> Activation:
    """Returns a module's `activation`, after layer normalisation if it has `layer_norm`, for a compact method of it."""
    return lambda x: module.activation(nn.LayerNorm()(x) if module.layer_norm else x)


def perceptron(module: Any, x: Array, size: int, densely_connected: bool = False, **output: Any) -> Array:
    """Applies the hidden layers of a module and an output layer to `[B, n]`, inside a compact method of it.

    `MLP` documents the attributes that the module has. `output` are options of the output layer.
    """
    activation = normalized_activation(module)
    for width in module.hidden:
        out = activation(dense(module, width, x))
        x = jnp.concatenate([out, x], axis=-1) if densely_connected else out
    return dense(module, size, x, **output)


def flat(observation: ArrayTree) -> Array:
    """Observations `[B, ...]`, or all arrays of a dict or a tuple of them, as `[B, n]`; integers as float32.

    The arrays of a dict are in the order of their sorted names.
    """
    leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(observation)]
    leaves = [x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32) for x in leaves]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


class QNetwork(nn.Module):
    """A perceptron over an observation and an action.

    Input: `[B, n]` and `[B, A]`. Output: `[B]`. Attributes are those of `MLP` except `num_outputs`.
    """

    hidden: tuple[int, ...] = (256, 256)
    densely_connected: bool = False
    activation: Activation = nn.relu
    layer_norm: bool = False
    kernel_init: Initializer = fan_in_uniform
    bias_init: Initializer = fan_in_uniform

    @nn.compact
    def __call__(self, observation: Array, action: Array) -> Array:
        """Values `[B]` of actions `[B, A]` for observations `[B, n]`."""
        x = jnp.concatenate([flat(observation), action], axis=-1)
        return perceptron(self, x, 1, self.densely_connected)[:, 0]


class NextObservationNetwork(nn.Module):
    """Features of observations, and of observations with actions, that learn to predict the next observation.

    The online feature extractor of Ota et al. (2020, arXiv 2003.01629): two stacks of densely connected layers and a
    linear prediction, without the batch normalisation of the paper. The features are wider than their inputs, and are
    learned separately from actor and critics (`ActorAndCritic.representation`).

        features = vx.networks.NextObservationNetwork((32,) * 4, (32,) * 4)
        networks = vx.networks.ActorAndCritic.mlp(6, representation=features)

    Input: `[B, n]`, and `[B, A]`.

    Attributes:
      observation_widths: Widths of the layers on observations; there are `n + sum(observation_widths)` features.
      action_widths: Widths of the layers on those features and actions.
      activation: Applied after each hidden layer.
      kernel_init: Initialiser of the kernels; the authors use `nn.initializers.glorot_uniform()`. Biases begin at 0.
    """

    observation_widths: tuple[int, ...] = (30,) * 8
    action_widths: tuple[int, ...] = (30,) * 8
    activation: Activation = nn.swish
    kernel_init: Initializer = nn.initializers.lecun_normal()

    def setup(self):
        """Makes the layers."""
        self.of_observation = [nn.Dense(width, kernel_init=self.kernel_init) for width in self.observation_widths]
        self.of_action = [nn.Dense(width, kernel_init=self.kernel_init) for width in self.action_widths]

    def encode_observation(self, observation: Array) -> Array:
        """Features `[B, n + sum(observation_widths)]` of observations `[B, n]`."""
        return self._densely_connected(flat(observation), self.of_observation)

    def encode_action(self, features: Array, action: Array) -> Array:
        """Features `[B, F + A + sum(action_widths)]` of features `[B, F]` and actions `[B, A]`."""
        return self._densely_connected(jnp.concatenate([features, action], axis=-1), self.of_action)

    def _densely_connected(self, x: Array, layers: Iterable[Any]) -> Array:
        for layer in layers:
            x = jnp.concatenate([self.activation(layer(x)), x], axis=-1)
        return x

    @nn.compact
    def __call__(self, observation: Array, action: Array) -> Array:
        """Predictions `[B, n]` of the next observations."""
        features = self.encode_action(self.encode_observation(observation), action)
        return nn.Dense(flat(observation).shape[-1], kernel_init=self.kernel_init, name="predict")(features)


@dataclasses.dataclass(frozen=True)
class ActorAndCritic:
    """The networks of TD3 and SAC, as flax modules.

        networks = ActorAndCritic.mlp(6, (256, 256))
        networks = ActorAndCritic(MyActor(6), MyCritic())

    Attributes:
      actor: Observations `[B, ...]` -> `[B, A]`, with A the length of an action. The action is its hyperbolic tangent.
        For SAC `[B, 2 * A]`: means and logarithms of standard deviations before the hyperbolic tangent.
      critic: (observations `[B, ...]`, actions `[B, A]` in [-1, 1]) -> values `[B]`; there are two critics.
      representation: A module with the methods of `NextObservationNetwork`. The actor takes the features of
        `encode_observation`, and critics take the features of `encode_action`. None: actor and critics take
        observations.
    """

    actor: nn.Module
    critic: nn.Module
    representation: nn.Module | None = None

    @classmethod
    def mlp(
        cls,
        num_components: int,
        hidden: tuple[int, ...] = (256, 256),
        representation: nn.Module | None = None,
        *,
        gaussian: bool = False,
        **options: Any,
    ) -> "ActorAndCritic":
        """Makes perceptrons with ReLU and `fan_in_uniform`, as TD3's authors do. Initial actions are far from ±1.

        Args:
          num_components: Length A of an action.
          hidden: Widths of the hidden layers of actor and critics.
          representation: Module on whose features actor and critics learn; see above.
          gaussian: Whether the actor has standard deviations too, as SAC needs.
          **options: Other options of `MLP`, for actor and critics.
        """
        options = {"activation": nn.relu, "kernel_init": fan_in_uniform, "bias_init": fan_in_uniform, **options}
        return cls(MLP((1 + gaussian) * num_components, hidden, **options), QNetwork(hidden, **options), representation)


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
    """An actor and twin critics in an environment, as pure functions. Actions are in [-1, 1].

    Made by `actor_and_critics`.

    Attributes:
      networks: The modules.
      spec: The environment.
    """

    networks: ActorAndCritic
    spec: EnvSpec

    def init(self, key: Array) -> Params:
        """Draws all parameters."""
        modules, (k_actor, *k_critics) = self.networks, jax.random.split(key, 3)
        observation, action = zeros((self.spec.observation, self.spec.action), 1)
        representation: ArrayTree = ()
        if modules.representation is not None:
            representation = _init(modules.representation, jax.random.fold_in(key, 3), observation, action)
        features = self.encode_observation(representation, observation)
        encoded = self.encode_action(representation, features, action)
        first, second = (_init(modules.critic, k, encoded, action) for k in k_critics)
        return Params(_init(modules.actor, k_actor, features), (first, second), representation)

    def act(self, params: ArrayTree, features: Array) -> Array:
        """Actions `[B, A]` for features of observations `[B, ...]`, with parameters of the actor."""
        return jnp.tanh(apply_module(self.networks.actor, params, features))

    def gaussian(self, params: ArrayTree, features: Array) -> tuple[Array, Array]:
        """(means, logarithms of standard deviations) `[B, A]` before the hyperbolic tangent, the latter in [-20, 2]."""
        mean, log_std = jnp.split(apply_module(self.networks.actor, params, features), 2, axis=-1)
        return mean, jnp.clip(log_std, -20.0, 2.0)

    def values(
        self, critics: Sequence[ArrayTree], representation: ArrayTree, features: Array, action: Array
    ) -> tuple[Array, ...]:
        """Values `[B]` of actions `[B, A]` by each critic, given features of observations."""
        encoded = self.encode_action(representation, features, action)
        return tuple(apply_module(self.networks.critic, critic, encoded, action) for critic in critics)

    def encode_observation(self, params: ArrayTree, observation: Array) -> Array:
        """Features of observations; without a representation, the observations."""
        module = self.networks.representation
        return observation if module is None else apply_module(module, params, observation, method="encode_observation")

    def encode_action(self, params: ArrayTree, features: Array, action: Array) -> Array:
        """Features of features and actions `[B, A]`; without a representation, the given features."""
        module = self.networks.representation
        return features if module is None else apply_module(module, params, features, action, method="encode_action")

    def predict(self, params: ArrayTree, observation: Array, action: Array) -> Array:
        """The representation's prediction of the next observations."""
        assert self.networks.representation is not None
        return apply_module(self.networks.representation, params, observation, action)

    def scale(self, action: Array) -> Array:
        """Scales actions in [-1, 1] to the environment's bounds."""
        low, high = jnp.asarray(self.spec.action_low), jnp.asarray(self.spec.action_high)
        return jnp.clip(low + (action + 1.0) * ((high - low) / 2), low, high)  # rounding may exceed a bound


def _init(module: nn.Module, key: Array, *args: ArrayTree) -> ArrayTree:
    return module.init(key, *args).get("params", {})


def actor_and_critics(networks: ActorAndCritic, spec: EnvSpec, outputs: int = 1) -> ActorAndCritics:
    """Makes pure functions of unmodified flax modules.

        networks = actor_and_critics(ActorAndCritic.mlp(6), env.spec)
        params = networks.init(jax.random.key(0))
        action = networks.act(params.actor, observation)

    Args:
      networks: The modules.
      spec: The environment; its actions are continuous.
      outputs: Numbers that the actor has for each component of an action.

    Raises:
      TypeError: `networks` is not an `ActorAndCritic`, or one of its networks is not a flax module.
      ValueError: The actions are discrete or without finite bounds, or the modules do not fit the environment or one
        another.
    """
    check_type("network", networks, ActorAndCritic, "volvox.networks.ActorAndCritic(actor, critic)")
    if not spec.continuous or len(spec.action_shape or ()) != 1:
        raise ValueError(f"{spec.name} has no continuous actions [B, A], which TD3 and SAC need; use A3C, PPO or PQN")
    low, high = np.asarray(spec.action_low, float), np.asarray(spec.action_high, float)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and np.less(low, high).all()):
        raise ValueError(f"{spec.name} has actions from {low} to {high}; TD3 and SAC need finite bounds")
    made = ActorAndCritics(networks, spec)
    observation, action = jax.tree.map(lambda x: batch_of(*x.shape, dtype=x.dtype), (spec.observation, spec.action))
    features = encoded = observation
    if (module := networks.representation) is not None:
        variables = check_module(module, spec, (observation, action), observation, role="representation")
        params = variables.get("params", {})
        features = jax.eval_shape(made.encode_observation, params, observation)
        encoded = jax.eval_shape(made.encode_action, params, features, action)
    role = "actor" if outputs == 1 else "actor, with gaussian=True"
    check_module(networks.actor, spec, (features,), batch_of(outputs * action.shape[-1]), role=role)
    check_module(networks.critic, spec, (encoded, action), batch_of(), role="critic")
    return made
