"""Order and rounding that a compiler does not undo.

Both rest on a *runtime zero*: an int32 scalar that is always 0 but is an argument of the compiled function, so that
the compiler cannot know it.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def _first_element_bits(x: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    element = x[(0,) * x.ndim]
    if element.dtype == jnp.bool_:
        return element.astype(jnp.int32)
    if jnp.issubdtype(element.dtype, jnp.integer):
        return element.astype(jnp.int32)
    return jax.lax.bitcast_convert_type(element, _UNSIGNED[element.dtype.itemsize]).astype(jnp.int32)


def after(x: Any, y: Any, zero: jax.Array, *, required: bool = True) -> Any:
    """Returns `x` unchanged, but computed only after `y`.

    XLA reorders side-effecting calls that do not depend on each other, whatever their order in Python, and
    `lax.optimization_barrier` does not change that. This makes a true dependence: it adds `bits(y) & zero` to every
    integer scalar of `x`. One element of each leaf of `y` is read.

    Example:
      >>> counter = after(counter, observation, zero)  # what uses the counter waits for the observation

    Args:
      x: Pytree. Its integer scalars and uint8 vectors (loop counters, pool tokens) carry the dependence; other leaves
        pass through untouched, so that large arrays are not copied.
      y: Pytree of arrays with at least one element each; empty leaves are skipped.
      zero: The runtime zero, int32 scalar.
      required: False if an `x` without such a leaf has no side effects to order.

    Returns:
      A pytree equal to `x`.

    Raises:
      ValueError: The order is required and no leaf of `x` can carry it.
    """
    bits = jnp.int32(0)
    for leaf in jax.tree.leaves(y):
        if leaf.size:
            bits = bits ^ _first_element_bits(leaf)
    nothing = bits & zero
    carried = 0

    def tie(leaf):
        nonlocal carried
        scalar = leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jnp.integer)
        token = leaf.ndim == 1 and leaf.dtype == jnp.uint8
        if not (scalar or token):
            return leaf
        carried += 1
        return leaf + nothing.astype(leaf.dtype)

    tied = jax.tree.map(tie, x)
    if required and not carried:
        raise ValueError("after(x, y): x has no integer scalar and no uint8 vector to carry the order; add a counter.")
    return tied


def rounded(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Rounds `x` to float32 at this place, so that a product is not contracted into a multiply-add.

    `a + rounded(b * c, zero)` gives the same bits eagerly, inside any fusion, and in NumPy.

    Args:
      x: Float32 array.
      zero: The runtime zero, int32 scalar.

    Returns:
      `x`, the same bits.
    """
    chex.assert_type(x, jnp.float32)
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    return jax.lax.bitcast_convert_type(bits ^ zero, jnp.float32)
