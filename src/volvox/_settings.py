"""Settings and versions as JSON values, as `config.json` holds them; what `help` says of fields."""

import dataclasses
import functools
import importlib.metadata
import inspect
import itertools
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import optax


def describe(value: Any) -> Any:
    """Describes settings by JSON values.

    Args:
      value: A number, string or None; a dataclass of settings or a flax module, described by its import path (`type`)
        and its fields; a `functools.partial` or a function, by its import path (`function`) and its arguments; a
        mapping or sequence of these; an array. Something with a `config` is described by that.

    Returns:
      JSON values. Of a ready-made `optax.GradientTransformation` only its type is known.
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
        function, arguments = describe(value.func), {"arguments": describe(value.args)} if value.args else {}
        named = function if isinstance(function, dict) else {"function": function}
        return {**named, **arguments, **describe(value.keywords)}
    if isinstance(value, list | tuple | set | frozenset):
        return [describe(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if hasattr(value, "__qualname__"):
        return {"function": _path(value)}
    # A representation that names an address would differ from run to run.
    return {"type": _path(type(value))} if "0x" in repr(value) else repr(value)


def _path(value: Any) -> str:
    """The shortest public path from which a class or a function is imported, such as `optax:adam`."""
    packages = itertools.accumulate(value.__module__.split("."), "{}.{}".format)
    exporting = (name for name in packages if getattr(sys.modules.get(name), value.__qualname__, None) is value)
    return f"{next(exporting, value.__module__)}:{value.__qualname__}"


def versions() -> dict[str, str | None]:
    """Versions of volvox and of what decides its results and speed; None of a package that is not installed."""
    installed = {name: importlib.metadata.distributions(name=name) for name in ("volvox", "jax", "envpool")}
    return {name: next((found.version for found in copies), None) for name, copies in installed.items()}


def document_fields(module: ModuleType) -> None:
    """Gives each field of a module's NamedTuples what the class docstring's Attributes section says of it.

    Without it, `help` calls each of them "Alias for field number 0".
    """
    for value in vars(module).values():
        names = getattr(value, "_fields", ())
        if inspect.isclass(value) and issubclass(value, tuple) and names:
            _, _, section = (inspect.getdoc(value) or "").partition("Attributes:\n")
            for name, text in re.findall(r"^  (\w+): (.*(?:\n {4}.*)*)", section, flags=re.MULTILINE):
                if name in names:
                    getattr(value, name).__doc__ = re.sub(r"\s+", " ", text)
