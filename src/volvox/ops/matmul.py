"""Heterogeneous matmul: each block of rows is multiplied with its own kernel.

`matmul` names the kernels by index. `dense` is the ordinary product of rows and one kernel, and becomes a heterogeneous
matmul under `vmap` over kernels. Reverse mode and any nesting of `vmap` work for both; forward mode (`jax.jvp`) does
not.

Example:
  >>> x, kernels = jnp.ones((8, 1, 7744)), jnp.ones((8, 7744, 512))
  >>> out = jax.vmap(dense)(x, kernels)  # [8, 1, 512]
  >>> out = matmul(x, kernels[:2], jnp.array([0, 0, 1, 1, 0, 1, 0, 1]))  # [8, 1, 512] of two kernels
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from volvox.ops.batching import over_weights, per_index, per_weights
from volvox.ops.matmul_mosaic import capability, matmul_mosaic, plan
from volvox.ops.matmul_xla import matmul_xla

Array = jax.Array


def implementations(x: Array, w: Array, index: Array | None = None) -> tuple[str, ...]:
    """Returns the names of the implementations that can serve these operands here, the preferred one first.

    "mosaic" are the kernels of `matmul_mosaic`, for GPUs; "xla" serves everything everywhere.
    """
    return ("mosaic", "xla") if plan(x, w, index, on=capability()) else ("xla",)


def matmul(x: Array, w: Array, index: Array | None = None, *, implementation: str | None = None) -> Array:
    """Computes the heterogeneous matmul `out[b] = x[b] @ w[index[b]]`.

    It is differentiable in `x` and `w`; the gradients of a kernel that is used several times add up.

    Args:
      x: `[B, M, K]`.
      w: `[P, K, N]`.
      index: int32 `[B]`, each in `[0, P)`, in any order and with repetitions; None is the identity, for which
        `P == B` must hold, and nothing is gathered.
      implementation: one of `implementations(x, w, index)` to use; None takes the preferred one.

    Returns:
      `[B, M, N]` of the promoted dtype.

    Raises:
      ValueError: the shapes do not fit, or the implementation is unknown or cannot serve them.
      TypeError: `index` does not hold integers.
    """
    if x.ndim != 3 or w.ndim != 3 or x.shape[2] != w.shape[1]:
        raise ValueError(f"matmul needs x [B, M, K] and w [P, K, N]; got {x.shape} and {w.shape}.")
    if index is None:
        if x.shape[0] != w.shape[0]:
            raise ValueError(f"Without an index there must be one kernel a row block; got {x.shape} and {w.shape}.")
    elif index.shape != x.shape[:1]:
        raise ValueError(f"index must have shape {x.shape[:1]}, one entry a row block; got {index.shape}.")
    elif not jnp.issubdtype(index.dtype, jnp.integer):
        raise TypeError(f"index must hold integers; got {index.dtype}.")
    available = implementations(x, w, index)
    if implementation not in (None, "mosaic", "xla"):
        raise ValueError(f"Implementation {implementation!r} is unknown; there are mosaic and xla.")
    if implementation is not None and implementation not in available:
        gpu = f"of capability {capability()}" if capability() else "not here"
        raise ValueError(
            f"Implementation {implementation!r} cannot serve this product here: it takes a Hopper or Blackwell GPU "
            f"({gpu}), and shapes and dtypes as in matmul_mosaic.plan; available: {', '.join(available)}."
        )
    return _matmul(x, w, index, implementation)


def dense(x: Array, kernel: Array) -> Array:
    """Computes `x @ kernel`; a heterogeneous matmul where `vmap` gives every element its own kernel.

    Args:
      x: `[..., K]`.
      kernel: `[K, N]`.

    Returns:
      `[..., N]` of the promoted dtype.

    Raises:
      ValueError: the shapes do not fit.
    """
    if x.ndim < 1 or kernel.ndim != 2 or x.shape[-1] != kernel.shape[0]:
        raise ValueError(f"dense needs x [..., K] and a kernel [K, N]; got {x.shape} and {kernel.shape}.")
    out = _dense(x.reshape(-1, x.shape[-1]), kernel)
    return out.reshape(*x.shape[:-1], kernel.shape[-1])


def served(x: Array, w: Array, index: Array | None = None, *, implementation: str | None = None) -> Array:
    """Computes `matmul` without gradients or batching rules; arguments are those of `matmul`.

    Raises:
      ValueError: the implementation named cannot serve what `vmap` has made of the operands.
    """
    how = plan(x, w, index, on=capability())
    if how is None and implementation == "mosaic":
        raise ValueError(
            f"Implementation 'mosaic' cannot serve this product as vmap has made it, {x.shape} through {w.shape}; "
            "leave the choice to implementation=None."
        )
    if how is None or implementation == "xla":
        return matmul_xla(x, w, index)
    operands = (x, w) if index is None else (x, w, index)
    return jax.lax.platform_dependent(*operands, cuda=partial(matmul_mosaic, how=how), default=matmul_xla)


def product_gradients(x: Array, w: Array, g: Array) -> tuple[Array, Array]:
    """Computes the gradients of `x @ w`, x `[..., M, K]` and w `[..., K, N]`, for g `[..., M, N]`.

    Returns:
      (as x, as w), not yet rounded to half precision: they are float32 at least, in which half precision is summed.
    """
    single = jnp.promote_types(g.dtype, jnp.float32)
    dx = jnp.einsum("...mn,...kn->...mk", g, w, preferred_element_type=single)
    return dx, jnp.einsum("...mk,...mn->...kn", x, g, preferred_element_type=single)


# Reverse mode through `custom_vmap` raises, so `custom_vjp` is outermost. The gradients are plain products: `vmap`
# and further differentiation see ordinary operations there.


@jax.custom_vjp
def _dense(x: Array, kernel: Array) -> Array:
    return over_weights(jnp.matmul, served)(x, kernel)


def _dense_forward(x, kernel):
    return _dense(x, kernel), (x, kernel)


def _dense_backward(residuals, g):
    x, kernel = residuals
    dx, dkernel = product_gradients(x, kernel, g)
    return dx.astype(x.dtype), dkernel.astype(kernel.dtype)


_dense.defvjp(_dense_forward, _dense_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _matmul(x: Array, w: Array, index: Array | None, implementation: str | None) -> Array:
    many = partial(served, implementation=implementation)
    return per_weights(many)(x, w) if index is None else per_index(many)(x, w, index)


def _matmul_forward(x, w, index, implementation):
    return _matmul(x, w, index, implementation), (x, w, index)


def _matmul_backward(implementation, residuals, g):
    x, w, index = residuals
    if index is None:
        dx, dw = product_gradients(x, w, g)
    else:
        single = jnp.promote_types(g.dtype, jnp.float32)  # in which half precision is summed
        # Neither forms a kernel for each block: there may be many more blocks than kernels.
        same = "xla" if implementation == "xla" else None
        dx = matmul(g, jnp.swapaxes(w, 1, 2), index, implementation=same)

        def add(dw: Array, block: tuple[Array, Array, Array]) -> tuple[Array, None]:
            x, g, i = block
            return dw.at[i].add(jnp.einsum("mk,mn->kn", x, g, preferred_element_type=single)), None

        dw, _ = jax.lax.scan(add, jnp.zeros(w.shape, single), (x, g, index))
    return dx.astype(x.dtype), dw.astype(w.dtype), None


_matmul.defvjp(_matmul_forward, _matmul_backward)


class MatmulShape(NamedTuple):
    """A product of rows and a kernel.

    Attributes:
      rows: rows for each kernel.
      k: length of the contraction.
      n: columns of the kernel.
    """

    rows: int
    k: int
    n: int


class ConvShape(NamedTuple):
    """A convolution of square images with square windows.

    Attributes:
      image: height and width of an image.
      channels: channels of an image.
      size: height and width of the window.
      stride: pixels from one output to the next.
      features: channels of the output.
      padding: "SAME" or "VALID".
    """

    image: int
    channels: int
    size: int
    stride: int
    features: int
    padding: str


MATMULS = {
    "deep_ga_large_hidden": MatmulShape(1, 7744, 512),
    "deep_ga_large_output": MatmulShape(1, 512, 18),
    "deep_ga_small_hidden": MatmulShape(1, 3872, 256),
    "deep_ga_large_patches_0": MatmulShape(441, 256, 32),
    "deep_ga_large_patches_1": MatmulShape(121, 512, 64),
    "deep_ga_large_patches_2": MatmulShape(121, 576, 64),
    "mlp_hidden": MatmulShape(1, 64, 64),
    "tiles": MatmulShape(3, 96, 256),
    "half_a_tile": MatmulShape(70, 128, 48),
    "rows": MatmulShape(5, 704, 16),
    "prime": MatmulShape(1, 769, 7),
    "scalar": MatmulShape(1, 1, 1),
}
"""Dense layers, for one observation of each network unless `rows` says otherwise, and convolutions of patches."""

CONVS = {
    "deep_ga_large_0": ConvShape(84, 4, 8, 4, 32, "SAME"),
    "deep_ga_large_1": ConvShape(21, 32, 4, 2, 64, "SAME"),
    "deep_ga_large_2": ConvShape(11, 64, 3, 1, 64, "SAME"),
    "deep_ga_small_0": ConvShape(84, 4, 8, 4, 16, "SAME"),
    "deep_ga_small_1": ConvShape(21, 16, 4, 2, 32, "SAME"),
    "stride_beyond_size": ConvShape(9, 3, 2, 3, 5, "SAME"),
    "size_no_multiple_of_stride": ConvShape(20, 4, 3, 2, 5, "VALID"),
    "pixels_left_over": ConvShape(23, 3, 4, 2, 5, "VALID"),
    "pointwise": ConvShape(5, 3, 1, 1, 2, "VALID"),
}
"""Convolutions of Atari networks, and unusual ones."""
