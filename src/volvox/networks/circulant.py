"""Networks with block-circulant weights: b times fewer numbers to store, to read and to mutate."""

import functools
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax.linen.dtypes import promote_dtype

from volvox._checks import integer
from volvox.networks.interception import is_plain_dense
from volvox.ops.circulant import block_circulant


class Grouped(nn.Module):
    """Any flax module, with its large dense layers made block-circulant.

        critic = vx.networks.Grouped(vx.networks.QNetwork((256, 256)), block=4)
        actor = vx.networks.Grouped(vx.networks.MLP(6, (256, 256)), block=8, min_side=64)

    Plain `nn.Dense` layers `[K, N]` with at least `min_side` inputs and outputs store the parameter `circulant`,
    `[K / block, block, N / block]`, in place of a kernel: `[i, :, j]` are the numbers of the circulant block in row i
    and column j. It is initialised as the kernel would be. If the block does not divide the number of inputs, the
    inputs are padded with zeros.

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
        rows, columns = x.shape[-1] // self.block, module.features // self.block
        shape = (rows, self.block, columns)
        numbers = module.param("circulant", module.kernel_init, shape, module.param_dtype)
        bias = None
        if module.use_bias:
            bias = module.param("bias", module.bias_init, (module.features,), module.param_dtype)
        x, numbers, bias = promote_dtype(x, numbers, bias, dtype=module.dtype)
        out = block_circulant(x, numbers.reshape(rows * self.block, columns), self.block)
        return out if bias is None else out + bias
