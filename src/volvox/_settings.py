"""Settings as JSON values: what `config.json` says of an algorithm, and what is compared when a run is resumed."""

import dataclasses
import functools
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import optax


def describe(value: Any) -> Any:
    """Describes settings by JSON values.

    Args:
      value: a number, string or None; a dataclass of settings or a flax module, described by its import path (`type`)
        and its fields; a `functools.partial` or a function, by its import path (`function`) and its arguments; a
        mapping or sequence of these; an array. Something with a `config` is described by that.

    Import paths are those of users, such as `"volvox:GA"` and `"optax:adam"`, where there are such.

    Returns:
      JSON values. A lambda or a ready-made `optax.GradientTransformation` says no more than that it is one.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(getattr(value, "config", None), Mapping):
        return describe(value.config)
    if isinstance(value, optax.GradientTransformation):
        return {"type": "optax:GradientTransformation"}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A flax module's `parent` and `name` are its place in another, not settings.
        names = [field.name for field in dataclasses.fields(value) if field.name not in ("parent", "name")]
        return {"type": _path(type(value)), **{name: describe(getattr(value, name)) for name in names}}
    if isinstance(value, functools.partial):
        arguments = {"arguments": describe(value.args)} if value.args else {}
        return {"function": _path(value.func), **arguments, **describe(value.keywords)}
    if isinstance(value, list | tuple | set | frozenset):
        return [describe(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if hasattr(value, "__qualname__"):
        return {"function": _path(value)}
    # A representation that names an address would differ from run to run.
    return {"type": _path(type(value))} if "0x" in repr(value) else repr(value)


def _path(value: Any) -> str:
    """The import path of a class or function: of the outermost package around it that offers it under its name."""
    module, name = str(value.__module__), value.__qualname__
    packages = module.split(".")
    for depth in range(1, len(packages)):
        package = ".".join(packages[:depth])
        if package in sys.modules and vars(sys.modules[package]).get(name) is value:
            return f"{package}:{name}"
    return f"{module}:{name}"
