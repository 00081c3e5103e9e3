"""Unmodified flax modules compute with the kernels of `volvox.ops`, or with block-circulant weights.

A population is one flax module and `vmap` over its parameters. Its layers must reach the kernels, which are fast under
such a `vmap`, but users write `nn.Dense` and `nn.Conv`, and networks of other libraries should work as they are. Custom
layer classes would have to be written into each network, and flax offers `dot_general` and `conv_general_dilated` only
as arguments of each layer. `nn.intercept_methods` is flax's public hook for this: within a context, it passes the calls
of all modules to one function, which computes plain layers with `volvox.ops` and leaves all others to flax.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from flax.linen.linear import canonicalize_padding

from volvox._checks import integer
from volvox.ops.conv import conv
from volvox.ops.flat import by_path
from volvox.ops.low_rank import LowRankKernel, low_rank_conv, low_rank_dense
from volvox.ops.matmul import block_circulant, dense
from volvox.types import Array


def use_kernels() -> Any:
    """Context in which plain `nn.Dense` and 2-D `nn.Conv` modules compute with `volvox.ops`.

        with use_kernels():
            logits = jax.vmap(lambda params: module.apply({"params": params}, x))(params_of_many)

    Values, dtypes and gradients are flax's. Under `vmap` over parameters, layers become heterogeneous matmuls, not
    grouped convolutions. A kernel may be a `volvox.ops.low_rank.LowRankKernel` instead of an array.

    Subclasses, modules with other options than features, kernel size, strides, padding, bias and dtypes, and modules
    that are being initialised run as flax wrote them.

    Returns:
      A context manager, for use around `module.apply`.
    """
    return nn.intercept_methods(_intercept)


def low_rank_kernels(apply: Callable[..., Any], params: Any, *args: Any) -> frozenset[tuple[str, ...]]:
    """Returns the paths of the kernels of layers that `use_kernels` computes; they may be a `LowRankKernel`.

    Args:
      apply: Calls `module.apply` with `params` and `args`; it is only traced.
      params: Parameters, or their shapes.
      *args: Arrays, or their shapes.

    Returns:
      Paths such as `("Dense_0", "kernel")`.
    """
    found: dict[tuple[str, ...], tuple[int, ...]] = {}
    missed = set()

    def record(next_fun, args, kwargs, context):
        path, replacement = (*context.module.path, "kernel"), _replacement(context, args, kwargs)
        if replacement is not None:
            found[path] = np.shape(_parameter(context.module, "kernel"))
        elif type(context.module) in (nn.Dense, nn.Conv):
            missed.add(path)  # flax computes at least one call of this layer
        return next_fun(*args, **kwargs)

    with nn.intercept_methods(record):
        jax.eval_shape(apply, params, *args)
    # A layer inside a lifted module (`nn.vmap`, `nn.scan`) sees a part of the kernel.
    whole = {path: tuple(leaf.shape) for path, leaf in by_path(params).items()}
    return frozenset(path for path, shape in found.items() if whole.get(path) == shape and path not in missed)


def is_plain_dense(module: nn.Module) -> bool:
    """Whether a module is an `nn.Dense` without options that change its product."""
    return type(module) is nn.Dense and module.precision is module.dot_general is module.dot_general_cls is None


def _intercept(next_fun, args, kwargs, context) -> Any:
    replacement = _replacement(context, args, kwargs)
    return next_fun(*args, **kwargs) if replacement is None else replacement(context.module, *args)


def _replacement(context, args, kwargs) -> Callable[..., Any] | None:
    """Returns the function that computes this call with `volvox.ops`, or None."""
    module = context.module
    if context.method_name != "__call__" or kwargs or module.is_initializing():
        return None
    if type(module) not in (nn.Dense, nn.Conv) or len(args) != 1:
        return None
    shape = jnp.shape(args[0])
    if is_plain_dense(module) and len(shape) >= 1 and _has_kernel(module, shape[-1]):
        return _dense
    if _is_plain_conv(module) and len(shape) >= 3 and _has_kernel(module, *module.kernel_size, shape[-1]):
        return _conv
    return None


def _dense(module: nn.Dense, inputs: Array) -> Array:
    inputs, kernel, bias = _promoted(module, inputs)
    narrow = _parameter(module, "kernel")
    if not isinstance(kernel, LowRankKernel) and jnp.promote_types(narrow.dtype, kernel.dtype) == kernel.dtype:
        kernel = narrow  # half-precision weights are read as they are, because widening them is exact
    multiply: Callable[..., Array] = low_rank_dense if isinstance(kernel, LowRankKernel) else dense
    out = multiply(inputs, kernel)
    return out if bias is None else out + bias


def _conv(module: nn.Conv, inputs: Array) -> Array:
    inputs, kernel, bias = _promoted(module, inputs)
    images = inputs.reshape(-1, *inputs.shape[-3:])
    convolve: Callable[..., Array] = low_rank_conv if isinstance(kernel, LowRankKernel) else conv
    out = convolve(images, kernel, strides=_pair(module.strides), padding=_padding(module.padding))
    out = out if bias is None else out + bias
    return out.reshape(*inputs.shape[:-3], *out.shape[1:])


def _promoted(module: Any, inputs: Array) -> tuple[Array, Any, Array | None]:
    bias = _parameter(module, "bias") if module.use_bias else None
    kernel = _parameter(module, "kernel")
    if not isinstance(kernel, LowRankKernel):
        return module.promote_dtype(inputs, kernel, bias, dtype=module.dtype)
    parts = (kernel.bases, kernel.a, kernel.b)
    inputs, bias, *parts = module.promote_dtype(inputs, bias, *parts, dtype=module.dtype)
    return inputs, replace(kernel, bases=parts[0], a=parts[1], b=parts[2]), bias


def _parameter(module: nn.Module, name: str) -> Any:
    return nn.meta.unbox(module.get_variable("params", name))


def _has_kernel(module: Any, *inputs: int) -> bool:
    """Whether the kernel has the right shape; if not, flax raises the best error."""
    has = module.has_variable("params", "kernel")
    return has and np.shape(_parameter(module, "kernel")) == (*inputs, module.features)


def _is_plain_conv(module: nn.Module) -> bool:
    """Whether a module is an `nn.Conv` with no options that `ops.conv` lacks."""
    if type(module) is not nn.Conv:
        return False
    options = (module.mask, module.precision, module.conv_general_dilated, module.conv_general_dilated_cls)
    return (
        np.shape(module.kernel_size) == (2,)
        and _padding(module.padding) is not None
        and _pair(module.input_dilation) == _pair(module.kernel_dilation) == (1, 1)
        and module.feature_group_count == 1
        and all(option is None for option in options)
    )


def _pair(value: Any) -> tuple[int, ...]:
    """Flax's one number, None (for 1) or sequence, as a tuple of two."""
    return (value or 1,) * 2 if value is None or isinstance(value, int) else tuple(value)


def _padding(padding: Any) -> Any:
    """Flax's padding in the form of `ops.conv`, or None if `ops.conv` does not have it."""
    padding = canonicalize_padding(padding, 2)
    if isinstance(padding, str):
        return padding if padding in ("SAME", "VALID", "SAME_LOWER") else None
    return tuple(padding) if min(map(min, padding)) >= 0 else None


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
      block: Side of a block, a divisor of the outputs of those layers; 1 leaves the network unchanged.
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
    def initial_std(self) -> Any:
        """The method of the inner network, if it has one; else None."""
        inner_std: Any = getattr(self.inner, "initial_std", None)
        return (lambda path: inner_std(path[1:])) if callable(inner_std) else None  # without "inner"

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
