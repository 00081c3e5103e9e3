"""Layers with block-circulant weights: b times fewer numbers to store, to read and to mutate."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax.linen.dtypes import promote_dtype

from volvox._checks import integer
from volvox.networks.interception import is_plain_dense
from volvox.ops.circulant import block_circulant, check_block
from volvox.types import Array


class BlockCirculantDense(nn.Module):
    """A dense layer `[K, features]` whose kernel consists of `block` x `block` circulant blocks.

        x = vx.networks.BlockCirculantDense(256, block=8)(x)  # in a compact method of a module
        params = vx.networks.BlockCirculantDense(256).init(jax.random.key(0), x)["params"]  # on its own

    The layer stores the parameter `circulant`, `[K / block, block, features / block]`: `[i, :, j]` are the numbers of
    the block in row i and column j. The dense matrix is not stored.

    Input: `[..., K]`. Output: `[..., features]`.

    Attributes:
      features: Length of the output.
      block: The side b of a block; a divisor of the number of inputs and of `features`.
      use_bias: Whether a bias is added.
      kernel_init: Initialiser of the stored numbers; its fan-in is that of the dense matrix.
    """

    features: int
    block: int = 4
    use_bias: bool = True
    kernel_init: Callable[..., Any] = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`x @ W + bias`."""
        check_block(self.block, x.shape[-1], self.features)
        return _circulant(self, x, self.block)


class Grouped(nn.Module):
    """Any flax module, with its large dense layers made block-circulant.

        critic = vx.networks.Grouped(vx.networks.QNetwork((256, 256)), block=4)
        actor = vx.networks.Grouped(vx.networks.MLP(6, (256, 256)), block=8, min_side=64)

    Plain `nn.Dense` layers with at least `min_side` inputs and outputs have the parameters of `BlockCirculantDense`. If
    the block does not divide the number of inputs, the inputs are padded with zeros.

    Attributes:
      inner: The network.
      block: The side b of a block, a divisor of the outputs of those layers; 1 leaves the network unchanged.
      min_side: Layers with fewer inputs or outputs stay dense.
    """

    inner: nn.Module
    block: int = 4
    min_side: int = 32

    @nn.compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the network's output.

        Raises:
          ValueError: The block does not divide the outputs of a layer, or no layer is large enough.
        """
        integer("block", self.block, low=1)
        grouped = []
        with nn.intercept_methods(functools.partial(self._intercept, grouped)):
            out = self.inner(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        if not grouped and self.block > 1:
            raise ValueError(
                f"no dense layer has min_side={self.min_side} inputs and outputs, so none is block-circulant; lower "
                "min_side, or take the network without Grouped"
            )
        return out

    @property
    @nn.nowrap
    def initial_state(self) -> Any:
        """The method of the inner network, if it is recurrent; else None."""
        return getattr(self.inner, "initial_state", None)

    @property
    @nn.nowrap
    def distribution(self) -> Any:
        """The kind of the inner network's output, if it has one; else None."""
        return getattr(self.inner, "distribution", None)

    @property
    @nn.nowrap
    def initial_std(self) -> Any:
        """The method of the inner network, if it has one; else None."""
        own: Any = getattr(self.inner, "initial_std", None)
        return (lambda path: own(path[1:])) if callable(own) else None  # without "inner"

    @nn.nowrap
    def _intercept(self, grouped: list[Any], next_fun, args, kwargs, context) -> Any:
        module = context.module
        if self.block == 1 or context.method_name != "__call__" or not is_plain_dense(module):
            return next_fun(*args, **kwargs)
        (x,) = (*args, *kwargs.values())
        if min(x.shape[-1], module.features) < self.min_side:
            return next_fun(*args, **kwargs)
        if module.features % self.block:
            raise ValueError(
                f"block={self.block} does not divide the {module.features} outputs of {'/'.join(module.path)}; choose "
                "another block, or another width"
            )
        grouped.append(module.path)
        padding = -x.shape[-1] % self.block
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)])
        return _circulant(module, x, self.block)


def _circulant(module: Any, x: Array, block: int) -> Array:
    """The layer's output; `module` holds its parameters and their initialisers."""
    rows, columns = x.shape[-1] // block, module.features // block
    dtype = getattr(module, "param_dtype", jnp.float32)
    numbers = module.param("circulant", module.kernel_init, (rows, block, columns), dtype)
    bias_init = getattr(module, "bias_init", nn.initializers.zeros)
    bias = module.param("bias", bias_init, (module.features,), dtype) if module.use_bias else None
    x, numbers, bias = promote_dtype(x, numbers, bias, dtype=getattr(module, "dtype", None))
    out = block_circulant(x, numbers.reshape(rows * block, columns), block)
    return out if bias is None else out + bias
