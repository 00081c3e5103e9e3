"""The one place where unmodified flax modules reach the kernels of `volvox.ops`."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from volvox.ops.conv import conv
from volvox.ops.matmul import dense

Array = jax.Array


def use_kernels() -> Any:
    """Context in which plain `nn.Dense` and 2-D `nn.Conv` modules compute with `volvox.ops`.

    Values, dtypes and gradients are flax's; under `vmap` over parameters the work becomes a heterogeneous matmul
    instead of a grouped convolution. Subclasses, modules with other options than features, kernel size, strides,
    padding, bias and dtypes, and modules that are being initialised run as flax wrote them.

    Returns:
      A context manager, for use around `module.apply`.
    """
    return nn.intercept_methods(_intercept)


def _intercept(next_fun, args, kwargs, context) -> Any:
    module = context.module
    if context.method_name == "__call__" and len(args) == 1 and not kwargs and not module.is_initializing():
        inputs = args[0]
        if type(module) is nn.Dense and _plain_dense(module, inputs):
            return _dense(module, inputs)
        if type(module) is nn.Conv and _plain_conv(module, inputs):
            return _conv(module, inputs)
    return next_fun(*args, **kwargs)


def _dense(module: nn.Dense, inputs: Array) -> Array:
    inputs, kernel, bias = _promoted(module, inputs)
    return _add_bias(dense(inputs, kernel), bias)


def _conv(module: nn.Conv, inputs: Array) -> Array:
    inputs, kernel, bias = _promoted(module, inputs)
    images = inputs.reshape(-1, *inputs.shape[-3:])
    out = _add_bias(conv(images, kernel, strides=_pair(module.strides), padding=_padding(module.padding)), bias)
    return out.reshape(*inputs.shape[:-3], *out.shape[1:])


def _promoted(module: Any, inputs: Array) -> tuple[Array, Array, Array | None]:
    bias = _parameter(module, "bias") if module.use_bias else None
    return module.promote_dtype(inputs, _parameter(module, "kernel"), bias, dtype=module.dtype)


def _add_bias(out: Array, bias: Array | None) -> Array:
    return out if bias is None else out + bias


def _parameter(module: nn.Module, name: str) -> Any:
    return nn.meta.unbox(module.get_variable("params", name))


def _has_parameters(module: Any, kernel_shape: tuple[int, ...]) -> bool:
    """Whether the parameters are as flax would demand them; if not, flax itself explains it best."""
    expected = {"kernel": kernel_shape} | ({"bias": (module.features,)} if module.use_bias else {})
    return all(
        module.has_variable("params", name) and jnp.shape(_parameter(module, name)) == shape
        for name, shape in expected.items()
    )


def _plain_dense(module: nn.Dense, inputs: Any) -> bool:
    return (
        module.precision is None
        and module.dot_general is None
        and module.dot_general_cls is None
        and jnp.ndim(inputs) >= 1
        and _has_parameters(module, (jnp.shape(inputs)[-1], module.features))
    )


def _plain_conv(module: nn.Conv, inputs: Any) -> bool:
    size = module.kernel_size
    return (
        not isinstance(size, int)
        and len(size) == 2
        and jnp.ndim(inputs) >= 3
        and _padding(module.padding) is not None
        and _pair(module.input_dilation) == (1, 1)
        and _pair(module.kernel_dilation) == (1, 1)
        and module.feature_group_count == 1
        and module.mask is None
        and module.precision is None
        and module.conv_general_dilated is None
        and module.conv_general_dilated_cls is None
        and _has_parameters(module, (*size, jnp.shape(inputs)[-1], module.features))
    )


def _pair(value: Any) -> tuple[int, ...]:
    """Flax's one number, None (for 1) or sequence, as a tuple of two."""
    if value is None or isinstance(value, int):
        return (value or 1,) * 2
    return tuple(value)


def _padding(padding: Any) -> Any:
    """Flax's padding as `ops.conv` takes it, or None if it is of a kind that `ops.conv` does not know."""
    if isinstance(padding, str):
        return padding if padding in ("SAME", "VALID", "SAME_LOWER") else None
    if isinstance(padding, int):
        return ((padding, padding),) * 2
    pairs = tuple((p, p) if isinstance(p, int) else tuple(p) for p in padding)
    return pairs if len(pairs) == 2 and min(map(min, pairs)) >= 0 else None
