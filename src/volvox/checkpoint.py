"""Checkpoints of a whole state: written atomically, rotated, verified before they are believed.

A checkpoint is a folder named by its step, `00000012/`:

    arrays/          the arrays, written by orbax
    structure.json   the tree around them: dicts, lists, tuples, None, strings and Python numbers
    manifest.json    size and SHA-256 of every file above; written last

It is written beside its final name and renamed into place, so a process killed at any moment leaves either the whole
checkpoint or none. Nothing is pickled.
"""

import hashlib
import json
import math
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

ArrayTree = Any

_ARRAYS, _STRUCTURE, _MANIFEST = "arrays", "structure.json", "manifest.json"
_UNFINISHED = ".unfinished-"
_DTYPES = {"bool", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class DamagedCheckpointError(Exception):
    """A checkpoint is not what was written: a file is missing, truncated, changed or superfluous."""


def save(directory: str | os.PathLike[str], step: int, tree: ArrayTree, *, keep: int | None = None) -> Path:
    """Writes one checkpoint; returns when it is on disk.

    Checkpoints of later steps are removed: they belong to a future that was abandoned when an earlier one was
    restored.

    Args:
        directory: folder of all checkpoints of a run; made if missing. One process writes to it at a time.
        step: number of steps done, at least 0; an existing checkpoint of the same step is replaced.
        tree: dicts with string keys, lists, tuples, None, strings, bool, int, float, and arrays (numpy or jax) of
            bool, integer, float (bfloat16 too) or complex numbers, of any shape, empty ones included.
        keep: how many of the newest checkpoints stay, at least 1; None keeps all.

    Returns:
        The checkpoint's folder.

    Raises:
        TypeError: a leaf or a container of another type, named by its place in the tree; nothing is written.
        ValueError: a negative step, or `keep` below 1.
    """
    if step < 0:
        raise ValueError(f"step must be at least 0, got {step}")
    if keep is not None and keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}: the checkpoint just written always stays")
    arrays: dict[str, np.ndarray] = {}
    structure = _describe(tree, arrays, "tree")
    root = Path(directory).absolute()
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover)

    unfinished, final = root / f"{_UNFINISHED}{step:08d}", folder_of(root, step)
    unfinished.mkdir()
    if arrays:
        with _checkpointer() as checkpointer:
            checkpointer.save(unfinished / _ARRAYS, arrays)
    (unfinished / _STRUCTURE).write_text(json.dumps(structure, allow_nan=False))
    (unfinished / _MANIFEST).write_text(json.dumps(_fingerprints(unfinished), indent=1))
    for path in [*unfinished.rglob("*"), unfinished]:
        _sync(path)
    if final.exists():  # a folder cannot be renamed onto another: move the old one out of the way first
        final.rename(root / f"{_UNFINISHED}{step:08d}-replaced")
    unfinished.rename(final)
    _sync(root)

    done = steps(root)
    obsolete = [s for s in done if s > step]
    if keep is not None:
        obsolete += [s for s in done if s <= step][:-keep]
    for s in obsolete:
        _remove(folder_of(root, s))
    for leftover in root.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover)
    return final


def folder_of(directory: str | os.PathLike[str], step: int) -> Path:
    """Where the checkpoint of a step is, or would be."""
    return Path(directory).absolute() / f"{step:08d}"


def steps(directory: str | os.PathLike[str]) -> list[int]:
    """Steps of the checkpoints in a folder, ascending; damaged ones included. Empty if there is no such folder."""
    root = Path(directory)
    if not root.is_dir():
        return []
    return sorted(int(p.name) for p in root.iterdir() if p.is_dir() and p.name.isascii() and p.name.isdigit())


def restore(directory: str | os.PathLike[str], step: int) -> ArrayTree:
    """Reads the checkpoint of one step.

    Args:
        directory: folder of all checkpoints of a run.
        step: one of `steps(directory)`.

    Returns:
        The tree as it was given to `save`, every array a numpy array of the same shape and dtype.

    Raises:
        FileNotFoundError: there is no checkpoint of this step.
        DamagedCheckpointError: it is not what was written.
    """
    folder = folder_of(directory, step)
    if not folder.is_dir():
        raise FileNotFoundError(f"no checkpoint of step {step} in {directory}; there are {steps(directory)}")
    _verify(folder)
    structure = json.loads((folder / _STRUCTURE).read_text())
    arrays: dict[str, np.ndarray] = {}
    if (folder / _ARRAYS).exists():
        names = _array_names(structure)
        as_numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        with _checkpointer() as checkpointer:
            arrays = checkpointer.restore(folder / _ARRAYS, restore_args=as_numpy)
    return _rebuild(structure, arrays)


def restore_latest(directory: str | os.PathLike[str]) -> tuple[int, ArrayTree] | None:
    """Reads the newest checkpoint that is whole; warns (`UserWarning`) of each damaged one passed over.

    Args:
        directory: folder of all checkpoints of a run.

    Returns:
        (step, tree), or None if there is no checkpoint at all.

    Raises:
        DamagedCheckpointError: there are checkpoints and every one is damaged.
    """
    damages = []
    for step in reversed(steps(directory)):
        try:
            tree = restore(directory, step)
        except DamagedCheckpointError as damage:
            damages.append(str(damage))
            continue
        for text in damages:
            warnings.warn(f"{text}; going back to step {step}", UserWarning, stacklevel=2)
        return step, tree
    if damages:
        raise DamagedCheckpointError(
            f"every checkpoint in {directory} is damaged, nothing can be restored:\n  " + "\n  ".join(damages)
        )
    return None


def _checkpointer() -> ocp.Checkpointer:
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())


def _describe(node: Any, arrays: dict[str, np.ndarray], place: str) -> Any:
    """The JSON description of a tree: a node is [kind, content]. Arrays are put into `arrays` under a new name."""
    # Exact types: a subclass (a NamedTuple, an OrderedDict) would come back as something else.
    if node is None or type(node) in (bool, int, str):
        return ["value", node]
    if type(node) is float:
        return ["value", node] if math.isfinite(node) else ["float", str(node)]
    if type(node) is dict:
        for key in node:
            if type(key) is not str:
                raise TypeError(f"{place}: a checkpoint's dict keys are strings, got the key {key!r}")
        return ["dict", {key: _describe(child, arrays, f"{place}[{key!r}]") for key, child in node.items()}]
    if type(node) in (list, tuple):
        children = [_describe(child, arrays, f"{place}[{i}]") for i, child in enumerate(node)]
        return [type(node).__name__, children]
    if isinstance(node, jax.Array) and jnp.issubdtype(node.dtype, jax.dtypes.prng_key):
        raise TypeError(f"{place}: a checkpoint holds no typed key; save jax.random.key_data(key)")
    if isinstance(node, (np.ndarray, np.generic, jax.Array)) and type(node) is not np.ma.MaskedArray:
        array = np.asarray(node)
        if array.dtype.name not in _DTYPES or not array.dtype.isnative:
            raise TypeError(f"{place}: a checkpoint holds no array of dtype {array.dtype}")
        kind = "scalar" if isinstance(node, np.generic) else "array"
        if array.size == 0:  # orbax refuses these; shape and dtype say all
            return ["empty", [array.dtype.name, list(array.shape)]]
        name = str(len(arrays))
        arrays[name] = array
        return [kind, name]
    hint = "; give its fields as a dict (._asdict())" if isinstance(node, tuple) else ""
    raise TypeError(f"{place}: a checkpoint cannot hold a {type(node).__module__}.{type(node).__qualname__}{hint}")


def _rebuild(description: Any, arrays: dict[str, np.ndarray]) -> Any:
    kind, content = description
    match kind:
        case "value":
            return content
        case "float":
            return float(content)
        case "dict":
            return {key: _rebuild(child, arrays) for key, child in content.items()}
        case "list":
            return [_rebuild(child, arrays) for child in content]
        case "tuple":
            return tuple(_rebuild(child, arrays) for child in content)
        case "array":
            return arrays[content]
        case "scalar":
            return arrays[content][()]
        case "empty":
            return np.zeros(content[1], jnp.dtype(content[0]))
        case _:
            raise ValueError(f"this checkpoint was written by a newer volvox: unknown node kind {kind!r}")


def _array_names(description: Any) -> list[str]:
    kind, content = description
    if kind in ("array", "scalar"):
        return [content]
    children = content.values() if kind == "dict" else content if kind in ("list", "tuple") else []
    return [name for child in children for name in _array_names(child)]


def _fingerprints(folder: Path) -> dict[str, list[Any]]:
    """{relative path: [bytes, SHA-256]} of every file in the folder but the manifest itself."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / _MANIFEST)
    return {p.relative_to(folder).as_posix(): [p.stat().st_size, _sha256(p)] for p in files}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(folder: Path) -> None:
    # Checked by our own sums: orbax may read a damaged file without noticing.
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
    except (FileNotFoundError, ValueError) as error:
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: no readable {_MANIFEST}") from error
    found = _fingerprints(folder)
    if found != manifest:
        names = sorted(name for name in {*found, *manifest} if found.get(name) != manifest.get(name))
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: missing, changed or unknown: {', '.join(names)}")


def _remove(folder: Path) -> None:
    """Removes a checkpoint; killed half-way, it leaves none rather than a damaged one."""
    condemned = folder.with_name(f"{_UNFINISHED}{folder.name}-removed")
    folder.rename(condemned)
    shutil.rmtree(condemned)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
