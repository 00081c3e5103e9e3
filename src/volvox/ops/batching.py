"""Batching rules for operations that apply weights to rows: what `vmap` should make of them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

Array = jax.Array
Operation = Callable[[Array, Array], Array]


def per_weights(many: Operation) -> Operation:
    """Let `many`, whose leading axis pairs rows and weights, be vmapped any number of times and remain one call.

    Batched rows become more rows of the same weights; batched weights are folded into the leading axis, with the
    rows repeated if they are not batched.

    Reverse mode through the result raises: wrap it in `jax.custom_vjp`.

    Args:
      many: (x `[P, M, ...]`, w `[P, ...]`) -> `[P, M, ...]`: rows through each of `P` sets of weights.

    Returns:
      `many`, with that batching rule.
    """
    # `custom_vmap` would pass on any further parameters of `many` by their defaults; the rules know two.
    op = custom_vmap(lambda x, w: many(x, w))

    @op.def_vmap
    def _rule(axis_size, in_batched, x, w):
        x_batched, w_batched = in_batched
        if w_batched:
            x = repeat(x, x_batched, axis_size)
            return unfold(op(fold(x), fold(w)), axis_size), True
        return more_rows(op, x, w), True

    return op


def over_weights(one: Operation, many: Operation) -> Operation:
    """Make `one(x, w)` turn into `many(xs, ws)` where it is vmapped over the weights.

    Vmapped over the rows alone, it stays itself, with more rows. Any nesting of `vmap` works. Reverse mode through
    the result raises: wrap it in `jax.custom_vjp`.

    Args:
      one: (x `[M, ...]`, w `[...]`) -> `[M, ...]`: independent rows through one set of weights.
      many: (x `[P, M, ...]`, w `[P, ...]`) -> `[P, M, ...]`: the same for `P` sets of weights.

    Returns:
      `one`, with that batching rule.
    """
    one_op, many_op = custom_vmap(lambda x, w: one(x, w)), per_weights(many)

    @one_op.def_vmap
    def _rule(axis_size, in_batched, x, w):
        x_batched, w_batched = in_batched
        if w_batched:
            return many_op(repeat(x, x_batched, axis_size), w), True
        return unfold(one_op(fold(x), w), axis_size), True

    return one_op


def per_index(many: Callable[..., Array]) -> Callable[..., Array]:
    """Let `many`, whose rows name their weights by index, be vmapped any number of times and remain one call.

    More rows, or rows with indices of their own, lengthen the leading axis; batched weights lie one behind the other.

    Reverse mode through the result raises: wrap it in `jax.custom_vjp`.

    Args:
      many: (x `[B, M, ...]`, w `[P, ...]`, index `[B]`, *rest, each `[B, ...]`) -> `[B, M, ...]`.

    Returns:
      `many`, with that batching rule.
    """
    op = custom_vmap(lambda x, w, index, *rest: many(x, w, index, *rest))

    @op.def_vmap
    def _rule(axis_size, in_batched, x, w, index, *rest):
        x_batched, w_batched, index_batched, *rest_batched = in_batched
        if not (w_batched or index_batched or any(rest_batched)):
            return more_rows(op, x, w, index, *rest), True
        x, index = repeat(x, x_batched, axis_size), repeat(index, index_batched, axis_size)
        rest = [repeat(y, batched, axis_size) for y, batched in zip(rest, rest_batched, strict=True)]
        if w_batched:  # Element v finds its weights behind those of the elements before it.
            index = index + jnp.arange(axis_size, dtype=index.dtype)[:, None] * w.shape[1]
            w = fold(w)
        return unfold(op(fold(x), w, fold(index), *map(fold, rest)), axis_size), True

    return op


def fold(x: Array) -> Array:
    """Merge the two leading axes."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def unfold(x: Array, size: int) -> Array:
    """Split the leading axis in two, the first of length `size`."""
    return x.reshape(size, x.shape[0] // size, *x.shape[1:])


def repeat(x: Array, batched: bool, size: int) -> Array:
    """`x` itself if it is batched, otherwise `size` copies of it along a new leading axis."""
    return x if batched else jnp.broadcast_to(x, (size, *x.shape))


def more_rows(op: Callable[..., Array], x: Array, *rest: Array) -> Array:
    """Apply `op(x, *rest)`, x `[P, M, ...]`, to x `[V, P, M, ...]` where only x depends on `V`: as `V * M` rows."""
    out = op(_fold_rows(x), *rest)
    out = out.reshape(out.shape[0], x.shape[0], x.shape[2], *out.shape[2:])
    return jnp.moveaxis(out, 1, 0)


def _fold_rows(x: Array) -> Array:
    v, p, m = x.shape[:3]
    return jnp.moveaxis(x, 0, 1).reshape(p, v * m, *x.shape[3:])


def where_rows(mask: Array, x: Any, y: Any) -> Any:
    """Rows of `x` where `mask` holds, of `y` elsewhere.

    Args:
      mask: bool `[B]`.
      x: pytree like `y`; its leaves may lack rows or have one for all.
      y: pytree with leaves `[B, ...]`.

    Returns:
      A pytree like `y`.
    """
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(-1, *[1] * (b.ndim - 1)), a, b), x, y)
