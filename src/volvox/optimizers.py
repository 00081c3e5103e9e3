"""Optimisers by name, and what is asked of them."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax


def described(given: Any) -> Any:
    """What a configuration says of an optimiser: its name, what its `config` says if it has one, or "given"."""
    return given if isinstance(given, str) else getattr(given, "config", "given")


def gradient_transformation(
    given: Any,
    learning_rate: Any,
    options: Mapping[str, Any],
    max_gradient_norm: float | None = None,
    *,
    like: Any = None,
) -> optax.GradientTransformation:
    """Makes an optimiser.

    Args:
      given: a name in `optax`, such as "adam", or an `optax.GradientTransformation`, which is returned as it is.
      learning_rate: of an optimiser given by name: a number, or a function of the updates made.
      options: further arguments of an optimiser given by name.
      max_gradient_norm: global norm to which gradients are clipped before; None leaves them.
      like: shapes of parameters that it must be able to begin with; None: of some vector.

    Returns:
      The optimiser.

    Raises:
      ValueError: `given` is no optimiser, does not take the options, or draws random numbers (its key could not be
        saved); a norm that is not positive.
    """
    named = f"optax.{given}" if isinstance(given, str) else repr(given)
    if isinstance(given, str):
        try:
            given = getattr(optax, given)(learning_rate, **options)
        except (AttributeError, TypeError) as error:
            raise ValueError(
                f"{named} is no optimiser, or does not take {dict(options)}; take e.g. 'rmsprop' or 'adam': {error}"
            ) from error
    elif options:
        raise ValueError(f"optimizer_options={dict(options)} are for an optimiser given by name; this one is made.")
    if not isinstance(given, optax.GradientTransformation):
        raise ValueError(f"{named} makes no optax.GradientTransformation; take e.g. 'rmsprop' or 'adam'.")
    state = jax.eval_shape(given.init, {"w": jnp.zeros(2)} if like is None else like)
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)):
        raise ValueError(f"{named} draws random numbers, and its key cannot be saved; take another optimiser.")
    if max_gradient_norm is None:
        return given
    if not max_gradient_norm > 0:
        raise ValueError(f"max_gradient_norm={max_gradient_norm}: give a positive number, or None.")
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), given)
