"""The networks of deep genetic algorithms on Atari (Such et al. 2017, arXiv 1712.06567)."""

from typing import Any, Literal, NamedTuple

import jax
from flax import linen as nn

from volvox.networks.images import scaled

Array = jax.Array

_OUTPUT_STD = 0.1


class _Sizes(NamedTuple):
    """Sizes.

    Attributes:
      convolutions: (features, kernel size, stride) of each.
    """

    convolutions: tuple[tuple[int, int, int], ...]
    hidden: int


_SIZES = {
    "large": _Sizes(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    "small": _Sizes(((16, 8, 4), (32, 4, 2)), 256),
}


class DeepGA(nn.Module):
    """Convolutional network over stacked Atari frames; with 18 actions 4 052 658 or 1 008 450 parameters.

    Convolutions with SAME padding, one hidden dense layer, ReLU after all but the output. Parameters are called
    `Conv_i` and `Dense_i`, so that their flat order (`volvox.ops.flat`) is the layer order of the published genomes.

    Input: integers `[B, 84, 84, 4]`, scaled from 0..255 to [0, 1]; floating-point input is taken as scaled already.
    Output: `[B, num_actions]`, float32 if the parameters are.

    Attributes:
      num_actions: Length of the output.
      size: large: 32@8x8/4, 64@4x4/2, 64@3x3/1, dense 512. small: 16@8x8/4, 32@4x4/2, dense 256.
      dtype: In which all layers but the output compute, e.g. `jnp.bfloat16`; None: that of parameters and observations.
    """

    num_actions: int
    size: Literal["large", "small"] = "large"
    dtype: Any = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits `[B, num_actions]` of observations `[B, 84, 84, 4]`."""
        if self.size not in _SIZES:
            raise ValueError(f"DeepGA has sizes {', '.join(_SIZES)}; got {self.size!r}.")
        sizes = _SIZES[self.size]
        x = scaled(x)
        hidden = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
        output = nn.initializers.variance_scaling(_OUTPUT_STD**2, "fan_in", "normal")
        for features, kernel, stride in sizes.convolutions:
            x = nn.relu(nn.Conv(features, (kernel, kernel), (stride, stride), dtype=self.dtype, kernel_init=hidden)(x))
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(sizes.hidden, dtype=self.dtype, kernel_init=hidden)(x))
        return nn.Dense(self.num_actions, kernel_init=output)(x)

    @nn.nowrap
    def initial_std(self, path: tuple[str, ...]) -> float:
        """Standard deviation of an initial kernel, times the root of its fan-in: 0.1 for the output, 1 elsewhere."""
        return _OUTPUT_STD if path[0] == "Dense_1" else 1.0
