"""Order and rounding that a compiler does not undo.

XLA compiles pure programs, so it may reorder side-effecting calls that do not depend on each other, and contract
`a + b * c` into one rounding. Both change results here: envpool's calls must alternate, and the parameters of a member
must have the same bits in every program that decodes them. `lax.optimization_barrier` prevents neither, because XLA
drops barriers before it schedules and fuses. The functions below therefore use a *runtime zero*: an int32 scalar that
is always 0, but is an argument of the compiled function, so that the compiler cannot know its value. Adding it makes a
true data dependence. `tests/ops/test_order.py` checks the optimised program.
"""

from typing import Any

import jax
import jax.numpy as jnp


def after(x: Any, y: Any, zero: jax.Array, *, required: bool = True) -> Any:
    """Returns `x` unchanged, but computed only after `y`.

    Adds `bits(y) & zero` to every integer scalar of `x`. One element of each leaf of `y` is read.

    Example:
      >>> counter = after(counter, observation, zero)  # users of the counter wait for the observation

    Args:
      x: Pytree. Its integer scalars and uint8 vectors (loop counters, pool tokens) carry the dependence; other leaves
        pass through untouched, so that large arrays are not copied.
      y: Pytree of arrays; empty leaves are skipped.
      zero: The runtime zero, int32 scalar.
      required: Whether `x` must have a leaf that carries the dependence.

    Returns:
      A pytree equal to `x`.

    Raises:
      ValueError: No leaf of `x` can carry the order, and it is required.
    """
    bits = jnp.int32(0)
    for leaf in jax.tree.leaves(y):
        if leaf.size:
            bits = bits ^ _first_element_bits(leaf)
    dependence = bits & zero

    def carries(leaf: jax.Array) -> bool:
        is_counter = leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jnp.integer)
        return is_counter or (leaf.ndim == 1 and leaf.dtype == jnp.uint8)

    if required and not any(map(carries, jax.tree.leaves(x))):
        raise ValueError("after(x, y): x has no integer scalar and no uint8 vector to carry the order; add a counter")
    return jax.tree.map(lambda leaf: leaf + dependence.astype(leaf.dtype) if carries(leaf) else leaf, x)


def _first_element_bits(x: jax.Array) -> jax.Array:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    element = x[(0,) * x.ndim]
    if jnp.issubdtype(element.dtype, jnp.inexact):
        element = jax.lax.bitcast_convert_type(element, f"uint{8 * element.dtype.itemsize}")
    return element.astype(jnp.int32)


def rounded(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Rounds `x` to its dtype at this place, so that a product is not contracted into a multiply-add.

    `a + rounded(b * c, zero)` has the same bits eagerly, inside any fusion, and in NumPy.

    Args:
      x: Floating-point array.
      zero: The runtime zero, int32 scalar.

    Returns:
      `x`, the same bits.
    """
    bits = jax.lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(bits ^ zero.astype(bits.dtype), x.dtype)
