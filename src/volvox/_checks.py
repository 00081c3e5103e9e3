"""Checks of arguments that several packages share."""

import importlib
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

INT32 = 2**31 - 1
"""The largest int32, and so the largest count on a device."""
_LARGEST = float(np.finfo(np.float32).max)


def integer(name: str, value: object, *, low: int, high: int | None = INT32) -> int:
    """Returns `value` as an int of at least `low` and of at most `high`, where None sets no limit.

    Raises:
        ValueError: `value` is not an integer, or out of that range.
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
    """Returns `value` as an int of at least 1. None stays None, and a whole float such as 1e6 is allowed.

    Raises:
        ValueError: `value` has another type or is below 1.
    """
    if value is None:
        return None
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    return integer(name, value, low=1, high=None)


def typed_key(key: Any) -> jax.Array:
    """Returns the `jax.random.key` of a seed or of raw key data; returns a key unchanged.

    Raises:
        ValueError: The seed does not fit into 32 bits; JAX would drop the others.
        TypeError: `key` is neither an integer nor a key.
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
        ValueError: `value` is not a number, or out of that range.
    """
    known: Any = value if isinstance(value, int | float | np.number) and not isinstance(value, bool) else math.nan
    if abs(known) <= _LARGEST and low <= known <= high and known > above:
        return float(known)
    limits = ((low, "at least"), (above, "above"), (high, "at most"))
    texts = [f"{text} {limit:g}" for limit, text in limits if math.isfinite(limit)]
    raise ValueError(f"{name}={value!r}: give a finite number {' and '.join(texts)}")


def integers(settings: object, *names: str, low: int, high: int | None = INT32) -> None:
    """Checks fields of settings with `integer`; None is allowed where the annotation allows it."""
    for name in names:
        value = getattr(settings, name)
        if value is not None or not _allows(settings, name, NoneType):
            integer(name, value, low=low, high=high)


def numbers(settings: object, *names: str, **limits: float) -> None:
    """Checks fields of settings with `number`; None and functions are allowed where the annotation allows them."""
    for name in names:
        value = getattr(settings, name)
        if value is None and _allows(settings, name, NoneType):
            continue
        if callable(value) and _allows(settings, name, Callable):
            continue
        number(name, value, **limits)


def _allows(settings: object, name: str, kind: Any) -> bool:
    hint = get_type_hints(type(settings)).get(name)
    return hint is None or any(kind in (x, get_origin(x)) for x in get_args(hint))


def check_type(name: str, value: Any, wanted: type | tuple[type, ...], example: str) -> None:
    """Raises TypeError unless `value` is an instance of `wanted`.

    Args:
        name: Name of the argument.
        value: The argument.
        wanted: The class or classes that are allowed.
        example: How to make an allowed value, for the message.
    """
    if not isinstance(value, wanted):
        raise TypeError(f"{name} must be made with {example}; got {_describe(value)}")


def check_has(name: str, value: Any, attributes: Iterable[str], example: str) -> None:
    """Raises TypeError if `value` lacks one of the attributes, or is a class instead of an instance."""
    missing = [attribute for attribute in attributes if not hasattr(value, attribute)]
    if missing or isinstance(value, type):
        lacks = f", which has no {missing[0]!r}" if missing else ""
        raise TypeError(f"{name} must be {example}; got {_describe(value)}{lacks}")


def _describe(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def import_extra(module: str, extra: str) -> Any:
    """Imports a module of an optional dependency; raises ImportError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{module} is needed ({error}): pip install 'volvox-rl[{extra}]'") from error


def size_of(tree: Any) -> int:
    """Returns the bytes of a tree's arrays, or of arrays of such shapes (`jax.ShapeDtypeStruct`)."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def check_memory(parts: Mapping[str, int], remedy: str, *, each: tuple[str, int, int] | None = None) -> None:
    """Checks that arrays fit into the free memory of the device, or of the machine if JAX computes on the CPU.

    Args:
        parts: Bytes by the name of the arrays.
        remedy: How to use less memory, for the message.
        each: (plural, number, bytes) of equal things among the arrays, such as slots; the message says how many fit.

    Raises:
        ValueError: The arrays do not fit.
    """
    free, needed = _free_memory(), sum(parts.values())
    if free is not None and needed > free:
        sizes, fits = ", ".join(f"{name} {size / 1e9:.2g} GB" for name, size in parts.items() if size), ""
        if each is not None:
            things, number, size = each
            fits = f", enough for {max(0, (free - needed + number * size) // size):,} {things}"
        raise ValueError(
            f"{needed / 1e9:.2g} GB of memory are needed ({sizes}), {free / 1e9:.2g} GB are free{fits}; {remedy}"
        )


def _free_memory() -> int | None:
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), None)
