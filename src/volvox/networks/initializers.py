"""Initialisers of kernels and biases, in flax's form: (key, shape, dtype) -> array."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from volvox.types import Array

Initializer = nn.initializers.Initializer
ZEROS = nn.initializers.zeros_init()


def fan_in_uniform(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
    """Draws uniformly within ±1/√fan_in, as PyTorch does for the kernels and biases of its layers.

        critic = vx.networks.QNetwork(kernel_init=vx.networks.fan_in_uniform, bias_init=vx.networks.fan_in_uniform)

    As the `bias_init` of a network of volvox, it uses the fan-in of the kernel.
    """
    return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")(key, shape, dtype)


def bias_like_kernel(init: Initializer, fan_in: int) -> Initializer:
    """Makes an initialiser that draws a bias as one row of a kernel, because its shape does not tell the fan-in."""
    return lambda key, shape, dtype=jnp.float32: init(key, (fan_in, *shape), dtype)[0]
