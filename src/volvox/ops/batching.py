"""`vmap` rules of operations that apply weights to rows.

A policy is written for one network, and a population is `vmap` over its parameters. JAX's own rules turn a matmul into
a batched one and a convolution into a grouped one, which XLA computes slowly on CPU: large DeepGA networks take 3 times
as long as with these kernels, which need the axis of the networks as an argument of one call. `custom_vmap` is the
public way to replace a batching rule without rewriting the network. The rules below keep an operation one call under
any nesting of `vmap`. `custom_vmap` has no reverse mode, so callers wrap the result in `jax.custom_vjp`.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from volvox.types import Array

Operation = Callable[[Array, Array], Array]


def over_weights(one: Operation, many: Operation) -> Operation:
    """Replaces `one(x, w)` by `many(xs, ws)` under `vmap` over the weights.

    Under `vmap` over rows alone, it stays `one`, with more rows. Any nesting of `vmap` works.

    Args:
      one: (x `[M, ...]`, w `[...]`) -> `[M, ...]`: independent rows through one set of weights.
      many: (x `[P, M, ...]`, w `[P, ...]`) -> `[P, M, ...]`: the same for `P` sets of weights.

    Returns:
      `one`, with that batching rule.
    """
    # The lambdas hide further parameters of the functions, whose defaults `custom_vmap` would pass on.
    one_op = custom_vmap(lambda x, w: one(x, w))
    many_op = custom_vmap(lambda x, w: many(x, w))

    @many_op.def_vmap
    def _many_rule(axis_size, in_batched, x, w):
        x_batched, w_batched = in_batched
        if w_batched:
            x = _repeat(x, x_batched, axis_size)
            return _unfold(many_op(_fold(x), _fold(w)), axis_size), True
        return _more_rows(many_op, x, w), True

    @one_op.def_vmap
    def _one_rule(axis_size, in_batched, x, w):
        x_batched, w_batched = in_batched
        if w_batched:
            return many_op(_repeat(x, x_batched, axis_size), w), True
        return _unfold(one_op(_fold(x), w), axis_size), True

    return one_op


def per_index(many: Callable[..., Array]) -> Callable[..., Array]:
    """Keeps `many`, whose rows name their weights by index, one call under any nesting of `vmap`.

    If only the rows are batched, they become more rows of the same weights. Batched indices lengthen the leading axis,
    and batched weights are concatenated.

    Args:
      many: (x `[B, M, ...]`, w `[P, ...]`, index `[B]`, `*rest`, each `[B, ...]`) -> `[B, M, ...]`.

    Returns:
      `many`, with that batching rule.
    """
    op = custom_vmap(lambda x, w, index, *rest: many(x, w, index, *rest))

    @op.def_vmap
    def _rule(axis_size, in_batched, x, w, index, *rest):
        x_batched, w_batched, index_batched, *rest_batched = in_batched
        if not (w_batched or index_batched or any(rest_batched)):
            return _more_rows(op, x, w, index, *rest), True
        x, index = _repeat(x, x_batched, axis_size), _repeat(index.astype(jnp.int32), index_batched, axis_size)
        rest = [_repeat(y, batched, axis_size) for y, batched in zip(rest, rest_batched, strict=True)]
        if w_batched:  # the weights of element v come after those of the elements before it
            index = index + jnp.arange(axis_size, dtype=index.dtype)[:, None] * w.shape[1]
            w = _fold(w)
        return _unfold(op(_fold(x), w, _fold(index), *map(_fold, rest)), axis_size), True

    return op


def _fold(x: Array) -> Array:
    """Merges the two leading axes."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _unfold(x: Array, size: int) -> Array:
    """Splits the leading axis in two, the first of length `size`."""
    return x.reshape(size, x.shape[0] // size, *x.shape[1:])


def _repeat(x: Array, batched: bool, size: int) -> Array:
    """Returns `x` itself if it is batched, otherwise `size` copies of it along a new leading axis."""
    return x if batched else jnp.broadcast_to(x, (size, *x.shape))


def _more_rows(op: Callable[..., Array], x: Array, *rest: Array) -> Array:
    """Applies `op(x, *rest)`, x `[P, M, ...]`, to x `[V, P, M, ...]` with the same `rest`, as V * M rows."""
    v, p, m = x.shape[:3]
    out = op(jnp.moveaxis(x, 0, 1).reshape(p, v * m, *x.shape[3:]), *rest)
    return jnp.moveaxis(out.reshape(p, v, m, *out.shape[2:]), 1, 0)


@custom_vmap
def min_over_rows(x: Array) -> Array:
    """Returns integers or booleans `x`; under `vmap` the smallest of all rows, without their axis.

    A loop or `lax.cond` that depends on a batched number runs for every row and selects afterwards. If it depends on
    the result of this function, it stays as it is. Use it for counts that are equal in all rows.
    """
    return x


@min_over_rows.def_vmap
def _(axis_size, in_batched, x):
    return (min_over_rows(x.min(axis=0)) if in_batched[0] else x), False  # nested `vmap`s call this rule again


def where_rows(mask: Array, x: Any, y: Any) -> Any:
    """Takes rows of `x` where `mask` holds, and of `y` elsewhere.

    Args:
      mask: `bool [B]`.
      x: Pytree like `y`; its leaves may lack the axis B, or have length 1 along it.
      y: Pytree with leaves `[B, ...]`.

    Returns:
      A pytree like `y`.
    """
    chex.assert_rank(mask, 1)
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(-1, *[1] * (b.ndim - 1)), a, b), x, y)
