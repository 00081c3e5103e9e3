"""Networks with two outputs, a policy's and a value, and what makes records of functions of them.

The modules here are examples: any flax module will do that maps observations `[B, ...]` to (output `[B, size]`, value
`[B]`), `size` being the number of actions, or twice the length of a continuous one (means, then logarithms of standard
deviations). A recurrent one takes a second argument, its state, and returns ((output, value), state); its method
`initial_state(batch_size)` gives the state in which episodes begin, leaves `[batch_size, ...]`.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from volvox._settings import describe
from volvox.networks.images import scaled
from volvox.networks.interception import use_kernels
from volvox.ops.flat import num_parameters
from volvox.types import Array, ArrayTree, Config, EnvSpec

_FAN_IN_UNIFORM = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # within 1 / sqrt(fan_in)
_SIZES = {"small": ((16, 8), (32, 4)), "large": ((32, 8), (32, 4), (64, 4))}


class GA3C(nn.Module):
    """The networks of GA3C (Babaeizadeh et al. 2017, arXiv 1611.06256).

    Convolutions with SAME padding, one hidden dense layer of 256, ReLU, two linear outputs; all parameters begin
    uniform within the inverse root of the fan-in.

    Input: uint8 `[B, 84, 84, 4]`, scaled to [-1, 1).

    Attributes:
      num_outputs: Numbers that describe the policy: the number of actions.
      size: small: 16@8x8/s, 32@4x4/2. large: 32@8x8/s, 32@4x4/2, 64@4x4/2.
      first_stride: s; the published large networks go from 4 down to 1.
    """

    distribution = "categorical"  # not a field: what the output describes

    num_outputs: int
    size: Literal["small", "large"] = "small"
    first_stride: int = 4

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        """(logits `[B, num_outputs]`, value `[B]`) of observations `[B, 84, 84, 4]`."""
        if self.size not in _SIZES:
            raise ValueError(f"GA3C has sizes {', '.join(_SIZES)}; got {self.size!r}.")
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise ValueError(f"GA3C takes bytes, which it scales to [-1, 1); got {x.dtype}.")
        x = x.astype(jnp.float32) / 128 - 1
        for i, (features, window) in enumerate(_SIZES[self.size]):
            stride = self.first_stride if i == 0 else 2
            x = nn.relu(
                _ga3c_layer(nn.Conv, features, (window, window), (stride, stride), fan_in=window**2 * x.shape[-1])(x)
            )
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(_ga3c_layer(nn.Dense, 256, fan_in=x.shape[-1])(x))
        return _ga3c_layer(nn.Dense, self.num_outputs, fan_in=256)(x), _ga3c_layer(nn.Dense, 1, fan_in=256)(x)[:, 0]


def _ga3c_layer(layer: Callable[..., Any], *args: Any, fan_in: int) -> Any:
    def bias(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -(fan_in**-0.5), fan_in**-0.5)

    return layer(*args, kernel_init=_FAN_IN_UNIFORM, bias_init=bias)


class NatureTorso(nn.Module):
    """The convolutional network of DQN (Mnih et al. 2015): 32@8x8/4, 64@4x4/2, 64@3x3/1, dense 512; VALID padding.

    Input: `[B, 84, 84, 4]`, integers scaled to [0, 1]. Output: `[B, 512]`. Orthogonal initialisation.
    """

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Features `[B, 512]` of observations `[B, 84, 84, 4]`."""
        init = nn.initializers.orthogonal(2**0.5)
        x = scaled(x)
        for features, window, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = nn.Conv(features, (window, window), (stride, stride), padding="VALID", kernel_init=init)(x)
            x = nn.relu(x)
        return nn.relu(nn.Dense(512, kernel_init=init)(x.reshape(x.shape[0], -1)))


class SmallTorso(nn.Module):
    """16@8x8/4, 32@4x4/2, dense 256, SAME padding, orthogonal initialisation: GA3C's small size for any learner.

    Input: `[B, 84, 84, 4]`, integers scaled to [0, 1]. Output: `[B, 256]`.
    """

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Features `[B, 256]` of observations `[B, 84, 84, 4]`."""
        init = nn.initializers.orthogonal(2**0.5)
        x = scaled(x)
        for features, window, stride in ((16, 8, 4), (32, 4, 2)):
            x = nn.relu(nn.Conv(features, (window, window), (stride, stride), kernel_init=init)(x))
        return nn.relu(nn.Dense(256, kernel_init=init)(x.reshape(x.shape[0], -1)))


class ActorCritic(nn.Module):
    """Two linear outputs on one torso; orthogonal initialisation, the policy's small.

    Attributes:
      num_outputs: Numbers that describe the policy: the number of actions.
      torso: Observations `[B, ...]` -> features `[B, n]`.
    """

    num_outputs: int
    torso: nn.Module

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        """(logits `[B, num_outputs]`, value `[B]`)."""
        return _outputs(self.torso(x), self.num_outputs)


class RecurrentActorCritic(nn.Module):
    """An LSTM between torso and outputs.

    Attributes:
      num_outputs: Numbers that describe the policy: the number of actions.
      torso: Observations `[B, ...]` -> features `[B, n]`.
      width: Cells of the LSTM.
    """

    num_outputs: int
    torso: nn.Module
    width: int = 256

    @nn.compact
    def __call__(self, x: Array, state: ArrayTree) -> tuple[tuple[Array, Array], ArrayTree]:
        """((logits `[B, num_outputs]`, value `[B]`), state)."""
        state, x = nn.OptimizedLSTMCell(self.width)(state, self.torso(x))
        return _outputs(x, self.num_outputs), state

    @nn.nowrap
    def initial_state(self, batch_size: int) -> ArrayTree:
        """Zeros, two leaves `[batch_size, width]`."""
        return (jnp.zeros((batch_size, self.width)), jnp.zeros((batch_size, self.width)))


class GaussianMLP(nn.Module):
    """Two perceptrons, one for means and one for the value, and a standard deviation that no observation changes.

    Input: `[B, n]`. For continuous actions.

    Attributes:
      num_components: Length of an action.
      hidden: Widths of the hidden layers of each.
    """

    distribution = "gaussian"  # not a field: what the output describes

    num_components: int
    hidden: tuple[int, ...] = (64, 64)
    initial_log_std: float = 0.0

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        """(means and logarithms of standard deviations `[B, 2 * num_components]`, value `[B]`)."""
        mean = _perceptron(x, self.hidden, self.num_components, 0.01)
        value = _perceptron(x, self.hidden, 1, 1.0)
        log_std = self.param("log_std", nn.initializers.constant(self.initial_log_std), (self.num_components,))
        return jnp.concatenate([mean, jnp.broadcast_to(log_std, mean.shape)], axis=-1), value[:, 0]


def _perceptron(x: Array, hidden: tuple[int, ...], size: int, scale: float) -> Array:
    x = x.reshape(x.shape[0], -1).astype(jnp.float32)
    for width in hidden:
        x = nn.tanh(nn.Dense(width, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
    return nn.Dense(size, kernel_init=nn.initializers.orthogonal(scale))(x)


def _outputs(x: Array, num_outputs: int) -> tuple[Array, Array]:
    output = nn.Dense(num_outputs, kernel_init=nn.initializers.orthogonal(0.01))(x)
    return output, nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(x)[:, 0]


class ActorCriticNetwork(NamedTuple):
    """A network with a policy's output and a value, as pure functions.

    Attributes:
      init: key -> params.
      initial_state: batch size -> recurrent state, leaves `[B, ...]`; () without recurrence.
      apply: (params, observation `[B, ...]`, state) -> (output `[B, size]`, value `[B]`, state).
    """

    init: Callable[[Array], ArrayTree]
    initial_state: Callable[[int], ArrayTree]
    apply: Callable[[ArrayTree, Array, ArrayTree], tuple[Array, Array, ArrayTree]]
    recurrent: bool
    config: Config


def actor_critic(module: nn.Module, spec: EnvSpec, *, output_size: int) -> ActorCriticNetwork:
    """Makes a network with two outputs of an unmodified flax module.

    Args:
      module: see the top of this file; with parameters only.
      spec: the environment it is to act in.
      output_size: numbers that describe one distribution over actions.

    Returns:
      `ActorCriticNetwork`.

    Raises:
      TypeError: if `module` is not a flax module.
      ValueError: if it does not give what is needed.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"actor_critic needs a flax.linen module, an instance and not its class; got {module!r}.")
    begin: Any = getattr(module, "initial_state", None)
    recurrent = callable(begin)
    initial_state: Any = begin if recurrent else lambda batch_size: ()

    def arguments(observation: Array, state: ArrayTree) -> tuple[Any, ...]:
        return (observation, state) if recurrent else (observation,)

    def init(key: Array) -> ArrayTree:
        observation = jnp.zeros((1, *spec.observation_shape), spec.observation_dtype)
        return module.init(key, *arguments(observation, initial_state(1)))["params"]

    def apply(params: ArrayTree, observation: Array, state: ArrayTree) -> tuple[Array, Array, ArrayTree]:
        with use_kernels():
            result: Any = module.apply({"params": params}, *arguments(observation, state))
        (output, value), state = result if recurrent else (result, state)
        return output, value, state

    name = type(module).__name__
    has, needs = getattr(module, "distribution", None), "gaussian" if spec.num_actions is None else "categorical"
    if has not in (None, needs):
        kind, instead = ("continuous", "GaussianMLP") if needs == "gaussian" else ("discrete", "ActorCritic or GA3C")
        raise ValueError(
            f"{name} has a {has} head, and the actions of {spec.name} are {kind}; take a network with a {needs} one, "
            f"e.g. {instead}."
        )
    batch = 2
    needed = f"(output [B, {output_size}], value [B]) for the actions of {spec.name}"
    try:
        params = jax.eval_shape(init, jax.random.key(0))
        observation = jax.ShapeDtypeStruct((batch, *spec.observation_shape), spec.observation_dtype)
        output, value, _ = jax.eval_shape(apply, params, observation, jax.eval_shape(lambda: initial_state(batch)))
    except Exception as error:  # whatever the module's own code raises
        raise ValueError(f"{name} must map observations of {spec.name} to {needed}: {error}") from error
    if output.shape != (batch, output_size) or value.shape != (batch,):
        raise ValueError(f"{name} must give {needed}; for B={batch} it gives {output.shape} and {value.shape}.")
    return ActorCriticNetwork(
        init=init,
        initial_state=initial_state,
        apply=apply,
        recurrent=recurrent,
        config={"network": name, "num_parameters": num_parameters(params), **describe(module)},
    )
