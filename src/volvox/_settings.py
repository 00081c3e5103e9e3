"""Settings as JSON values, as `config.json` holds them, and back; what `help` says of fields."""

import dataclasses
import dis
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import jax
import numpy as np
import optax
from flax import linen as nn

from volvox.types import Env

_LARGE = 256
"""Numbers of an array, beyond which it is described by a hash."""
_LISTED = ("optax", "jax.nn", "jax.nn.initializers", "flax.linen.pooling", "volvox.sparsity", "evosax.algorithms")
"""Modules whose functions and classes `rebuild` gives back, or binds to arguments: optimisers, activations."""
_LISTED_TOO = tuple(f"jax.numpy:{name}" for name in ("abs", "arctan", "cos", "exp", "sin", "square"))
_MARK = "_volvox_recorded"
_TAGS = ("type", "function", "call")
_RESERVED = {*_TAGS, "arguments", "values", "code", "repr", "made_by"}
"""Names in descriptions that fields and arguments do not have beside them."""
_NOT_FINITE = ("inf", "-inf", "nan")

T = TypeVar("T")


class CannotRebuildError(ValueError):
    """A description does not say enough, or says what must not be run."""


def describe(value: Any) -> Any:
    """Describes settings by JSON values.

    Args:
      value: A number, string or None (a number that is not finite, which JSON lacks, becomes `{"float": "inf"}`); a
        dataclass of settings or a flax module, described by its import path (`type`) and its fields; a
        `functools.partial` or a function, by its import path (`function`) and its arguments; a mapping or sequence of
        these; an array. Something with a `config` is described by that.

    Returns:
      JSON values, from which `rebuild` makes the settings again. A function without an import path, such as a lambda or
      an `optax` schedule, and a ready-made `optax.GradientTransformation` are described by a hash of their code and of
      the values it refers to (`code`), as are large arrays: they cannot be made again, but a change is noticed.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return _array(np.asarray(value))
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(getattr(value, "config", None), Mapping):
        return describe(value.config)
    if isinstance(value, optax.GradientTransformation):
        return {"type": "optax:GradientTransformation", "code": _hash([_code(value.init), _code(value.update)])}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A flax module's `parent` and `name` are its place in another, not settings.
        names = [field.name for field in dataclasses.fields(value) if field.name not in ("parent", "name")]
        return {"type": _path(type(value))} | _beside_tags({name: describe(getattr(value, name)) for name in names})
    if isinstance(value, functools.partial):
        function, arguments = describe(value.func), {"arguments": describe(value.args)} if value.args else {}
        named = function if isinstance(function, dict) else {"function": function}
        return {**named, **arguments, **_beside_tags(describe(value.keywords))}
    if isinstance(value, list | tuple | set | frozenset):
        return [describe(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if hasattr(value, "__qualname__"):
        path = _path(value)
        return {"function": path} | ({"code": _hash(_code(value))} if "<" in path else {})
    # A representation that names an address would differ from run to run.
    return {"type": _path(type(value))} | ({} if "0x" in repr(value) else {"repr": repr(value)})


def _beside_tags(values: dict[str, Any]) -> dict[str, Any]:
    """Fields or arguments as they stand beside their import path: under a key of their own if a name is reserved."""
    return {"values": values} if values.keys() & _RESERVED else values


def _array(array: np.ndarray) -> Any:
    if array.size <= _LARGE:
        wide = array.dtype == np.longdouble  # which Python has no number for
        return describe((array.astype(np.float64) if wide else array).tolist())
    return {
        "type": "numpy:ndarray",
        "shape": list(array.shape),
        "code": _hash([str(array.dtype), array.tobytes().hex()]),
    }


def _code(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """What a function does, in JSON values: its instructions, and the values it refers to outside of itself.

    Of a function that is not of the same module its import path is taken; so what a library does is not followed.
    """
    if isinstance(value, tuple | list):
        return [_code(item, seen) for item in value]
    value = inspect.unwrap(value) if callable(value) else value  # such as what jax.jit made
    code = getattr(value, "__code__", None)
    if code is None:
        return _path(value) if hasattr(value, "__qualname__") else _described(value)
    if id(code) in seen:
        return "itself"
    seen = (*seen, id(code))
    # A variable that is not assigned yet has an empty cell.
    cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
    given = [_code(item, seen) for item in (cells, value.__defaults__, list((value.__kwdefaults__ or {}).items()))]
    names = sorted({name for name in _globals_of(code) if name in value.__globals__})
    return [_instructions(code), given, {name: _global(value, value.__globals__[name], seen) for name in names}]


def _instructions(code: types.CodeType) -> Any:
    """The instructions, constants and names of a function and of the functions inside it."""
    return [code.co_code.hex(), [_constant(constant) for constant in code.co_consts], list(code.co_names)]


def _constant(value: Any) -> Any:
    if inspect.iscode(value):
        return _instructions(value)
    if isinstance(value, frozenset):  # its order is another in each process
        return sorted(map(repr, value))
    return [_constant(item) for item in value] if isinstance(value, tuple) else repr(value)


def _globals_of(code: types.CodeType) -> Iterator[str]:
    """Names of global variables that a function, or one inside it, reads."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in filter(inspect.iscode, code.co_consts):
        yield from _globals_of(constant)


def _global(function: Any, value: Any, seen: tuple[int, ...]) -> Any:
    if isinstance(value, ModuleType):
        return value.__name__
    if hasattr(value, "__qualname__"):
        own = getattr(value, "__module__", "") == function.__module__ and hasattr(inspect.unwrap(value), "__code__")
        return _code(value, seen) if own else _path(value)
    return _described(value)


def _described(value: Any) -> Any:
    """Any value's description; of one that JSON does not hold, its type."""
    try:
        described = describe(value)
        json.dumps(described)
    except (AttributeError, RecursionError, TypeError, ValueError):
        return {"type": _path(type(value))}
    return described


def _hash(described: Any) -> str:
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


def _path(value: Any) -> str:
    """The path from which a class or a function is imported, such as `optax:adam`; whatever else is imported.

    The first of the listed modules, the packages around the one that defines it, and this one, where it is found.
    """
    defining, name = getattr(value, "__module__", None) or "", value.__qualname__
    parts = defining.split(".")
    packages = [".".join(parts[:count]) for count in range(1, len(parts))]
    places = [*_LISTED, *(package for package in packages if "._" not in package)]
    found = (place for place in places if _loaded(place, name) is value)
    return f"{next(found, defining)}:{name}"


def _loaded(module: str, name: str) -> Any:
    """What a module has under a name, if it is imported."""
    return vars(sys.modules[module]).get(name) if module in sys.modules else None


def resolved(path: str) -> str:
    """The import path that `describe` gives now to what is found at a path, if its module is imported; or the path."""
    module, _, name = path.partition(":")
    value = _loaded(module, name)
    return _path(value) if hasattr(value, "__qualname__") else path


def recorded(made: T, check: Callable[[dict[str, Any]], None] | None = None) -> T:
    """Marks a function or a class as one that `volvox.load` may call with what a run's `config.json` says.

    Nothing else of a user's is called from a file, but flax modules. Of a function that makes an `Env` each call is
    recorded in the `config` of that environment, so that it can be made again:

        @vx.recorded
        def corridor(*, num_envs: int, length: int = 7) -> vx.Env:
            return vx.envs.from_functions(...)

    A function that is a setting, such as an activation, and a dataclass of settings, such as a strategy, are marked in
    the same way. The mark is the outermost decorator, at the top of a module.

    Args:
      made: The function or the class. Files from anyone may call it with any arguments, so it must not do more than
        make what it returns.
      check: Of a function that calls its arguments: raises an error of `CannotRebuildError` for arguments of a saved
        call by which code of anybody's would run.

    Returns:
      The class itself; of a function, one that does the same.

    Raises:
      TypeError: Arguments of the function cannot be given by name.
    """
    if inspect.isclass(made):
        setattr(made, _MARK, made)
        return made
    function: Any = made
    signature = inspect.signature(function)
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.POSITIONAL_ONLY in kinds:
        raise TypeError(f"{function.__qualname__} cannot be recorded: some of its arguments cannot be given by name")
    named = [name for name, parameter in signature.parameters.items() if parameter.kind != parameter.VAR_KEYWORD]

    @functools.wraps(function)
    def recording(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if not isinstance(result, Env):
            return result
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: bound.arguments[name] for name in named}
        others = {name: value for name, value in kwargs.items() if name not in named}
        call = {"call": _path(recording), **_beside_tags(describe(arguments | others))}
        if result.config.get("environment") != "envpool":  # transitional: the form of the contract
            return result._replace(config={"type": _path(recording).replace(":", "."), **arguments, **others})
        return result._replace(config={**result.config, "made_by": call})

    setattr(recording, _MARK, recording)
    vars(recording)["check_rebuilt"] = check
    return recording  # pyright: ignore[reportReturnType]  # it has the signature of what was given


def rebuild(described: Any, *, place: str = "settings", only_check: bool = False) -> Any:
    """Makes settings again from their description, as `describe` gave it.

    Lists become tuples. Nothing is unpickled or evaluated. Called are the settings of volvox, flax modules, the
    functions of a short list of modules (of optax, activations, initialisers), and what `recorded` marked; nothing
    else, whatever the description says. Modules are imported from where Python finds them, the working directory
    excluded.

    Args:
      described: JSON values.
      place: What is described, for messages.
      only_check: Only import what is named, and call nothing.

    Returns:
      The settings; with `only_check`, nothing of use.

    Raises:
      CannotRebuildError: The description does not say enough, names what cannot be imported, or names what must not be
        called.
    """
    try:
        return _rebuilt(described, place, only_check)
    except RecursionError as error:
        raise CannotRebuildError(f"{place[:80]}: the description is nested too deeply.") from error


def _rebuilt(described: Any, place: str, only_check: bool) -> Any:
    if isinstance(described, list):
        return tuple(_rebuilt(item, f"{place}[{i}]", only_check) for i, item in enumerate(described))
    if not isinstance(described, dict):
        return described
    if described.keys() == {"float"} and described["float"] in _NOT_FINITE:
        return float(described["float"])
    if isinstance(described.get("made_by"), dict):  # the config of an environment's recipe
        return _rebuilt(described["made_by"], place, only_check)
    # A mapping may have such a key too, such as {"type": "windy"}.
    kind = next((tag for tag in _TAGS if ":" in str(described.get(tag, ""))), None)
    if kind is None:
        return {name: _rebuilt(item, f"{place}.{name}", only_check) for name, item in described.items()}
    path, rest = described[kind], {name: item for name, item in described.items() if name != kind}
    found = _allowed(path, kind, place)
    arguments, inner = rest.pop("arguments", []), rest.pop("values", {})
    if rest.keys() & _RESERVED or not isinstance(inner, dict) or not isinstance(arguments, list):
        raise CannotRebuildError(f"{place}: {path} cannot be made again from its description.")
    given = _without_defaults(found, rest | inner)
    values = {name: _rebuilt(item, f"{place}.{name}", only_check) for name, item in given.items()}
    if kind == "function":
        positional = _rebuilt(arguments, place, only_check)
        return functools.partial(found, *positional, **values) if positional or values else found
    if arguments:  # of an instance that is a function
        raise CannotRebuildError(f"{place}: {path} cannot be made again from its description.")
    if kind == "call" and (check := getattr(found, "check_rebuilt", None)) is not None:
        check(values)
    if only_check:
        return None
    try:
        return found(**values)
    except (TypeError, ValueError) as error:
        raise CannotRebuildError(f"{place}: {path} does not take what was saved: {error}") from error


def defaults_of(path: str) -> dict[str, Any]:
    """Describes the defaults of a dataclass's fields; {} for other paths, and where its module is not imported."""
    module, _, name = path.partition(":")
    return _defaults(_loaded(module, name))


def _defaults(found: Any) -> dict[str, Any]:
    if not inspect.isclass(found) or not dataclasses.is_dataclass(found):
        return {}
    fields = [field for field in dataclasses.fields(found) if field.default is not dataclasses.MISSING]
    return {field.name: describe(field.default) for field in fields}


def _without_defaults(found: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Leaves out the fields of a dataclass that have their defaults, which may be functions without an import path."""
    defaults = _defaults(found)
    return {name: item for name, item in values.items() if name not in defaults or not _equal(item, defaults[name])}


def _equal(saved: Any, default: Any) -> bool:
    """Whether a field has its default. Whether a function without an import path changed is not asked here."""
    functions = [value.get("function", "") if isinstance(value, dict) else "" for value in (saved, default)]
    return saved == default or (functions[0] == functions[1] and "<" in str(functions[0]))


def _allowed(path: Any, kind: str, place: str) -> Any:
    """Imports a class or a function by its path; raises CannotRebuildError unless it may be used as this kind."""
    found = _imported(path, place)
    if found is not None and inspect.getattr_static(found, _MARK, None) is found:  # no subclass, nor what wraps it
        return found
    if inspect.isclass(found):
        ours = found.__module__.partition(".")[0] == "volvox" and dataclasses.is_dataclass(found)
        if kind != "call" and (ours or issubclass(found, nn.Module)):
            return found
    callable_ = inspect.isclass(found) or (found is not None and inspect.isroutine(inspect.unwrap(found)))
    if callable_ and kind == "function" and _is_listed(_path(found)):
        return found
    raise CannotRebuildError(
        f"{place}: {path} is neither of volvox's settings, nor a flax module, nor a function of {', '.join(_LISTED)}; "
        "anything else is called only if it is marked by volvox.recorded."
    )


def _is_listed(path: str) -> bool:
    return path in _LISTED_TOO or path.partition(":")[0] in _LISTED


def _imported(path: Any, place: str) -> Any:
    """Imports what is at the top of a module, or a class inside a class."""
    module, _, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    parts = module.split(".")
    if not all(part.isidentifier() for part in [*parts, *name.split(".")]) or "__main__" in parts[1:]:
        raise CannotRebuildError(f"{place}: {path!r} cannot be imported, as what is at the top of a module can.")
    if parts[0] in sys.stdlib_module_names and module != "__main__":
        raise CannotRebuildError(f"{place}: {path} is of Python's standard library, which no settings are.")
    try:
        if module not in sys.modules and _in_working_directory(parts[0]):
            raise ImportError("modules of the working directory have to be imported before")
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            # Not a module that the module imports.
            found = getattr(found, part) if inspect.isclass(found) or found is sys.modules[module] else None
    except (AttributeError, ImportError, ValueError) as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == parts[0]:
            hint = "; PYTHONPATH=. lets Python find modules of the working directory"
        raise CannotRebuildError(f"{place}: {path} cannot be imported here ({error}{hint}).") from error
    return found


def _in_working_directory(name: str) -> bool:
    """Whether Python finds a module only because it looks into the working directory, as interactive sessions do."""
    if "" not in sys.path or str(Path.cwd()) in sys.path or name in sys.modules:
        return False
    spec = importlib.util.find_spec(name)
    files = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return any(Path(file).parent.resolve() == Path.cwd() for file in files)


def document_fields(module: ModuleType) -> None:
    """Gives each field of a module's NamedTuples what the class docstring's Attributes section says of it.

    Without it, `help` calls each of them "Alias for field number 0".
    """
    for value in vars(module).values():
        names = getattr(value, "_fields", ())
        if names and inspect.isclass(value) and issubclass(value, tuple) and value.__module__ == module.__name__:
            _, _, section = (inspect.getdoc(value) or "").partition("Attributes:\n")
            for listed, text in re.findall(r"^  ([\w, ]+): (.*(?:\n {4}.*)*)", section, flags=re.MULTILINE):
                for name in set(listed.split(", ")) & set(names):
                    getattr(value, name).__doc__ = re.sub(r"\s+", " ", text)
