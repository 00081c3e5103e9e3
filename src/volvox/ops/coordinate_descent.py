"""The Lasso by cyclic coordinate descent, compiled; it stops at a duality gap."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from volvox.types import Array


class LassoResult(NamedTuple):
    """What coordinate descent has found.

    Attributes:
      weights: float32 `[d]`.
      gap: float32: The objective is at most so far above its minimum.
      passes: int32: Passes over the coordinates.
    """

    weights: Array
    gap: Array
    passes: Array


def lasso(
    features: Array,
    targets: Array,
    penalty: Array | float,
    *,
    tolerance: float = 1e-4,
    max_passes: int = 1_000,
) -> LassoResult:
    """Minimises `||y - X w||² / (2 n) + penalty ||w||_1` over w `[d]`, without an intercept.

    Each coordinate in turn moves to where it is best while the others stay: `w_j = S(x_jᵀ r_j / n) / (||x_j||² / n)`,
    with r_j the residual without feature j and S the soft threshold at `penalty` (Friedman, Hastie & Tibshirani 2010,
    "Regularization Paths for Generalized Linear Models via Coordinate Descent", section 2). A pass leaves out those
    that would stay at 0 when it begins, which are nearly all where d is large. A column of zeros keeps the weight 0.

    Example:
      >>> found = lasso(features, targets, penalty=0.1)  # [n, d] and [n]
      >>> active = jnp.flatnonzero(found.weights)

    Args:
      features: `[n, d]`, X; d may be far larger than n.
      targets: `[n]`, y.
      penalty: Weight of the L1 norm, at least 0.
      tolerance: It ends where the duality gap is at most this share of `||y||² / (2 n)`, the objective of w = 0.
      max_passes: It ends here in any case.

    Returns:
      `LassoResult`.
    """
    chex.assert_rank([features, targets], [2, 1])
    chex.assert_equal_shape_prefix([features, targets], 1)
    n = targets.shape[0]
    features, targets = (
        jnp.asarray(x, jnp.promote_types(jnp.result_type(x), jnp.float32)) for x in (features, targets)
    )
    columns = features.T  # so that a coordinate is one contiguous row
    squares = (columns**2).sum(axis=1) / n
    null = (targets**2).sum() / (2 * n)

    def move(j: Array, weights: Array, residual: Array) -> tuple[Array, Array]:
        column, old = columns[j], weights[j]
        correlation = column @ residual / n + squares[j] * old
        shrunk = jnp.sign(correlation) * jnp.maximum(jnp.abs(correlation) - penalty, 0.0)
        new = jnp.where(squares[j] > 0, shrunk / squares[j], 0.0)
        return weights.at[j].set(new), residual + (old - new) * column

    def gap_of(weights: Array, residual: Array, correlation: Array) -> Array:
        """Primal objective minus that of the dual point to which the residual is scaled."""
        scale = jnp.minimum(1.0, penalty / jnp.maximum(jnp.abs(correlation).max(), 1e-30))
        primal = (residual**2).sum() / (2 * n) + penalty * jnp.abs(weights).sum()
        return primal - null + ((targets - scale * residual) ** 2).sum() / (2 * n)

    def state_of(weights: Array, residual: Array, passes: Array) -> tuple[Array, ...]:
        correlation = columns @ residual / n
        return weights, residual, correlation, gap_of(weights, residual, correlation), passes

    def unfinished(state: tuple[Array, ...]) -> Array:
        _, _, _, gap, passes = state
        return (gap > tolerance * null) & (passes < max_passes)

    def one_pass(state: tuple[Array, ...]) -> tuple[Array, ...]:
        weights, residual, correlation, _, passes = state
        moving = (weights != 0) | (jnp.abs(correlation) > penalty)
        (places,) = jnp.nonzero(moving, size=moving.size)
        weights, residual = jax.lax.fori_loop(0, moving.sum(), lambda i, x: move(places[i], *x), (weights, residual))
        return state_of(weights, residual, passes + 1)

    start = jnp.zeros(columns.shape[0], jnp.result_type(columns, targets))
    weights, _, _, gap, passes = jax.lax.while_loop(unfinished, one_pass, state_of(start, targets, jnp.int32(0)))
    return LassoResult(weights, gap, passes)
