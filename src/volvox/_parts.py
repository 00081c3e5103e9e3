"""Environments and networks made again from what `config.json` says of them, in this process or in another."""

from collections.abc import Iterator, Mapping
from typing import Any

from flax import linen as nn

from volvox._settings import CannotRebuildError, rebuild
from volvox.networks import reference_genotype
from volvox.rollout import reference_batch
from volvox.types import Env

GIVEN = "functions given"
GIVEN_AS = {
    "algorithm.env": "env",
    "algorithm.network": "network",
    **{f"algorithm.{name}": "algorithm" for name in ("settings", "strategy", "noise", "behavior")},
}
"""Parts of a run by their places in `config.json`, and the arguments as which `volvox.load` takes them instead."""


def what_load_needs(config: Mapping[str, Any]) -> str | None:
    """Says, before a run, what `volvox.load` will have to be given in another process, and why; None if nothing.

    No part is made, so one that will refuse what was saved is not noticed.

    Args:
      config: `algorithm.config`, as JSON values.
    """
    if config.get("algorithm") not in ("evolve", "learn"):
        return "algorithm= (neither vx.evolve nor vx.learn made it)"
    reasons: dict[str, str] = {}
    for place, argument in GIVEN_AS.items():
        reason = _why_not(config.get(place.rpartition(".")[2]), place, argument)
        if reason is not None:
            reasons.setdefault(argument, reason)
    if "algorithm" in reasons:  # which has all of them
        reasons = {"algorithm": reasons["algorithm"]}
    return " and ".join(f"{argument}= ({reason})" for argument, reason in reasons.items()) or None


def _why_not(described: Any, place: str, argument: str) -> str | None:
    """Says why a part cannot be made again from its description in another process; None if it can."""
    own = [path.partition(":")[2] for path in import_paths(described) if path.startswith("__main__:")]
    if own:
        return f"{own[0]} is defined in the script or notebook that runs"
    if argument != "algorithm" and not isinstance(described, dict):
        return f"{place} is not described"
    check = {"env": env_of, "network": network_of}.get(argument, rebuild)
    try:
        check(described, place=place, only_check=True)
    except CannotRebuildError as error:
        return str(error).rstrip(".")
    return None


def import_paths(described: Any) -> Iterator[str]:
    """Yields the import paths in a description, such as `describe` gives."""
    if isinstance(described, dict):
        for key, value in described.items():
            if key in ("type", "function", "call") and isinstance(value, str):
                yield value
            else:
                yield from import_paths(value)
    elif isinstance(described, list):
        for value in described:
            yield from import_paths(value)


def env_of(config: Mapping[str, Any], *, place: str = "env", only_check: bool = False) -> Any:
    """Makes an environment's recipe again.

    Args:
      config: `describe(env.config)`.
      place: What is described, for messages.
      only_check: Call nothing, and return None.

    Raises:
      CannotRebuildError: It was made by a function that `volvox.recorded` does not mark, or cannot be imported.
    """
    if not isinstance(config.get("made_by"), dict):
        raise CannotRebuildError(f"{place}: the environment was made by a function that volvox.recorded does not mark.")
    env = rebuild(config, place=place, only_check=only_check)
    if not only_check and not isinstance(env, Env):
        raise CannotRebuildError(f"{place}: this makes no environment.")
    return env


def network_of(
    config: Mapping[str, Any], env: Env | None = None, *, place: str = "network", only_check: bool = False
) -> Any:
    """Makes a network again: a flax module, several of them, or a module with its reference batch.

    Args:
      config: `describe(policy.config)`.
      env: The environment, in which a reference batch is played.
      place: What is described, for messages.
      only_check: Call nothing, and return None.

    Raises:
      CannotRebuildError: The network was given as functions or with functions, or cannot be imported.
    """
    if given := config.get(GIVEN):
        raise CannotRebuildError(f"{place}: the genotype was made with functions of its own, {' and '.join(given)}.")
    described = {name: value for name, value in config.items() if name not in ("num_parameters", "reference")}
    network = rebuild(described, place=place, only_check=only_check)
    if "type" not in described:
        raise CannotRebuildError(f"{place}: the network was given as functions.")
    if only_check or "reference" not in config:
        return network
    if not isinstance(network, nn.Module) or not isinstance(config["reference"], list):
        raise CannotRebuildError(f"{place}: a reference batch is of a flax module.")
    assert env is not None
    # The batch is random play with a fixed seed; the configuration, which is compared, has its hash.
    return reference_genotype(network, env.spec, reference_batch(env, size=config["reference"][0]))
