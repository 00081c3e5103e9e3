"""Short descriptions of wrong arguments, for error messages."""

import functools
import os
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox.types import Algorithm, Env, EnvGroup, EnvSpec, Genotype, Policy

_FOREIGN = {
    "torch": ("a PyTorch module", "networks are flax.linen modules here"),
    "flax.nnx": ("a flax.nnx module", "networks are flax.linen modules here"),
    "equinox": ("an Equinox module", "networks are flax.linen modules here"),
    "haiku": ("a Haiku module", "networks are flax.linen modules here"),
    "gymnasium": ("a Gymnasium environment", "environments are made by vx.envs here"),
    "gym": ("a Gym environment", "environments are made by vx.envs here"),
    "gymnax": ("a gymnax environment", "vx.envs.gymnax(name, num_envs=64) makes environments of it"),
    "brax": ("a Brax environment", "vx.envs.brax(name, num_envs=64) makes environments of it"),
}
"""By the beginning of a module's path: what its objects are, and what is taken instead."""


def said(given: Any) -> str:
    """Returns a short description of a value and, where that is known, how to correct the call."""
    if isinstance(given, functools.partial):
        return f"a partial of {given.func!r}, and not what it returns: call it"
    if isinstance(given, type):
        return f"the class {given.__name__} itself: make one of it, {given.__name__}(...)"
    if isinstance(given, Env):
        return f"an environment ({given.spec.name})"
    if isinstance(given, EnvGroup):
        return f"a group of environments ({given.spec.name}), and not the recipe that makes it"
    kinds = {
        Algorithm: "an algorithm",
        Policy: "a policy",
        Genotype: "a genotype",
        EnvSpec: "the spec of an environment",
    }
    for kind, words in kinds.items():
        if isinstance(given, kind):
            return words
    name = type(given).__name__
    if isinstance(given, jax.Array) and jnp.issubdtype(given.dtype, jax.dtypes.prng_key):
        return "a key of jax.random"
    if isinstance(given, nn.Module):
        return f"a network ({name})"
    if hasattr(given, "resume"):
        return "a run: run.resume(steps=...) goes on with it"
    if hasattr(given, "phases"):
        return f"a strategy ({name}): vx.evolve(strategy, network, env) makes an algorithm of it"
    if hasattr(given, "bind"):
        return f"the settings of a learner ({name}): vx.learn(settings, network, env) makes an algorithm of them"
    if type(given) in (tuple, list) and given:
        foreign = next((said(item) for item in given if _library(item) is not None), None)
        kinds = ", ".join(type(item).__name__ for item in given[:3])
        return f"a {name} of {kinds}" if foreign is None else f"a {name} with {foreign}"
    if (library := _library(given)) is not None:
        words, instead = _FOREIGN[library]
        return f"{words} ({name}): {instead}"
    if callable(given) and hasattr(given, "__qualname__"):
        if given.__name__ == "<lambda>":
            return "a function (lambda)"
        called = given.__qualname__.rpartition(".<locals>.")[2]
        return f"the function {called}, and not what it returns: call it, {called}(...)"
    text = repr(given).splitlines()[0] if repr(given) else ""
    text = text if len(text) <= 60 else f"{text[:60]}..."
    return text if given is None or isinstance(given, str | int | float) else f"{text} ({name})"


def _library(given: Any) -> str | None:
    """Returns the library in `_FOREIGN` to which the class of an object, or one of its bases, belongs; or None."""
    paths = [f"{getattr(kind, '__module__', '')}." for kind in type(given).__mro__]
    return next((path for path in _FOREIGN if any(own.startswith(f"{path}.") for own in paths)), None)


def check_env(caller: str, env: Any) -> None:
    """Raises TypeError unless `env` is a recipe of environments; `caller` says what takes it."""
    if not isinstance(env, Env):
        raise TypeError(f"{caller} takes an environment, such as vx.envs.atari('Pong'); got {said(env)}")


def check_network(caller: str, network: Any) -> None:
    """Raises TypeError for what cannot be a network of any learner: a class, an environment, or another library's."""
    wrong = isinstance(network, type | Env | EnvGroup | EnvSpec | Algorithm) or hasattr(network, "phases")
    if wrong or _library(network) is not None:
        raise TypeError(f"{caller} takes a network, such as vx.networks.MLP(2); got {said(network)}")


def check_algorithm(caller: str, algorithm: Any) -> None:
    """Raises TypeError for anything but an algorithm, and says how one is made; `caller` says what takes it."""
    if not isinstance(algorithm, Algorithm):
        raise TypeError(f"{caller} takes an algorithm, as vx.evolve and vx.learn make it; got {said(algorithm)}")


def check_part(name: str, part: Any, uses: Iterable[str], examples: str) -> None:
    """Raises TypeError unless a part, such as an objective, has what is used of it; a class has it not yet.

    Args:
      name: The argument, for the message.
      part: What was given.
      uses: Names of the functions and values that it must have.
      examples: What can be given, for the message.
    """
    if isinstance(part, type) or any(not hasattr(part, use) for use in uses):
        raise TypeError(f"{name} takes {examples}; got {said(part)}")


def check_path(name: str, path: Any) -> None:
    """Raises TypeError unless `path` is a path, as text or a `pathlib.Path`."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name} takes a path, such as 'runs/frostbite'; got {said(path)}")


def state_and_metrics(result: Any) -> tuple[Any, Mapping[str, Any]]:
    """Returns what a step returned, if it is a state and a dictionary of metrics; raises TypeError otherwise."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
        return result
    parts = f"{len(result)} items" if isinstance(result, tuple) else said(result)
    if isinstance(result, tuple) and len(result) == 2:
        parts = f"({type(result[0]).__name__}, {type(result[1]).__name__})"
    raise TypeError(f"algorithm.step must return (state, metrics), metrics as a dict of numbers by name; got {parts}")


def is_true(answer: object) -> bool:
    """Whether an answer is True, of Python, NumPy or JAX; a truthy one, such as a score, is not."""
    boolean = isinstance(answer, bool | np.bool_) or (isinstance(answer, jax.Array) and answer.dtype == np.bool_)
    return boolean and bool(answer)
