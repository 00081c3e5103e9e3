"""Networks of policies and values, and their pure functions.

The modules are examples: `actor_critic` and `q_network` take any flax module with such outputs.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from volvox.networks.distributions import Distribution, clip_action, distribution, mask_logits
from volvox.networks.genotypes import BATCH, apply_module, batch_of, check_module, init_params, observations, torso
from volvox.networks.initializers import ZEROS, Initializer, fan_in_uniform
from volvox.networks.perceptrons import Activation, dense, flat, normalized_activation, perceptron
from volvox.ops.batching import where_rows
from volvox.types import Array, ArrayTree, EnvSpec, Policy

_ORTHOGONAL = nn.initializers.orthogonal(2**0.5)
_SIZES = {"small": ((16, 8), (32, 4)), "large": ((32, 8), (32, 4), (64, 4))}
"""(features, kernel size) of the convolutions of `GA3C`."""


class GA3C(nn.Module):
    """The networks of GA3C (Babaeizadeh et al. 2017, arXiv 1611.06256).

        algorithm = vx.learn(vx.A3C(), vx.networks.GA3C(6), vx.envs.atari("Pong", num_envs=64))
        large = vx.networks.GA3C(env.spec.num_outputs, size="large", first_stride=2)

    Convolutions with SAME padding, a hidden dense layer, ReLU, and two linear outputs.

    Input: uint8 `[B, 84, 84, 4]`, scaled to [-1, 1).

    Attributes:
      num_outputs: Size of the policy's output: the number of actions.
      size: "small": `16@8x8/s, 32@4x4/2`. "large": `32@8x8/s, 32@4x4/2, 64@4x4/2`.
      first_stride: The stride s; the published large networks go from 4 down to 1.
      hidden: Widths of the dense layers.
      activation: Applied after all layers but the outputs.
      layer_norm: Whether these layers are normalised before the activation.
      kernel_init: Initialiser of the kernels.
      bias_init: Initialiser of the biases, as in `MLP`.
    """

    num_outputs: int
    size: Literal["small", "large"] = "small"
    first_stride: int = 4
    hidden: tuple[int, ...] = (256,)
    activation: Activation = nn.relu
    layer_norm: bool = False
    kernel_init: Initializer = fan_in_uniform
    bias_init: Initializer = fan_in_uniform

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        """(logits `[B, num_outputs]`, value `[B]`) of observations `[B, 84, 84, 4]`."""
        if x.ndim != 4 or not jnp.issubdtype(x.dtype, jnp.integer):
            raise ValueError(f"GA3C takes bytes [B, H, W, C], scaled to [-1, 1); got {x.dtype} with {x.ndim} axes")
        strides = (self.first_stride, 2, 2)
        convolutions = [(*sizes, stride) for sizes, stride in zip(_SIZES[self.size], strides, strict=False)]
        init: Any = {"kernel_init": self.kernel_init, "bias_init": self.bias_init}
        x = torso(x.astype(jnp.float32) / 128 - 1, convolutions, self.hidden, normalized_activation(self), **init)
        return dense(self, self.num_outputs, x), dense(self, 1, x)[:, 0]


class NatureTorso(nn.Module):
    """The convolutional network of DQN (Mnih et al. 2015): `32@8x8/4, 64@4x4/2, 64@3x3/1`, dense 512; VALID padding.

    Input: `[B, 84, 84, 4]`, integers scaled to [0, 1]. Output: `[B, 512]`. Orthogonal initialisation.

    Attributes:
      hidden: Widths of the dense layers.
      activation: Applied after all layers.
      layer_norm: Whether layers are normalised before the activation.
      kernel_init: Initialiser of the kernels.
      bias_init: Initialiser of the biases, as in `MLP`.
      dtype: Dtype in which all layers compute, e.g. `jnp.bfloat16`, as in `DeepGA`.
    """

    hidden: tuple[int, ...] = (512,)
    activation: Activation = nn.relu
    layer_norm: bool = False
    kernel_init: Initializer = _ORTHOGONAL
    bias_init: Initializer = ZEROS
    dtype: Any = None
    _convolutions: ClassVar[Any] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    _padding: ClassVar[str] = "VALID"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Features `[B, hidden[-1]]` of observations `[B, 84, 84, 4]`."""
        init: Any = {"kernel_init": self.kernel_init, "bias_init": self.bias_init, "dtype": self.dtype}
        return torso(x, self._convolutions, self.hidden, normalized_activation(self), self._padding, **init)


class SmallTorso(NatureTorso):
    """`16@8x8/4, 32@4x4/2`, dense 256, SAME padding, orthogonal initialisation: GA3C's small size for any learner.

    Input: `[B, 84, 84, 4]`, integers scaled to [0, 1]. Output: `[B, 256]`. Attributes are those of `NatureTorso`.
    """

    hidden: tuple[int, ...] = (256,)
    _convolutions: ClassVar[Any] = ((16, 8, 4), (32, 4, 2))
    _padding: ClassVar[str] = "SAME"


class ActorCritic(nn.Module):
    """Two linear outputs on one torso, with orthogonal initialisation, small for the policy.

    Attributes:
      num_outputs: Size of the policy's output: the number of actions.
      torso: Observations `[B, ...]` -> features `[B, n]`.
    """

    num_outputs: int
    torso: nn.Module

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        """(logits `[B, num_outputs]`, value `[B]`)."""
        return _outputs(self.torso(x), self.num_outputs)


class _Recurrent(nn.Module):
    """An LSTM of `width` cells behind a torso."""

    num_outputs: int
    torso: nn.Module
    width: int = 256

    @nn.nowrap
    def initial_state(self, batch_size: int) -> ArrayTree:
        """Zeros, two leaves `[batch_size, width]`."""
        return jnp.zeros((batch_size, self.width)), jnp.zeros((batch_size, self.width))


class RecurrentActorCritic(_Recurrent):
    """An LSTM between torso and outputs.

        network = vx.networks.RecurrentActorCritic(env.spec.num_outputs, vx.networks.SmallTorso(), width=128)
        algorithm = vx.learn(vx.PPO(num_minibatches=4), network, env)  # it must divide the environments

    Attributes:
      num_outputs: Size of the policy's output: the number of actions.
      torso: Observations `[B, ...]` -> features `[B, n]`.
      width: Cells of the LSTM.
    """

    @nn.compact
    def __call__(self, x: Array, state: ArrayTree) -> tuple[tuple[Array, Array], ArrayTree]:
        """((logits `[B, num_outputs]`, value `[B]`), state)."""
        state, x = nn.OptimizedLSTMCell(self.width)(state, self.torso(x))
        return _outputs(x, self.num_outputs), state


class QValues(nn.Module):
    """The values of all actions, linear in the features of a torso. The output kernel begins within ±1/√features.

        network = vx.networks.QValues(env.spec.num_outputs, vx.networks.NatureTorso(layer_norm=True))

    Attributes:
      num_outputs: The number of actions.
      torso: Observations `[B, ...]` -> features `[B, n]`.
    """

    num_outputs: int
    torso: nn.Module

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Values `[B, num_outputs]`."""
        return nn.Dense(self.num_outputs, kernel_init=fan_in_uniform)(self.torso(x))


class RecurrentQValues(_Recurrent):
    """`QValues` with an LSTM after the torso. Attributes are those of `RecurrentActorCritic`."""

    @nn.compact
    def __call__(self, x: Array, state: ArrayTree) -> tuple[Array, ArrayTree]:
        """(values `[B, num_outputs]`, state)."""
        state, x = nn.OptimizedLSTMCell(self.width)(state, self.torso(x))
        return nn.Dense(self.num_outputs, kernel_init=fan_in_uniform)(x), state


class GaussianMLP(nn.Module):
    """Two perceptrons, one for means and one for the value, and a standard deviation that is a parameter.

    Input: `[B, n]`. For continuous actions.

    Attributes:
      num_components: Length of an action.
      hidden: Widths of the hidden layers of each perceptron.
      initial_log_std: Initial logarithm of the standard deviation.
      activation: Applied after each hidden layer.
      layer_norm: Whether hidden layers are normalised before the activation.
      kernel_init: Initialiser of the hidden layers' kernels; those of the outputs are orthogonal.
      bias_init: Initialiser of the biases, as in `MLP`.
    """

    num_components: int
    hidden: tuple[int, ...] = (64, 64)
    initial_log_std: float = 0.0
    activation: Activation = nn.tanh
    layer_norm: bool = False
    kernel_init: Initializer = _ORTHOGONAL
    bias_init: Initializer = ZEROS

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        """(means and logarithms of standard deviations `[B, 2 * num_components]`, value `[B]`)."""
        mean, value = (_perceptron(self, x, *output) for output in ((self.num_components, 0.01), (1, 1.0)))
        log_std = self.param("log_std", nn.initializers.constant(self.initial_log_std), (self.num_components,))
        return jnp.concatenate([mean, jnp.broadcast_to(log_std, mean.shape)], axis=-1), value[:, 0]


class CategoricalMLP(nn.Module):
    """Two perceptrons, one for logits and one for the value. For discrete actions.

    Input: `[B, n]`.

    Attributes:
      num_outputs: Size of the policy's output: the number of actions.

    The attributes from `hidden` on are those of `GaussianMLP`.
    """

    num_outputs: int
    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = nn.tanh
    layer_norm: bool = False
    kernel_init: Initializer = _ORTHOGONAL
    bias_init: Initializer = ZEROS

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        """(logits `[B, num_outputs]`, value `[B]`)."""
        logits, value = (_perceptron(self, x, *output) for output in ((self.num_outputs, 0.01), (1, 1.0)))
        return logits, value[:, 0]


def _perceptron(module: GaussianMLP | CategoricalMLP, x: Array, size: int, scale: float) -> Array:
    return perceptron(module, flat(x), size, kernel_init=nn.initializers.orthogonal(scale))


def _outputs(x: Array, num_outputs: int) -> tuple[Array, Array]:
    output = nn.Dense(num_outputs, kernel_init=nn.initializers.orthogonal(0.01))(x)
    return output, nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(x)[:, 0]


class ActorCriticNetwork(NamedTuple):
    """A network with a policy's output and a value, as pure functions.

    Attributes:
      policy: The policy; its variables are the network's parameters. Samples and modes are within the action bounds.
      apply: (params, observation `[B, ...]`, state) -> (output `[B, size]`, value `[B]`, state).
      distribution: Distribution over actions that the output parametrises; of `q_network`, the greedy one.
    """

    policy: Policy
    apply: Callable[[ArrayTree, ArrayTree, ArrayTree], tuple[Array, Array, ArrayTree]]
    distribution: Distribution

    def reset(self, first: Array, state: ArrayTree) -> ArrayTree:
        """Recurrent states `[B, ...]`, replaced by initial states where `first` `[B]` is True."""
        return where_rows(first, self.policy.initial_state(first.shape[0]), state)

    def unroll(self, params: ArrayTree, observation: ArrayTree, first: Array, state: ArrayTree) -> tuple[Array, Array]:
        """Applies the network along trajectories; recurrent state is reset where episodes begin.

        Args:
          params: Parameters.
          observation: `[T, B, ...]`, or a dict or a tuple of such arrays.
          first: bool `[T, B]`: the observation begins an episode.
          state: Recurrent state before the first observation, leaves `[B, ...]`.

        Returns:
          (outputs `[T, B, size]`, values `[T, B]`).
        """
        length, num_envs = first.shape
        if not jax.tree.leaves(state):
            merged = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), observation)
            output, value, _ = self.apply(params, merged, ())
            return output.reshape(length, num_envs, -1), value.reshape(length, num_envs)

        def step(state: ArrayTree, x: tuple[Array, Array]):
            observation, first = x
            output, value, state = self.apply(params, observation, self.reset(first, state))
            return state, (output, value)

        return jax.lax.scan(step, state, (observation, first))[1]


def actor_critic(module: nn.Module, spec: EnvSpec) -> ActorCriticNetwork:
    """Makes pure functions of an unmodified flax module with two outputs.

        network = actor_critic(ActorCritic(env.spec.num_outputs, SmallTorso()), env.spec)
        output, value, state = network.apply(params, observation, network.policy.initial_state(batch_size))

    Args:
      module: A flax module with parameters only, from observations `[B, ...]` to (output `[B, size]`, value `[B]`).
        `size` is the number of actions, the sum of `num_choices`, or twice the length of a continuous action (means,
        then logarithms of standard deviations). A recurrent module takes its state as a second argument and returns
        ((output, value), state); its method `initial_state(batch_size)` gives the state at the start of an episode,
        leaves `[batch_size, ...]`.
      spec: The environment.

    Raises:
      TypeError: `module` is not a flax module.
      ValueError: The module cannot take the observations, or the size of its output does not suit the actions.
    """

    def split(outputs: tuple[Array, Array], mask: Array | None) -> tuple[Array, Array]:
        output, value = outputs
        return mask_logits(output, mask), value

    return _functions(module, spec, (batch_of(distribution(spec).size), batch_of()), split, "actor-critic")


def q_network(module: nn.Module, spec: EnvSpec) -> ActorCriticNetwork:
    """Makes pure functions of an unmodified flax module whose output is the values of all actions.

    The policy's output is these values, and its mode the action of the highest. The value of an observation is the
    highest value. Of several components of an action it is the sum (value decomposition, Sunehag et al. 2017, arXiv
    1706.05296).

    Args:
      module: A flax module with parameters only, from observations `[B, ...]` to values `[B, size]`, where `size` is
        the number of actions, or of the choices of all components. It may be recurrent, as in `actor_critic`.
      spec: The environment, which has discrete actions.

    Raises:
      TypeError: `module` is not a flax module.
      ValueError: Actions are continuous, or the module does not suit observations or actions.
    """
    if spec.continuous:
        raise ValueError(f"{spec.name} has continuous actions; PQN needs discrete ones; use A3C, PPO, TD3 or SAC.")
    actions: Any = distribution(spec)

    def split(output: Array, mask: Array | None) -> tuple[Array, Array]:
        allowed = mask_logits(output, mask)
        # Where nothing is allowed, as after the end of an episode, this is the value of the first action.
        return allowed, actions.take(output, actions.mode(allowed))

    return _functions(module, spec, batch_of(actions.size), split, "values of all actions")


def _functions(
    module: nn.Module, spec: EnvSpec, outputs: Any, split: Callable[..., tuple[Array, Array]], role: str
) -> ActorCriticNetwork:
    """Makes pure functions, given the shapes of the outputs and `split`: (outputs, mask) -> (output, value)."""
    actions = distribution(spec)
    begin: Any = getattr(module, "initial_state", None)
    recurrent = isinstance(module, nn.Module) and callable(begin)
    initial_state: Any = begin if recurrent else lambda batch_size: ()
    states = (jax.eval_shape(lambda: initial_state(BATCH)),) if recurrent else ()
    required = (outputs, *states) if recurrent else outputs
    check_module(module, spec, (observations(spec), *states), required, role=role)

    def apply(params: ArrayTree, observation: ArrayTree, state: ArrayTree) -> tuple[Array, Array, ArrayTree]:
        observation, mask = spec.split_mask(observation)
        if recurrent:
            found, state = apply_module(module, params, observation, state)
        else:
            found = apply_module(module, params, observation)
        return *split(found, mask), state

    def init(key: Array) -> ArrayTree:
        return init_params(module, spec, key, *([initial_state(1)] if recurrent else []))

    def act(params: ArrayTree, observation: ArrayTree, state: ArrayTree) -> tuple[Array, ArrayTree]:
        output, _, state = apply(params, observation, state)
        return output, state

    policy = Policy(
        init=init,
        initial_state=initial_state,
        apply=act,
        sample=lambda key, output: clip_action(actions.sample(key, output), spec),
        mode=lambda output: clip_action(actions.mode(output), spec),
        config=module,
    )
    return ActorCriticNetwork(policy, apply, actions)
