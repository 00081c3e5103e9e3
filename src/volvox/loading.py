"""Runs loaded from their directories.

    run = vx.load("runs/frostbite")
    print(run.evaluate(num_episodes=30))
    run.watch()
    run = run.resume(steps=200)
    act = run.actor()

`config.json` holds the settings of algorithm, environment and network with the import paths of their classes and
functions. They are made again from it: nothing is unpickled, no code of the directory is run, and of other code only
what volvox knows or `volvox.recorded` marked.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from volvox import _config, _restoring
from volvox._formats import upgraded
from volvox._parts import GIVEN_AS, env_of, network_of
from volvox._record import run_path
from volvox._settings import CannotRebuildError, rebuild
from volvox.evolution import evolve
from volvox.evolution.schedules import Cutoff
from volvox.learners import learn
from volvox.population import lineage
from volvox.report import rows
from volvox.report.metrics import task_of
from volvox.runs.export import is_exported, load_exported
from volvox.training import Run
from volvox.types import Algorithm, Env


def load(
    run_dir: str | os.PathLike[str],
    *,
    network: Any = None,
    env: Env | None = None,
    algorithm: Algorithm | None = None,
) -> Run:
    """Loads a run, in any process, to play, film, plot or export it, or to go on with it.

    A run in progress can be loaded too, as of its newest checkpoint. Of a directory without checkpoints the elite's
    lineage is enough to play it (`state` is None), and the metrics alone to plot it.

    Args:
      run_dir: The run directory; or a file of `Run.export`, of which an `ExportedPolicy` is returned.
      network: The network, where it cannot be imported by the path that `config.json` names: a module defined in a
        notebook or a script, or a network given as functions. Its import path may be another than that of the run;
        its fields, the structure of its parameters and its outputs are compared.
      env: The environment, likewise; for a population `num_envs` and `groups` may be others. One of a function that
        `volvox.recorded` marks is made again without it.
      algorithm: The whole algorithm, likewise; for algorithms that neither `evolve` nor `learn` made.

    Returns:
      The run, as `volvox.train` returned it.

    Raises:
      ValueError: No run is there; `config.json` is damaged, or of a newer version; a part cannot be made again and is
        not given; settings differ from those saved; or the network's outputs do.
      MemoryError: The checkpoint takes more memory than is free.
      volvox.checkpoint.DamagedCheckpointError: Every checkpoint is damaged.
    """
    path, parts = run_path(run_dir).absolute(), {"network": network, "env": env, "algorithm": algorithm}
    if is_exported(path):
        if given := [name for name, part in parts.items() if part is not None]:
            raise ValueError(f"{path} needs no parts, since it holds the whole policy: leave out {', '.join(given)}")
        exported: Any = load_exported(path)
        return exported
    if path.is_file():
        hint = f"; did you mean {path.parent}?" if (path.parent / _config.CONFIG).is_file() else ""
        raise ValueError(f"{path} is a file; load takes a run directory, or a file that Run.export wrote{hint}")
    saved = _config.read_config(path)
    try:
        config = upgraded(saved)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path / _config.CONFIG} has settings of another shape ({error})") from error
    given = network is not None or algorithm is not None
    if algorithm is None:
        try:
            with _naming(path, config, network):
                algorithm = _rebuilt(config["algorithm"], network, env)
        except CannotRebuildError as error:
            argument = next((name for place, name in GIVEN_AS.items() if str(error).startswith(place)), "algorithm")
            told = f"{path / _config.CONFIG}: {str(error).rstrip('.')}. Give it: vx.load(run_dir, {argument}=...)."
            raise ValueError(told) from error
    key, same_format = _config.saved_key(config), config["algorithm"] == saved["algorithm"]
    # An upgraded config lacks settings that did not exist when it was written.
    compared = {"copies": False, "network": not given, "whole": same_format}
    with _naming(path, config, network):
        _config.check_settings(path, config, _config.config_of(algorithm, key), **compared)
    found, elite, metrics = _restoring.read_run(path, algorithm, saved, key), None, []
    if found is not None:
        metrics = found.rows
        variables = algorithm.variables(found.state) if metrics else None
    else:
        metrics, file = rows.read_metrics(path / _config.METRICS), path / _config.ELITE
        if algorithm.from_genome is not None and os.path.lexists(file):
            elite = algorithm.from_genome(lineage.to_json(lineage.load(file)))
        variables = elite
    if variables is not None:
        outputs = None if found is None else found.outputs
        _config.check_fingerprint(path, len(metrics), algorithm, variables, outputs)
    state = None if found is None else found.state
    return Run(algorithm, state, metrics, path, interrupted=None, exit_code=0, elite=elite)


@contextlib.contextmanager
def _naming(path: Path, config: Mapping[str, Any], network: Any) -> Iterator[None]:
    """Makes an error say first if the network that was given is of another class than that of the run."""
    try:
        yield
    except ValueError as error:
        recorded = config["algorithm"].get("network")
        recorded = recorded if isinstance(recorded, dict) else {}
        made_with = str(recorded.get("type", "functions")).rpartition(":")[2]
        others = isinstance(error, CannotRebuildError) or "algorithm.env" in str(error)  # the network is not to blame
        if others or network is None or type(network).__name__ == made_with:
            raise
        told = f"the run was made with {made_with}, and network= is a {type(network).__name__}"
        raise ValueError(f"{path}: {told}: {error}") from error


def _rebuilt(config: Mapping[str, Any], network: Any, env: Env | None) -> Algorithm:
    """Makes an algorithm again from what its `config` says, and from the parts that are given."""
    kind = config.get("algorithm")
    if kind not in ("evolve", "learn"):
        raise CannotRebuildError(f"the algorithm {kind!r} was not made by volvox.evolve or volvox.learn.")
    for name in ("env", "network", "settings") if kind == "learn" else ("env", "network", "strategy", "noise"):
        if not isinstance(config.get(name), dict):
            raise CannotRebuildError(f"algorithm.{name} is not there.")
    made: Env = env_of(config["env"], place="algorithm.env") if env is None else env
    if network is None:
        network = network_of(config["network"], made, place="algorithm.network")
    try:
        return _joined(kind, config, network, made)
    except CannotRebuildError:
        raise
    except ValueError as error:
        recorded, given = (task_of({"algorithm": {"env": dict(part)}}) for part in (config["env"], made.config))
        if recorded == given:
            raise
        raise ValueError(f"the run was made in {recorded}, and env= is {given}: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:  # parts of other kinds than volvox writes
        raise CannotRebuildError(f"the algorithm cannot be made of its parts ({error}).") from error


def _joined(kind: str, config: Mapping[str, Any], network: Any, env: Env) -> Algorithm:
    if kind == "learn":
        names = ("evaluate_every", "num_evaluation_episodes")
        options = {name: config[name] for name in names if name in config}
        return learn(rebuild(config["settings"], place="algorithm.settings"), network, env, **options)
    return evolve(
        rebuild(config["strategy"], place="algorithm.strategy"),
        network,
        env,
        noise=rebuild(config["noise"], place="algorithm.noise"),
        behavior=rebuild(config.get("behavior"), place="algorithm.behavior"),
        max_episode_steps=Cutoff(*config["max_episode_steps"]),
        test_max_episode_steps=config["test_max_episode_steps"],
    )
