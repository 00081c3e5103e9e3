"""Checks shared by all parts: one clear `ValueError` for each mistake, raised before anything is made."""

import contextlib
import difflib
import inspect
import math
import operator
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
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


def takes(name: str, function: Callable[..., Any], *arguments: str) -> None:
    """Checks that a function can be called with these positional arguments, which are named for the message.

    Raises:
        TypeError: It is no function, or it takes other arguments.
    """
    wanted = f"{name} takes a function of ({', '.join(arguments)})"
    if not callable(function):
        raise TypeError(f"{wanted}; got {function!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions of C do not say
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{wanted}; {getattr(function, '__name__', function)}{signature} is given: {error}") from error


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


def group_size(num_envs: object, num_groups: object) -> int:
    """Returns the number of environments in each of `num_groups` equal groups.

    Raises:
        ValueError: A number is not a positive integer, or the groups would not be equal.
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


def nearest(value: object, names: Iterable[str]) -> str:
    """Returns an ending for a message about an unknown name: `; did you mean 'Pong-v5' or 'Pong-v4'?`, or nothing."""
    folded = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(str(value).lower(), folded, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(folded[match]) for match in matches)}?" if matches else ""


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


def gradient_transformation(optimizer: Optimizer, learning_rate: Any) -> optax.GradientTransformationExtraArgs:
    """Returns the optimiser that settings describe.

    Args:
        optimizer: A function of the learning rate, such as `optax.adam`, or a ready-made transformation.
        learning_rate: For the former a number or a schedule; None for the latter, which brings its own.

    Raises:
        ValueError: The learning rate is given twice or not at all, or the function does not make a transformation.
    """
    if callable(optimizer) and learning_rate is None:
        raise ValueError(f"learning_rate=None: {optimizer!r} is a function of the learning rate; give one.")
    made = optimizer(learning_rate) if callable(optimizer) else optimizer
    if not isinstance(made, optax.GradientTransformation):
        raise ValueError(f"{optimizer=}: give an optax.GradientTransformation, or a function such as optax.adam.")
    if made is optimizer and learning_rate is not None:
        raise ValueError(f"{learning_rate=}: a ready-made optimizer brings its own; take learning_rate=None.")
    return optax.with_extra_args_support(made)


@contextlib.contextmanager
def one_thread(lock: Any) -> Iterator[None]:
    """Holds the lock of an algorithm, whose pools and slots only one thread may use at a time.

    Args:
        lock: A `threading.RLock`, or None, which holds nothing.

    Raises:
        RuntimeError: Another thread holds it.
    """
    if lock is not None and not lock.acquire(blocking=False):
        raise RuntimeError(
            "this algorithm is in use in another thread, and its pools of environments cannot be shared: make one "
            "algorithm for each thread, or wait until the other is done"
        )
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


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
