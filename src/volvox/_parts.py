"""Environments and networks made again from what `config.json` says of them, in this process or in another."""

from collections.abc import Mapping
from typing import Any

from flax import linen as nn

from volvox._settings import CannotRebuildError, rebuild
from volvox.loop import reference_batch
from volvox.networks import reference_genotype
from volvox.types import Env


def env_of(config: Mapping[str, Any], *, place: str = "env") -> Env:
    """Makes an environment's recipe again.

    Args:
      config: `describe(env.config)`.
      place: What is described, for messages.

    Raises:
      CannotRebuildError: It was made by a function that `volvox.recorded` does not mark, or cannot be imported.
    """
    if not isinstance(config.get("made_by"), dict):
        raise CannotRebuildError(f"{place}: the environment was made by a function that volvox.recorded does not mark.")
    env = rebuild(config, place=place)
    if not isinstance(env, Env):
        raise CannotRebuildError(f"{place}: this makes no environment.")
    return env


def network_of(config: Mapping[str, Any], env: Env, *, place: str = "network") -> Any:
    """Makes a network again: a flax module, several of them, or a module with its reference batch.

    Args:
      config: `describe(policy.config)`.
      env: The environment, in which a reference batch is played.
      place: What is described, for messages.

    Raises:
      CannotRebuildError: The network was given as functions, or cannot be imported.
    """
    described = {name: value for name, value in config.items() if name not in ("num_parameters", "reference")}
    network = rebuild(described, place=place)
    if "type" not in described:
        raise CannotRebuildError(f"{place}: the network was given as functions.")
    if "reference" not in config:
        return network
    if not isinstance(network, nn.Module) or not isinstance(config["reference"], list):
        raise CannotRebuildError(f"{place}: a reference batch is of a flax module.")
    # The batch is random play with a fixed seed; the configuration, which is compared, has its hash.
    return reference_genotype(network, env.spec, reference_batch(env, size=config["reference"][0]))
