"""Heterogeneous matmul: each block of rows is multiplied with its own kernel.

`matmul` names the kernels by index. `dense` is the ordinary product of rows and one kernel, and becomes a heterogeneous
matmul under `vmap` over kernels. Both support reverse mode and any nesting of `vmap`, but not forward mode (`jax.jvp`).

Example:
  >>> x, kernels = jnp.ones((8, 1, 7744)), jnp.ones((8, 7744, 512))
  >>> out = jax.vmap(dense)(x, kernels)  # [8, 1, 512]
  >>> out = matmul(x, kernels[:2], jnp.array([0, 0, 1, 1, 0, 1, 0, 1]))  # [8, 1, 512] of two kernels
"""

import math
from functools import partial

import chex
import jax
import jax.numpy as jnp

from volvox.ops.batching import over_weights, per_index, per_weights
from volvox.ops.matmul_mosaic import capability, matmul_mosaic, plan
from volvox.ops.matmul_xla import matmul_xla
from volvox.types import Array


def implementations(x: Array, w: Array, index: Array | None = None) -> tuple[str, ...]:
    """Returns the names of the implementations for these operands on this machine, the preferred one first.

    "mosaic" is the kernel of `matmul_mosaic`, for rows that name their kernels on a GPU; "xla" runs everywhere.
    """
    return ("mosaic", "xla") if plan(x, w, index, on=capability()) else ("xla",)


def matmul(x: Array, w: Array, index: Array | None = None, *, implementation: str | None = None) -> Array:
    """Computes the heterogeneous matmul `out[b] = x[b] @ w[index[b]]`.

    It is differentiable in `x` and `w`; the gradients of a kernel that is used several times add up.

    Args:
      x: `[B, M, K]`.
      w: `[P, K, N]`.
      index: `int32 [B]`, each in `[0, P)`, in any order and with repetitions; None is the identity, for which
        `P == B` must hold, and nothing is gathered.
      implementation: One of `implementations(x, w, index)`; None is the preferred one.

    Returns:
      `[B, M, N]` of the promoted dtype.

    Raises:
      AssertionError: The shapes do not fit.
      ValueError: The implementation is not available for them.
    """
    chex.assert_shape(w, (x.shape[0] if index is None else None, x.shape[2], None))
    if index is not None:
        chex.assert_shape(index, x.shape[:1])
    return _matmul(x, w, index, implementation)


def dense(x: Array, kernel: Array) -> Array:
    """Computes `x @ kernel`; a heterogeneous matmul under `vmap` over kernels.

    Args:
      x: `[..., K]`.
      kernel: `[K, N]`.

    Returns:
      `[..., N]` of the promoted dtype.
    """
    chex.assert_shape(kernel, (x.shape[-1], None))
    out = _dense(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), kernel)
    return out.reshape(*x.shape[:-1], kernel.shape[-1])


def served(x: Array, w: Array, index: Array | None = None, *, implementation: str | None = None) -> Array:
    """Computes `matmul` without gradients or batching rules; arguments are those of `matmul`.

    Raises:
      ValueError: The implementation is not available for these operands, which `vmap` may have made larger.
    """
    available = implementations(x, w, index)
    if implementation not in (None, *available):
        raise ValueError(f"{implementation=} cannot multiply {x.shape} by {w.shape} here; available: {available}")
    how = plan(x, w, index, on=capability())
    if index is None or how is None or implementation == "xla":
        return matmul_xla(x, w, index)
    return jax.lax.platform_dependent(x, w, index, cuda=partial(matmul_mosaic, how=how), default=matmul_xla)


def product_gradients(x: Array, w: Array, g: Array) -> tuple[Array, Array]:
    """Computes the gradients of `x @ w`, x `[..., M, K]` and w `[..., K, N]`, for g `[..., M, N]`.

    Returns:
      (as x, as w), at least float32: sums of half-precision products are not yet rounded.
    """
    single = jnp.promote_types(g.dtype, jnp.float32)
    dx = jnp.einsum("...mn,...kn->...mk", g, w, preferred_element_type=single)
    return dx, jnp.einsum("...mk,...mn->...kn", x, g, preferred_element_type=single)


# Reverse mode through `custom_vmap` raises, so `custom_vjp` is outermost. Gradients are plain products, which `vmap`
# and further differentiation treat as ordinary operations.


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
        single = jnp.promote_types(g.dtype, jnp.float32)  # half precision is summed in float32
        # Neither gradient forms a kernel for each block, because there may be many more blocks than kernels.
        same = "xla" if implementation == "xla" else None
        dx = matmul(g, jnp.swapaxes(w, 1, 2), index, implementation=same)

        def add(dw: Array, block: tuple[Array, Array, Array]) -> tuple[Array, None]:
            x, g, i = block
            return dw.at[i].add(jnp.einsum("mk,mn->kn", x, g, preferred_element_type=single)), None

        dw, _ = jax.lax.scan(add, jnp.zeros(w.shape, single), (x, g, index))
    return dx.astype(x.dtype), dw.astype(w.dtype), None


_matmul.defvjp(_matmul_forward, _matmul_backward)
