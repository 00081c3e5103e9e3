"""Checks shared by all parts: one clear `ValueError` for each mistake, raised before anything is made."""

import difflib
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Optimizer = optax.GradientTransformation | Callable[..., optax.GradientTransformation]
"""What settings hold: a function of the learning rate, such as `optax.adam`, or a ready-made transformation."""


def integer(name: str, value: object, *, low: int) -> int:
    """Returns `value` as an int of at least `low`.

    Raises:
        ValueError: `value` is no integer, or it is smaller than `low`; the message names both.
    """
    try:
        number = operator.index(value)  # pyright: ignore[reportArgumentType]  # the TypeError is the check
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low:
        raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")
    return number


def group_size(num_envs: object, num_groups: object) -> int:
    """Returns the number of environments in each of `num_groups` equal groups.

    Raises:
        ValueError: a number is not a positive integer, or the groups would not be equal.
    """
    total = integer("num_envs", num_envs, low=1)
    groups = integer("groups", num_groups, low=1)
    if total % groups:
        nearest = max(total // groups, 1) * groups
        raise ValueError(
            f"num_envs must be a multiple of groups, for groups are equal: got num_envs={total} and groups={groups}; "
            f"use num_envs={nearest} or num_envs={nearest + groups}, or another number of groups"
        )
    return total // groups


def nearest(value: str, names: Iterable[str]) -> str:
    """Returns an ending for a message about an unknown name: `; the nearest are 'Pong', 'Pooyan'`, or nothing."""
    folded = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(value.lower(), folded, n=3, cutoff=0.5)
    return f"; the nearest are {', '.join(repr(folded[match]) for match in matches)}" if matches else ""


def number(
    name: str, value: object, *, low: float = -math.inf, above: float = -math.inf, high: float = math.inf
) -> float:
    """Returns `value` as a finite float of at least `low`, above `above`, and of at most `high`.

    Raises:
        ValueError: `value` is no number, or it is out of that range; the message names both.
    """
    given = float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else math.nan
    if math.isfinite(given) and low <= given <= high and given > above:
        return given
    wanted = f"number from {low:g} to {high:g}" if high < math.inf else f"finite number of at least {low:g}"
    if above > -math.inf:
        wanted = f"number above {above:g}, up to {high:g}" if high < math.inf else f"finite number above {above:g}"
    raise ValueError(f"{name}={value!r}: give a {wanted}.")


def integers(settings: object, *names: str, low: int) -> None:
    """Checks fields of settings with `integer`; those that are None are not looked at."""
    for name in names:
        if (value := getattr(settings, name)) is not None:
            integer(name, value, low=low)


def numbers(settings: object, *names: str, **limits: float) -> None:
    """Checks fields of settings with `number`; those that are None or functions are not looked at."""
    for name in names:
        if (value := getattr(settings, name)) is not None and not callable(value):
            number(name, value, **limits)


def gradient_transformation(
    optimizer: Optimizer, learning_rate: Any, max_gradient_norm: float | None = None
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimiser that settings describe.

    Args:
        optimizer: a function of the learning rate, such as `optax.adam`, or a ready-made transformation.
        learning_rate: for the former a number or a schedule; None for the latter, which brings its own.
        max_gradient_norm: global norm to which gradients are clipped before; None leaves them.

    Raises:
        ValueError: only one of both says the learning rate, or the function makes no transformation.
    """
    if callable(optimizer) and learning_rate is None:
        raise ValueError(f"learning_rate=None: {optimizer!r} is a function of the learning rate; give one.")
    made = optimizer(learning_rate) if callable(optimizer) else optimizer
    if not isinstance(made, optax.GradientTransformation):
        raise ValueError(f"{optimizer=}: give an optax.GradientTransformation, or a function such as optax.adam.")
    if made is optimizer and learning_rate is not None:
        raise ValueError(f"{learning_rate=}: a ready-made optimizer brings its own; take learning_rate=None.")
    if max_gradient_norm is not None:
        made = optax.chain(optax.clip_by_global_norm(max_gradient_norm), made)
    return optax.with_extra_args_support(made)


def leaves(tree: Any) -> dict[tuple[str, ...], Any]:
    """Leaves by their places: `("opt", "0", "mu")`, be `mu` the field of a NamedTuple or the key of a dict."""
    flat = jax.tree.leaves_with_path(tree)
    return {tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path): leaf for path, leaf in flat}


def is_key(leaf: Any) -> bool:
    """Whether a leaf holds typed PRNG keys, or is the shape of such an array."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def restored(saved: Any, like: Any, *, what: str) -> Any:
    """Gives a tree that was read from a checkpoint the structure it was saved with.

    Args:
      saved: the tree as `volvox.checkpoint.restore` returns it without `like`.
      like: a tree of the wanted structure: of arrays and numbers, or of shapes (`jax.ShapeDtypeStruct`).
      what: the tree belongs to, as the message calls it.

    Returns:
      The tree, of device arrays. Python numbers, and 64-bit arrays that JAX would cut to 32 bits, stay as they are.

    Raises:
      ValueError: `saved` is of another tree; the message names the first difference.
    """
    has, wanted = leaves(saved), leaves(like)
    for place in dict.fromkeys([*has, *wanted]):
        found, needed = (_describe(tree[place]) if place in tree else "nothing" for tree in (has, wanted))
        if found != needed:
            at = repr("/".join(place)) if place else "its root"
            raise ValueError(f"the checkpoint is of another {what}: at {at} it holds {found}, and this one {needed}")
    return jax.tree.unflatten(jax.tree.structure(like), [_on_device(has[place]) for place in wanted])


def _describe(leaf: Any) -> str:
    """Shape and dtype as JAX would hold them, so that a Python number is like an array of no dimensions."""
    if isinstance(leaf, str):
        return "a string"
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.dtype(type(leaf))
    return f"{np.shape(leaf)} {dtype if is_key(leaf) else jax.dtypes.canonicalize_dtype(dtype)}"


def _on_device(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray) and jax.dtypes.canonicalize_dtype(leaf.dtype) == leaf.dtype:
        return jnp.asarray(leaf)
    return leaf
