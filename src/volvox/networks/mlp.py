"""Multi-layer perceptrons, for vectors and small probes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

Array = jax.Array


class MLP(nn.Module):
    """Dense layers with an activation between them.

    Input: `[B, ...]`, flattened to `[B, n]` and cast to float32 if integer.
    Output: `[B, num_outputs]`.
    """

    num_outputs: int
    """Length of the output."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers; may be empty."""
    activation: Callable[[Array], Array] = nn.tanh
    """Applied after each hidden layer, not after the output."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Outputs `[B, num_outputs]` of observations `[B, ...]`."""
        x = x.reshape(x.shape[0], -1)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(jnp.float32)
        for width in self.hidden:
            x = self.activation(nn.Dense(width)(x))
        return nn.Dense(self.num_outputs)(x)
