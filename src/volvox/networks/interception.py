"""The one place where unmodified flax modules reach the kernels of `volvox.ops`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.linear import canonicalize_padding

from volvox.ops.conv import conv
from volvox.ops.flat import leaf_path
from volvox.ops.low_rank import LowRankKernel, low_rank_conv, low_rank_dense
from volvox.ops.matmul import dense
from volvox.types import Array


def use_kernels() -> Any:
    """Context in which plain `nn.Dense` and 2-D `nn.Conv` modules compute with `volvox.ops`.

        with vx.networks.use_kernels():
            logits = jax.vmap(lambda params: module.apply({"params": params}, x))(params_of_many)

    Values, dtypes and gradients are flax's; under `vmap` over parameters the work becomes a heterogeneous matmul
    instead of a grouped convolution. A kernel may be a `volvox.ops.low_rank.LowRankKernel` in place of an array; for
    these `nn.OptimizedLSTMCell` computes as `nn.LSTMCell`, whose layers are dense.

    Subclasses, modules with other options than features, kernel size, strides, padding, bias and dtypes, and modules
    that are being initialised run as flax wrote them.

    Returns:
      A context manager, for use around `module.apply`.
    """
    return nn.intercept_methods(_intercept)


def low_rank_kernels(apply: Callable[..., Any], params: Any, *args: Any) -> frozenset[tuple[str, ...]]:
    """Paths of the kernels that may be a `LowRankKernel` in a module's call: of the layers that `use_kernels` computes.

    Args:
      apply: Calls `module.apply` with `params` and `args`; it is only traced.
      params: Parameters, or their shapes.
      *args: Arrays, or their shapes.

    Returns:
      Paths such as `("Dense_0", "kernel")`.
    """
    found: dict[tuple[str, ...], tuple[int, ...]] = {}
    missed = set()

    def look(next_fun, args, kwargs, context):
        module = context.module
        computed = _computed(context, args, kwargs)
        if computed is _lstm:
            layers = module.variables["params"].items()
            found.update({(*module.path, layer, "kernel"): np.shape(of["kernel"]) for layer, of in layers})
        elif computed is not None:
            found[(*module.path, "kernel")] = np.shape(_parameter(module, "kernel"))
        elif type(module) in (nn.Dense, nn.Conv):  # one call that `volvox.ops` does not compute is enough
            missed.add((*module.path, "kernel"))
        return next_fun(*args, **kwargs)

    with nn.intercept_methods(look):
        jax.eval_shape(apply, params, *args)
    # A layer inside a lifted module (`nn.vmap`, `nn.scan`) sees a part of the kernel.
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    whole = {leaf_path(path): tuple(leaf.shape) for path, leaf in paths}
    return frozenset(path for path, shape in found.items() if whole.get(path) == shape and path not in missed)


def is_plain_dense(module: nn.Module) -> bool:
    """Whether a module is an `nn.Dense` without options that change how it multiplies."""
    return type(module) is nn.Dense and module.precision is module.dot_general is module.dot_general_cls is None


def _intercept(next_fun, args, kwargs, context) -> Any:
    computed = _computed(context, args, kwargs)
    if computed is _lstm:  # only kernels of low rank need it
        leaves = jax.tree.leaves(context.module.variables, is_leaf=lambda x: isinstance(x, LowRankKernel))
        computed = _lstm if any(isinstance(leaf, LowRankKernel) for leaf in leaves) else None
    return next_fun(*args, **kwargs) if computed is None else computed(context.module, *args)


def _computed(context, args, kwargs) -> Callable[..., Any] | None:
    """Returns the function that computes this call, if it is of a layer that `volvox.ops` can compute."""
    module = context.module
    if context.method_name != "__call__" or kwargs or module.is_initializing():
        return None
    if type(module) is nn.OptimizedLSTMCell and len(args) == 2:
        return _lstm
    if len(args) == 1 and is_plain_dense(module) and _fits_dense(module, *args):
        return _dense
    return _conv if len(args) == 1 and type(module) is nn.Conv and _fits_conv(module, *args) else None


def _lstm(module: nn.OptimizedLSTMCell, carry: Any, inputs: Array) -> Any:
    # The same parameters and values; it joins kernels, which cannot be done without forming them.
    functions = {"gate_fn": module.gate_fn, "activation_fn": module.activation_fn}
    dtypes = {"dtype": module.dtype, "param_dtype": module.param_dtype}
    same = nn.LSTMCell(module.features, **functions, **dtypes, parent=None)
    return same.apply({"params": module.variables["params"]}, carry, inputs)


def _dense(module: nn.Dense, inputs: Array) -> Array:
    inputs, kernel, bias = _promoted(module, inputs)
    narrow = _parameter(module, "kernel")
    if not isinstance(kernel, LowRankKernel) and jnp.promote_types(narrow.dtype, kernel.dtype) == kernel.dtype:
        kernel = narrow  # half-precision weights are read as they are: widening them is exact, wherever it is done
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


def _has_parameters(module: Any, kernel_shape: tuple[int, ...]) -> bool:
    """Whether the parameters are as flax would demand them; if not, flax itself explains it best."""
    expected = {"kernel": kernel_shape} | ({"bias": (module.features,)} if module.use_bias else {})
    return all(
        module.has_variable("params", name) and np.shape(_parameter(module, name)) == shape
        for name, shape in expected.items()
    )


def _fits_dense(module: Any, inputs: Any) -> bool:
    return jnp.ndim(inputs) >= 1 and _has_parameters(module, (jnp.shape(inputs)[-1], module.features))


def _fits_conv(module: Any, inputs: Any) -> bool:
    size = module.kernel_size
    options = (module.mask, module.precision, module.conv_general_dilated, module.conv_general_dilated_cls)
    return (
        not isinstance(size, int)
        and len(size) == 2
        and jnp.ndim(inputs) >= 3
        and _padding(module.padding) is not None
        and _pair(module.input_dilation) == _pair(module.kernel_dilation) == (1, 1)
        and module.feature_group_count == 1
        and all(option is None for option in options)
        and _has_parameters(module, (*size, jnp.shape(inputs)[-1], module.features))
    )


def _pair(value: Any) -> tuple[int, ...]:
    """Flax's one number, None (for 1) or sequence, as a tuple of two."""
    if value is None or isinstance(value, int):
        return (value or 1,) * 2
    return tuple(value)


def _padding(padding: Any) -> Any:
    """Flax's padding as `ops.conv` takes it, or None if it is of a kind that `ops.conv` does not know."""
    padding = canonicalize_padding(padding, 2)
    if isinstance(padding, str):
        return padding if padding in ("SAME", "VALID", "SAME_LOWER") else None
    return tuple(padding) if min(map(min, padding)) >= 0 else None
