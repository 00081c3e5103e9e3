"""Trained agents that come with volvox, and files that others published.

    print(vx.zoo.list())
    run = vx.zoo.load("frostbite-ga")
    run.watch("frostbite.mp4")
    print(run.evaluate())

`Run.publish` writes the same kind of file. It is in the format of safetensors: weights, and as text the settings that
rebuild the algorithm (`config.json`) and a card with the score and its origin. Where a strategy keeps lineages, the
file holds the lineage of the elite instead of weights, a few hundred bytes from which they are computed again. Loading
executes no code of the file; see `volvox.load`.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from volvox._checks import import_extra
from volvox.ops.flat import by_path
from volvox.report.files import ELITE, read_config, write_file
from volvox.runs.config import to_json
from volvox.runs.directory import provenance
from volvox.runs.run import Run, rebuild
from volvox.types import ArrayTree, Genotype

SUFFIX = ".safetensors"
_AGENTS = Path(__file__).parent / "agents"
_HUB, _HUB_FILE = "hf://", f"agent{SUFFIX}"


def list() -> dict[str, dict[str, Any]]:
    """Returns the cards of the agents that come with volvox, by name.

    A card has the `environment`, the `protocol` of its score (see `volvox.play`), `mean`, the ends `low` and `high` of
    a 95% interval (None if nothing is random), `num_episodes`, `command`, `revision`, `date` and `licence`.
    """
    return {path.stem: card(path) for path in sorted(_AGENTS.glob(f"*{SUFFIX}"))}


def load(name: str | os.PathLike[str], *, custom: Iterable[Any] = ()) -> Run:
    """Loads an agent, to play, film or export it.

    Args:
      name: A name of `list`, the path of a file of `publish`, or `hf://USER/NAME` for an agent on the Hugging Face Hub,
        which needs the extra `hub`.
      custom: The user's classes and functions that the settings name; see `volvox.load`.

    Returns:
      The run, without state, metrics and directory.

    Raises:
      ValueError: There is no such agent, the file is none, or its algorithm cannot be rebuilt.
      ImportError: `hf://` without huggingface-hub.
    """
    path = _path(name)
    text, weights = _read(path)
    algorithm = rebuild(text["config"]["algorithm"], tuple(custom), path)
    if algorithm.from_genome is not None and "lineage" in text:
        return Run(algorithm, None, [], None, interrupted=None, elite=algorithm.from_genome(text["lineage"]))
    network, params = algorithm.config.get("network"), jax.eval_shape(algorithm.policy.init, jax.random.key(0))
    like = jax.eval_shape(network.prepare, params) if isinstance(network, Genotype) else params
    names = _named(like)
    if {key: (x.shape, x.dtype) for key, x in names.items()} != {key: (x.shape, x.dtype) for key, x in weights.items()}:
        raise ValueError(f"{path}: its weights do not fit the network of its settings")
    variables = jax.tree.unflatten(jax.tree.structure(like), [weights[key] for key in names])
    return Run(algorithm, None, [], None, interrupted=None, elite=variables)


def card(name: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the card of an agent; see `list` and `load`."""
    return _read(_path(name))[0]["card"]


def publish(
    run: Run,
    path: str | os.PathLike[str],
    *,
    licence: str = "Apache-2.0",
    origin: Mapping[str, str] | None = None,
    **options: Any,
) -> Path:
    """Writes the best policy of a run to a file that `load` reads.

    Args:
      run: The run.
      path: The file; it ends in `.safetensors`, which is added if it is missing.
      licence: Licence under which others may use the agent.
      origin: `command`, `revision` and `date` of the training. None: those of the run directory, or of this program.
      **options: Arguments of `Run.evaluate`, which gives the score, except `which` and `sampled`.

    Returns:
      The file.

    Raises:
      ValueError: The run has no policy or comes from such a file, or `Run.evaluate` refuses an argument.
    """
    if run.state is None and run.run_dir is None:
        raise ValueError("this run was loaded from a published file: copy that file")
    path, algorithm, score = Path(path), run.algorithm, run.evaluate(which="best", sampled=False, **options)
    path = path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)
    config = {"algorithm": to_json(algorithm.config)} if run.run_dir is None else read_config(run.run_dir)
    made = origin or config.get("provenance") or provenance()
    about: dict[str, Any] = {"environment": algorithm.env.spec.name, "protocol": score.protocol, "about": score.about}
    about |= {"mean": score.mean, "low": score.low, "high": score.high, "num_episodes": len(score.returns)}
    about |= {key: made.get(key) for key in ("command", "revision", "date")} | {"licence": licence}
    text = {"card": about, "config": {"algorithm": config["algorithm"]}}
    if algorithm.genome is None:
        weights = {key: np.asarray(x) for key, x in _named(run.variables()).items()}
    else:
        weights = {"lineage": np.zeros(0, np.int32)}  # a file needs a tensor
        stored = run.run_dir and run.state is None and (run.run_dir / ELITE).read_text()
        text["lineage"] = json.loads(stored) if stored else algorithm.genome(run.state)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, save(weights, {key: json.dumps(value) for key, value in text.items()}))
    return path


def push_to_hub(run: Run, repository: str, **options: Any) -> str:
    """Publishes a run on the Hugging Face Hub, from where `load("hf://USER/NAME")` reads it.

    Args:
      run: The run.
      repository: `USER/NAME`; it is made if it does not exist. `hf auth login` stores the access token.
      **options: Arguments of `publish`.

    Returns:
      The address of the file.

    Raises:
      ImportError: huggingface-hub is not installed.
    """
    hub = import_extra("huggingface_hub", "hub")
    with tempfile.TemporaryDirectory() as folder:
        path = publish(run, Path(folder, _HUB_FILE), **options)
        about = card(path)
        readme = f"---\nlicense: {about['licence'].lower()}\ntags: [reinforcement-learning, volvox]\n---\n"
        readme += f"# {about['environment']}\n\nMean return {about['mean']:g} ({about['about']}).\n\n"
        readme += f'```python\nimport volvox as vx\n\nvx.zoo.load("{_HUB}{repository}").watch("episode.mp4")\n```\n'
        api = hub.HfApi()
        api.create_repo(repository, exist_ok=True)
        api.upload_file(path_or_fileobj=readme.encode(), path_in_repo="README.md", repo_id=repository)
        return str(api.upload_file(path_or_fileobj=path, path_in_repo=_HUB_FILE, repo_id=repository))


def _path(name: str | os.PathLike[str]) -> Path:
    if str(name).startswith(_HUB):
        return Path(import_extra("huggingface_hub", "hub").hf_hub_download(str(name).removeprefix(_HUB), _HUB_FILE))
    for path in (_AGENTS / f"{name}{SUFFIX}", Path(name), Path(f"{name}{SUFFIX}")):
        if path.is_file():
            return path
    names = ", ".join(path.stem for path in sorted(_AGENTS.glob(f"*{SUFFIX}")))
    raise ValueError(f"{str(name)!r} is neither a file nor an agent of the zoo, which has {names}")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns (texts, weights)."""
    try:
        with safe_open(path, "numpy") as file:
            text = {key: json.loads(value) for key, value in (file.metadata() or {}).items()}
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # no mapping
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is not a file of run.publish: {error}") from error
    if not isinstance(text.get("card"), dict) or "algorithm" not in text.get("config", ()):
        raise ValueError(f"{path} is not a file of run.publish: it has no card or no settings")
    return text, weights


def _named(variables: ArrayTree) -> dict[str, Any]:
    """Returns the leaves by their paths."""
    return {".".join(path): x for path, x in by_path(variables).items()}
