"""Runs loaded from their directories.

run = vx.load("runs/frostbite")
print(run.evaluate(num_episodes=30))
run = run.resume(steps=200)
act = run.actor()
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flax import linen as nn

from volvox.report.files import ELITE, METRICS, read_config, read_metrics
from volvox.rollout import reference_batch
from volvox.runs.config import differences, from_json, to_json
from volvox.runs.directory import read_run
from volvox.runs.export import is_exported, load_exported
from volvox.runs.run import Run
from volvox.types import Algorithm, Env, Genotype

_GENOTYPES = ("volvox.networks.genotype", "volvox.networks.genotype_from_functions")
_LAYOUT = ("num_envs", "groups", "threads")
"""Arguments of an environment that do not change what is played."""


def load(run_dir: str | os.PathLike[str], *, custom: Iterable[Any] = (), algorithm: Algorithm | None = None) -> Any:
    """Loads a run, in any process, to play, film, plot, export or continue it.

    The algorithm is rebuilt from the settings in `config.json`. Nothing is unpickled and no code of the directory is
    executed: only public names of volvox, flax, optax and jax.nn, and names in `custom`, are used. A run in progress is
    loaded as of its newest checkpoint. Without checkpoints, `elite.json` is enough to play the run (its `state` is
    None), and `metrics.jsonl` to plot it.

        run = vx.load("runs/mine", custom=[MyNetwork, my_reward])
        run = vx.load("runs/robot", custom=[my_env])

    Args:
      run_dir: The run directory, or a file of `Run.export`, for which an `ExportedPolicy` is returned.
      custom: The user's classes and functions that `config.json` names. An `Env`, a `Genotype` or a flax module takes
        the place of the saved environment or network, for example if these cannot be described by names.
      algorithm: The whole algorithm, for algorithms that neither `evolve` nor `learn` made.

    Returns:
      The run, as `volvox.train` returned it.

    Raises:
      ValueError: There is no run, a part cannot be rebuilt, or the algorithm's settings differ from the saved ones.
      volvox.DamagedCheckpointError: There are checkpoints, but none can be used.
    """
    path, custom = Path(run_dir).absolute(), tuple(custom)
    if is_exported(path):
        return load_exported(path)
    config = read_config(path)
    left_out: tuple[str, ...] = ()
    if algorithm is None:
        # A network may have another name; the structure of its parameters is compared with the checkpoint.
        left_out = tuple(name for name in ("network",) if _given(name, custom) is not None)
        try:
            algorithm = rebuild(config["algorithm"], custom)
        except ValueError as error:
            raise ValueError(f"{path}: the algorithm cannot be rebuilt: {error}") from error
    saved, current = (_compared(data, left_out) for data in (config["algorithm"], to_json(algorithm.config)))
    if found := differences(saved, current):
        raise ValueError("\n  ".join([f"{path} holds a run with other settings:", *found]))
    restored = read_run(path, algorithm, config)
    if restored is not None:
        return Run(algorithm, *restored, path, interrupted=None)
    elite = None
    if algorithm.from_genome is not None and (path / ELITE).exists():
        elite = algorithm.from_genome(json.loads((path / ELITE).read_text()))
    return Run(algorithm, None, read_metrics(path / METRICS), path, interrupted=None, elite=elite)


def rebuild(data: Mapping[str, Any], custom: tuple[Any, ...] = ()) -> Algorithm:
    """Makes an algorithm from its settings in JSON form.

    Raises:
      ValueError: A part cannot be rebuilt.
    """
    if "." not in str(data.get("type")):
        raise ValueError("config.json names no function that makes it; pass algorithm=")
    parts = {name: value if (given := _given(name, custom)) is None else given for name, value in data.items()}
    env, network = from_json(parts.get("env"), custom), parts.get("network")
    if isinstance(env, Env) and isinstance(network, dict) and network.get("type") in _GENOTYPES:
        parts["network"] = _genotype(network, env, custom)
    return from_json({**parts, "env": env} if "env" in parts else parts, custom)


def _genotype(data: Mapping[str, Any], env: Env, custom: tuple[Any, ...]) -> Genotype:
    """Makes a genotype, which depends on the environment's spec, or on a batch of its observations."""
    make = from_json({"function": data["type"]})
    values = {name: from_json(value, custom) for name, value in data.items() if name != "type"}
    if "reference" in values:
        values["reference"] = reference_batch(env, size=values["reference"])
    return make(spec=env.spec, **values)


def _given(name: str, custom: tuple[Any, ...]) -> Any:
    """The object in `custom` that takes the place of a part of the algorithm."""
    kinds = {"env": Env, "network": (Genotype, nn.Module)}.get(name, ())
    return next((value for value in custom if isinstance(value, kinds)), None)


def _compared(data: Mapping[str, Any], left_out: tuple[str, ...]) -> dict[str, Any]:
    """Settings without those that may differ between a run and its loaded form."""
    kept = {name: value for name, value in data.items() if name not in left_out}
    if isinstance(kept.get("env"), Mapping):
        kept["env"] = {name: value for name, value in kept["env"].items() if name not in _LAYOUT}
    return kept
