"""Layers whose weights are block-circulant: b times fewer numbers to store, to read and to mutate."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn

from volvox.ops.circulant import block_circulant, check_block

Array = jax.Array


class BlockCirculantDense(nn.Module):
    """A dense layer `[K, features]` whose kernel consists of `block` x `block` circulant blocks.

    The parameter `kernel` is what is stored, `[K, features / block]`; there is no dense matrix anywhere.

    Input: `[..., K]`. Output: `[..., features]`.
    """

    features: int
    """Length of the output."""
    block: int = 4
    """b; a divisor of both sides."""
    use_bias: bool = True
    kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()
    """Of the stored kernel: its fan-in is that of the dense matrix."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`x @ W + bias`."""
        check_block(self.block, x.shape[-1], self.features)
        shape = (x.shape[-1], self.features // self.block)
        out = block_circulant(x, self.param("kernel", self.kernel_init, shape), self.block)
        if self.use_bias:
            out = out + self.param("bias", nn.initializers.zeros, (self.features,))
        return out
