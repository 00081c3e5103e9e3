"""Multi-layer perceptrons, for vectors and small probes."""

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
from flax import linen as nn

Array = jax.Array


class MLP(nn.Module):
    """Dense layers with an activation between them.

    Input: `[B, ...]`, flattened to `[B, n]` and cast to float32 if integer.
    Output: `[B, num_outputs]`.

    Attributes:
      num_outputs: Length of the output.
      hidden: Widths of the hidden layers; may be empty.
      activation: Applied after each hidden layer, not after the output.
      densely_connected: Each layer is given the outputs of all layers before it, and the input (Ota et al. 2021,
        arXiv 2102.07920, section 3.2).
    """

    num_outputs: int
    hidden: tuple[int, ...] = (64, 64)
    activation: Callable[[Array], Array] = nn.tanh
    densely_connected: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Outputs `[B, num_outputs]` of observations `[B, ...]`."""
        x = x.reshape(x.shape[0], -1)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(jnp.float32)
        x = hidden_layers(x, map(nn.Dense, self.hidden), self.activation, self.densely_connected)
        return nn.Dense(self.num_outputs)(x)


def hidden_layers(
    x: Array, layers: Iterable[nn.Module], activation: Callable[[Array], Array], densely_connected: bool
) -> Array:
    """Applies hidden layers to `[B, n]`, each with the activation; densely connected: see `MLP`."""
    for layer in layers:
        out = activation(layer(x))  # pyright: ignore[reportCallIssue]
        x = jnp.concatenate([out, x], axis=-1) if densely_connected else out
    return x


def flat(observation: Array) -> Array:
    """Observations `[B, ...]` as float32 `[B, n]`."""
    return observation.reshape(observation.shape[0], -1).astype(jnp.float32)
