"""Checkpoints of a run's state: orbax writes the arrays, and a record beside them tells whether they can be trusted.

    checkpoints/00000012/
        state/         the state, written by orbax
        record.json    step, number of metric rows, digest of the settings, digest of the files

A checkpoint is written under another name and then renamed, so that a kill at any moment leaves a whole checkpoint or
none. `restore_latest` skips checkpoints that are damaged or belong to another run, with a warning.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox.types import ArrayTree

_STATE, _RECORD, _UNFINISHED = "state", "record.json", ".unfinished"
_KEY, _EMPTY = "\0key", "\0empty"
"""Marks of leaves that orbax does not store: typed PRNG keys and arrays without elements."""


class DamagedCheckpointError(Exception):
    """No checkpoint of a run can be used."""


def save(directory: Path, step: int, state: ArrayTree, *, keep: int, settings: str) -> None:
    """Writes one checkpoint and removes old ones, and those of later steps.

    Args:
      directory: Folder of all checkpoints of a run. It is made if it does not exist.
      step: Number of completed steps, each with a row of metrics. An existing checkpoint of this step is replaced.
      state: A pytree of arrays, typed PRNG keys, strings and numbers. Keys of dicts are strings.
      keep: Number of newest checkpoints that are kept.
      settings: Digest of the run's settings.

    Raises:
      OSError: The checkpoint cannot be written; earlier checkpoints are as they were.
    """
    unfinished, final = directory / _UNFINISHED, _folder(directory, step)
    encoded = jax.tree.map(_encode, state)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        with _checkpointer() as checkpointer:
            checkpointer.save(unfinished.absolute() / _STATE, {_STATE: encoded})
        record = {"step": step, "settings": settings, "files": _digest(unfinished / _STATE)}
        (unfinished / _RECORD).write_text(json.dumps(record) + "\n")
        shutil.rmtree(final, ignore_errors=True)
        unfinished.rename(final)
    except (OSError, ValueError, RuntimeError) as error:  # orbax reports a full disk in several ways
        shutil.rmtree(unfinished, ignore_errors=True)
        raise OSError(f"checkpoint {final} cannot be written: {error}. Earlier checkpoints are intact.") from error
    remove_after(directory, step)
    for old in steps(directory)[:-keep]:
        _remove(directory, old)


def steps(directory: Path) -> list[int]:
    """Returns the steps of all checkpoints in a folder, damaged ones included, in ascending order."""
    names = (path.name for path in directory.glob("[0-9]" * 8 + "*"))
    return sorted(int(name) for name in names if name.isdecimal())


def restore_latest(
    directory: Path, *, count_rows: Callable[[], int], settings: str, restore: Callable[[ArrayTree], Any]
) -> tuple[int, Any] | None:
    """Reads the newest checkpoint that is whole and belongs to the run; warns about each one that is skipped.

    Args:
      directory: Folder of all checkpoints of a run.
      count_rows: Returns the number of rows of metrics. It is called after a checkpoint was found, because a run in
        progress writes a row before the checkpoint.
      settings: Digest of the run's settings.
      restore: Makes the state of nested dicts and lists, as orbax reads them.

    Returns:
      (step, state), or None if there is no checkpoint.

    Raises:
      DamagedCheckpointError: There are checkpoints, but none can be used.
    """
    problems: list[str] = []
    for step in reversed(steps(directory)):
        folder = _folder(directory, step)
        if problem := _problem(folder, step, count_rows, settings):
            if folder.exists():  # otherwise the process that trains has removed it
                problems.append(f"checkpoint {folder} is skipped: {problem}")
            continue
        for problem in problems:
            warnings.warn(f"{problem}; the checkpoint of step {step} is used", UserWarning, stacklevel=2)
        try:
            with _checkpointer() as checkpointer:
                tree = checkpointer.restore(folder.absolute() / _STATE)[_STATE]
        except FileNotFoundError:
            if folder.exists():
                raise
            # The process that trains has removed it and saved newer ones.
            return restore_latest(directory, count_rows=count_rows, settings=settings, restore=restore)
        tree = jax.tree.map(_decode, tree, is_leaf=lambda leaf: isinstance(leaf, dict) and _KEY in leaf)
        return step, restore(tree)
    if problems:
        raise DamagedCheckpointError(f"no checkpoint in {directory} can be used:\n  " + "\n  ".join(problems))
    return None


def remove_after(directory: Path, step: int) -> None:
    """Removes the checkpoints of steps later than `step`."""
    for later in steps(directory):
        if later > step:
            _remove(directory, later)


def _folder(directory: Path, step: int) -> Path:
    return directory / f"{step:08d}"


def _remove(directory: Path, step: int) -> None:
    # Renamed first: a kill while files are deleted must not leave a damaged checkpoint.
    unfinished = directory / _UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    _folder(directory, step).rename(unfinished)
    shutil.rmtree(unfinished, ignore_errors=True)


def _problem(folder: Path, step: int, count_rows: Callable[[], int], settings: str) -> str:
    """Returns why a checkpoint cannot be used; "" if it can."""
    try:
        record = json.loads((folder / _RECORD).read_text())
        if (record["step"], record["files"]) != (step, _digest(folder / _STATE)):
            return "its files are damaged"
        if record["settings"] != settings:
            return "it belongs to another run, with other settings or another seed"
        if step > (num_rows := count_rows()):
            return f"the run has only {num_rows} rows of metrics, and the checkpoint belongs to {step}"
    except (OSError, KeyError, TypeError, ValueError):
        return f"{_RECORD} cannot be read"
    return ""


def _digest(folder: Path) -> str:
    """SHA-256 of the names and contents of all files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp  # takes half a second

    options: dict[str, Any] = {}
    if jax.process_count() > 1:  # each process reads and the first one writes, without waiting for the others
        this = jax.process_index()
        multiprocessing = ocp.options.MultiprocessingOptions(primary_host=this, active_processes={this})
        options["multiprocessing_options"] = multiprocessing
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options), **options)


def _encode(leaf: Any) -> Any:
    """Returns a leaf in a form that orbax stores."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return {_KEY: str(jax.random.key_impl(leaf)), "data": np.asarray(jax.random.key_data(leaf))}
    if isinstance(leaf, np.ndarray | np.generic | jax.Array):
        array = np.asarray(leaf)
        return array if array.size else f"{_EMPTY} {array.dtype.name} {json.dumps(array.shape)}"
    return leaf


def _decode(leaf: Any) -> Any:
    if isinstance(leaf, dict):
        return jax.random.wrap_key_data(jnp.asarray(leaf["data"]), impl=leaf[_KEY])
    if isinstance(leaf, str) and leaf.startswith(_EMPTY):
        _, dtype, shape = leaf.split(maxsplit=2)
        return np.zeros(json.loads(shape), jnp.dtype(dtype))
    return leaf
