"""Checks shared by all parts: one clear `ValueError` for each mistake, raised before anything is made."""

import math
import operator
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Optimizer = optax.GradientTransformation | Callable[..., optax.GradientTransformation]
"""What settings hold: a function of the learning rate, such as `optax.adam`, or a ready-made transformation."""


INT32 = 2**31 - 1
"""The largest int32: what is counted on the device cannot be more."""
_LARGEST = float(np.finfo(np.float32).max)


def integer(name: str, value: object, *, low: int, high: int | None = INT32) -> int:
    """Returns `value` as an int of at least `low` and of at most `high`, where None sets no limit.

    Raises:
        ValueError: `value` is no integer, or it is out of that range; the message names both.
    """
    try:
        number = operator.index(value)  # pyright: ignore[reportArgumentType]  # the TypeError is the check
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < low:
        raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")
    if high is not None and number > high:
        raise ValueError(f"{name} must be an integer of at most {high}, got {value!r}")
    return number


def count(name: str, value: object) -> int | None:
    """Returns `value` as an int of at least 1. None stays None, and a float without a fraction will do, such as 1e6.

    Raises:
        ValueError: `value` is something else.
    """
    if value is None:
        return None
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    return integer(name, value, low=1, high=None)


def typed_key(key: Any) -> jax.Array:
    """Returns the `jax.random.key` of a seed, of raw key data, or of a key, which is returned as it is.

    Raises:
        ValueError: The seed has more than 32 bits, of which JAX would drop some.
        TypeError: Something else.
    """
    if isinstance(key, int | np.integer):
        if not -(2**31) <= key < 2**31:
            raise ValueError(f"seed={key}: give an integer from {-(2**31)} to {2**31 - 1}, or a key")
        return jax.random.key(key)
    if not hasattr(key, "dtype") or jnp.issubdtype(key.dtype, jnp.floating):
        raise TypeError(f"give an integer as the seed, or a key of jax.random; got {key!r}")
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def number(
    name: str, value: object, *, low: float = -math.inf, above: float = -math.inf, high: float = math.inf
) -> float:
    """Returns `value` as a finite float of at least `low`, above `above`, and of at most `high`.

    Raises:
        ValueError: `value` is no number, or it is out of that range; the message names both.
    """
    known: Any = value if isinstance(value, int | float | np.number) and not isinstance(value, bool) else math.nan
    given = float(known) if abs(known) <= _LARGEST else math.nan
    if math.isfinite(given) and low <= given <= high and given > above:
        return given
    wanted = f"number from {low:g} to {high:g}" if high < math.inf else f"finite number of at least {low:g}"
    if above > -math.inf:
        wanted = f"number above {above:g}, up to {high:g}" if high < math.inf else f"finite number above {above:g}"
    raise ValueError(f"{name}={value!r}: give a {wanted}.")


def integers(settings: object, *names: str, low: int, high: int | None = INT32) -> None:
    """Checks fields of settings with `integer`; None is accepted if the type of a field includes it."""
    for name in names:
        if (value := getattr(settings, name)) is not None or not _optional(settings, name):
            integer(name, value, low=low, high=high)


def numbers(settings: object, *names: str, **limits: float) -> None:
    """Checks fields of settings with `number`; skips functions, and None if the type of a field includes it."""
    for name in names:
        value = getattr(settings, name)
        if not callable(value) and (value is not None or not _optional(settings, name)):
            number(name, value, **limits)


def _optional(settings: Any, name: str) -> bool:
    """Whether the type of a field includes None; True for objects that are no dataclasses."""
    fields = {field.name: field.type for field in getattr(settings, "__dataclass_fields__", {}).values()}
    return name not in fields or type(None) in typing.get_args(fields[name])


def check_type(name: str, value: Any, wanted: type | tuple[type, ...], example: str) -> None:
    """Raises TypeError unless `value` is an instance of `wanted`.

    Args:
        name: The argument, for the message.
        value: What was given.
        wanted: The class or classes that are allowed.
        example: How to make an allowed value, for the message.
    """
    if not isinstance(value, wanted):
        given = f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__}"
        raise TypeError(f"{name} must be made with {example}; got {given}")


def check_has(name: str, value: Any, attributes: Iterable[str], example: str) -> None:
    """Raises TypeError if `value` lacks one of the attributes, or is a class instead of an instance."""
    missing = [attribute for attribute in attributes if not hasattr(value, attribute)]
    if missing or isinstance(value, type):
        given = f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__}"
        lacks = f", which has no {missing[0]!r}" if missing else ""
        raise TypeError(f"{name} must be {example}; got {given}{lacks}")


def size_of(tree: Any) -> int:
    """Returns the bytes of a tree's arrays, or of arrays of such shapes (`jax.ShapeDtypeStruct`)."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def check_memory(parts: Mapping[str, int], remedy: str) -> None:
    """Checks that arrays fit into the free memory of the device, or of the machine if that is where JAX computes.

    Args:
        parts: Bytes by the name of what needs them.
        remedy: How to need less, for the message.

    Raises:
        ValueError: They do not fit; the message has the figures.
    """
    free, needed = _free_memory(), sum(parts.values())
    if free is not None and needed > free:
        listed = ", ".join(f"{name} {size / 1e9:.2g} GB" for name, size in parts.items() if size)
        raise ValueError(
            f"{needed / 1e9:.2g} GB of memory are needed ({listed}), {free / 1e9:.2g} GB are free; {remedy}"
        )


def _free_memory() -> int | None:
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), None)
