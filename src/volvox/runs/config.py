"""Configuration as data: settings to JSON and back.

    data = to_json(vx.PPO(learning_rate=1e-3))  # {"type": "volvox.PPO", "learning_rate": 0.001, ...}
    settings = from_json(data)

JSON objects with one of these keys stand for Python objects:

- `type`: the result of calling a class or function with the other entries as keyword arguments;
- `function`: a class or function itself;
- `partial`, with `arguments` and `keywords`: a `functools.partial` of a function;
- `float`: `inf`, `-inf` or `nan`;
- `items`: a dict whose keys are not all strings, as pairs;
- `unknown`: an object without a JSON form, by its class; it cannot be rebuilt.

Classes and functions are named by their public path, such as `optax.adam`. Only public names of volvox and of a few
libraries are resolved; `from_json` imports nothing else because a file says so. Users pass their own classes and
functions as `custom`.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from volvox.types import Genotype

_LIBRARIES = ("optax", "jax.nn", "jax.nn.initializers", "flax.linen", "evosax.algorithms")
_CALLABLE_MODULES = ("volvox.envs", "volvox.networks", "volvox.sparsity", *_LIBRARIES)
_PARTS = tuple(f"volvox.{name}" for name in ("population", "evolution", "rollout", "learners"))
_MODULES = ("volvox", *_CALLABLE_MODULES, *_PARTS, "jax.numpy", "numpy")
"""Modules whose public names are used, in order of preference."""
_PACKAGES = {module.partition(".")[0] for module in _MODULES}
_CALLABLE_NAMES = ("volvox.learn", "volvox.evolve", "numpy.array")
"""Functions that a file may call: those of these modules, and the single names."""
_DERIVED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "boundaries_and_scales": lambda variables: dict(zip(variables["boundaries"], variables["scales"], strict=True)),
    "interpolate_type": lambda variables: variables["interpolate_fn"].__name__.split("_")[1],
}
"""Arguments of optax's schedules that are not variables of their functions, from these variables."""
_MISSING = object()


def to_json(value: Any) -> Any:
    """Returns the JSON form of settings: dataclasses, flax modules, named tuples, functions, arrays, and containers."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, np.generic):
        return to_json(value.item())
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        return {"type": "numpy.array", "object": to_json(array.tolist()), "dtype": array.dtype.name}
    if isinstance(value, np.dtype):
        return {"type": "numpy.dtype", "dtype": value.name}
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            return {"items": to_json(list(value.items()))}
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, Genotype):
        return to_json(value.policy.config)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {"type": path_of(type(value)), **to_json(value._asdict())}  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, functools.partial):
        arguments = {"arguments": to_json(value.args), "keywords": to_json(value.keywords)}
        return {"partial": to_json(value.func), **arguments}
    if hasattr(value, "__qualname__"):
        return _function_to_json(value)
    if dataclasses.is_dataclass(value):
        left_out = ("parent", "name") if isinstance(value, nn.Module) else ()
        fields = [field.name for field in dataclasses.fields(value) if field.init and field.name not in left_out]
        return {"type": path_of(type(value)), **{name: to_json(getattr(value, name)) for name in fields}}
    return {"unknown": path_of(type(value))}


def _function_to_json(function: Any) -> Any:
    """Describes a class or function by its path, or by its factory, as in `optax.cosine_decay_schedule(...)`."""
    name = function.__qualname__.partition(".")[0]
    named = (getattr(sys.modules.get(module), name, None) for module in _CALLABLE_MODULES)
    factory: Any = next(filter(inspect.isfunction, named), None)
    if factory and inspect.isfunction(function) and function.__code__ in inspect.unwrap(factory).__code__.co_consts:
        with contextlib.suppress(TypeError, ValueError, LookupError):  # the variables do not give an argument
            variables = _closure(function)
            names = [name for name in inspect.signature(factory).parameters if name in variables or name in _DERIVED]
            arguments = {name: variables[name] if name in variables else _DERIVED[name](variables) for name in names}
            again: Any = factory(**arguments)
            if to_json(_closure(again)) == to_json(variables):  # no other argument mattered
                return {"type": path_of(factory), **to_json(arguments)}
    return {"function": path_of(function)}


def _closure(function: Any) -> dict[str, Any]:
    """Variables of the enclosing function that a function uses; `inspect.getclosurevars` fails for unassigned ones."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def path_of(value: Any) -> str:
    """Returns the public path of a class or function, or `module.name` for those of users."""
    name, package = value.__qualname__, value.__module__.partition(".")[0]
    modules = _MODULES if package in _PACKAGES else ()
    found = (module for module in modules if getattr(sys.modules.get(module), name, None) is value)
    return f"{next(found, value.__module__)}.{name}"


def from_json(data: Any, custom: Iterable[Any] = ()) -> Any:
    """Rebuilds settings from their JSON form. Lists become tuples, and equal calls become one object.

    Args:
      data: JSON values, as `to_json` returns them.
      custom: The user's classes and functions that the data may name; their module may differ from the saved one.

    Raises:
      ValueError: A name is not public and not in `custom`, an object has no JSON form, or a class or function does not
        accept the saved arguments.
    """
    return _build(data, tuple(custom), {})


def _build(data: Any, custom: tuple[Any, ...], made: dict[str, Any]) -> Any:
    """Rebuilds settings; `made` has the results of calls by their JSON."""
    if isinstance(data, list):
        return tuple(_build(item, custom, made) for item in data)
    if not isinstance(data, dict):
        return data
    if data.keys() == {"float"}:
        return float(data["float"])
    if data.keys() == {"items"}:
        return dict(_build(data["items"], custom, made))
    if "unknown" in data:
        raise ValueError(f"an object of type {data['unknown']} has no JSON form and cannot be rebuilt")
    if data.keys() == {"function"}:
        return _resolve(data["function"], custom)
    values = {key: _build(item, custom, made) for key, item in data.items()}
    text = repr(data)  # of equal calls; but one module in two attributes of another would share its parameters
    if text in made and not isinstance(made[text], nn.Module):
        return made[text]
    if "partial" in data:
        _check_call(path_of(values["partial"]), values["partial"], custom)
        made[text] = functools.partial(values["partial"], *values["arguments"], **values["keywords"])
        return made[text]
    path = values.get("type")
    if not isinstance(path, str) or "." not in path:
        return values
    function = _resolve(values.pop("type"), custom)
    _check_call(path, function, custom)
    module, colon, _ = str(values.get("make_env", "")).partition(":")
    if path == "volvox.envs.gymnasium" and colon and module not in sys.modules:  # Gymnasium would import the module
        raise ValueError(f"the environment {values['make_env']} is registered by {module}: import {module} first")
    try:
        made[text] = function(**values)
    except TypeError as error:
        raise ValueError(f"{path} does not accept the saved arguments: {error}") from error
    return made[text]


def _resolve(path: Any, custom: tuple[Any, ...]) -> Any:
    """Returns the class or function of a path."""
    module, _, name = str(path).rpartition(".")
    named = [value for value in custom if hasattr(value, "__qualname__")]
    for value in sorted(named, key=lambda value: path_of(value) != path):  # of two with one name, that of the module
        if f".{path}".endswith(f".{value.__qualname__}"):
            return value
    if "<" in str(path):  # a lambda, or a function inside another
        raise ValueError(
            f"{path} has no public name: pass the environment or the network as custom=[...], or algorithm=; a "
            "schedule can be a function with a name, in custom=[...]"
        )
    if module not in _MODULES or name.startswith("_"):
        raise ValueError(f"{path} is not a public name of volvox, flax, optax or jax.nn: pass it as custom=[{name}]")
    try:
        return getattr(importlib.import_module(module), name)
    except (AttributeError, ImportError) as error:
        raise ValueError(f"{path} does not exist in the installed version ({error})") from error


def _check_call(path: str, function: Any, custom: tuple[Any, ...]) -> None:
    """Raises ValueError unless a file may call this function; many public functions could write files."""
    allowed = path.rpartition(".")[0] in _CALLABLE_MODULES or path in _CALLABLE_NAMES
    if inspect.isclass(function):
        allowed = dataclasses.is_dataclass(function) or issubclass(function, tuple | np.dtype) or allowed
    if not allowed and not any(function is value for value in custom):
        raise ValueError(f"{path} may not be called with arguments from a file, unless it is passed in custom=[...]")


def differences(saved: Any, current: Any, place: str = "algorithm") -> list[str]:
    """Lists the settings that differ between two configurations in JSON form, one line each.

    Entries that are missing in `saved` are not listed if they have their default value: they were added to volvox, or
    to the user's class, after the file was written.
    """
    if isinstance(saved, dict) and isinstance(current, dict):
        same_type = saved.get("type") == current.get("type")
        defaults = _defaults(current["type"]) if isinstance(current.get("type"), str) and same_type else {}
        found = []
        for key in dict.fromkeys([*saved, *current]):
            before, now = saved.get(key, defaults.get(key, _MISSING)), current.get(key, _MISSING)
            found += differences(before, now, f"{place}.{key}")
        return found
    lists = isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current)
    if lists and all(isinstance(x, dict) for x in (*saved, *current)):
        pairs = enumerate(zip(saved, current, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, f"{place}[{i}]")]
    same = saved == current and isinstance(saved, bool) == isinstance(current, bool)  # 1 is 1.0, but not True
    if same or _name_the_same(saved, current):
        return []
    before, now = ("nothing" if value is _MISSING else json.dumps(value) for value in (saved, current))
    return [] if before == now else [f"{place}: {before} in the run, {now} now"]


def _name_the_same(saved: Any, current: Any) -> bool:
    """Whether two paths name one class or function; the module of a script is `__main__` while it runs."""
    if not (isinstance(saved, str) and isinstance(current, str)):
        return False
    pairs = ((saved, current), (current, saved))
    return any(a.startswith("__main__.") and f".{b}".endswith(a.removeprefix("__main__")) for a, b in pairs)


def _defaults(path: str) -> dict[str, Any]:
    """Default arguments of a class or function whose module is imported."""
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] | None = getattr(sys.modules.get(module), name, None)
    try:
        parameters = inspect.signature(function).parameters.values() if callable(function) else ()
    except ValueError:  # a function in C
        return {}
    return {p.name: to_json(p.default) for p in parameters if p.default is not p.empty}
