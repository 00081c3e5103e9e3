"""Checkpoints of a whole state, written by orbax and verified when they are read.

A checkpoint is a folder named by its step, `00000012/`:

    tree/            the state, written by orbax: arrays, numbers, and the tree around them
    manifest.json    the step, what the caller says of the checkpoint, and SHA-256 of every file above; written last

Orbax knows NamedTuples, None, strings and Python numbers. Added here are a manifest, so that a damaged checkpoint is
noticed and the one before it taken; leaves that orbax does not take (empty arrays, long integers), or takes with their
device (keys); and a checkpoint that is on disk, not in the system's buffers, when `save` returns. It is written beside
its final name and renamed into place, so a process killed at any moment leaves the whole checkpoint or none. Nothing is
pickled.

    checkpoint.save("runs/a/checkpoints", 12, state, keep=3)
    step, state = checkpoint.restore_latest("runs/a/checkpoints", like=state)
"""

import contextlib
import json
import logging
import math
import os
import shutil
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox import _manifest as manifest
from volvox._checks import integer
from volvox._manifest import DamagedCheckpointError, is_folder, sync, unwritten
from volvox._resources import host_memory, shown
from volvox.ops.flat import by_path

__all__ = ["DamagedCheckpointError", "restore", "restore_latest", "save", "steps"]

ArrayTree = Any

_TREE, _UNFINISHED, _SILENCE = "tree", ".unfinished-", threading.Lock()
_KEY, _EMPTY, _LONG = "\0key", "\0empty", "\0long"
"""How leaves that orbax does not take are marked: a key is a dict, an empty array or a long integer a string."""


Check = Callable[[int, Mapping[str, Any]], None]
"""(step, what `save` was given as `about`) -> None; raises `DamagedCheckpointError` to pass a checkpoint over."""


def save(
    directory: str | os.PathLike[str],
    step: int,
    tree: ArrayTree,
    *,
    keep: int | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Writes one checkpoint; returns when it is on disk.

    Checkpoints of later steps are removed: they belong to a future that was abandoned when an earlier one was
    restored.

    Args:
      directory: Folder of all checkpoints of a run; made if missing. One process writes to it at a time.
      step: Number of steps done, at least 0; an existing checkpoint of the same step is replaced.
      tree: A pytree whose dicts have string keys, of strings, bool, int, float, typed PRNG keys, and arrays (numpy or
        jax) of bool, integer, float (bfloat16 too) or complex numbers, of any shape, empty ones included.
      keep: How many of the newest checkpoints stay, at least 1; None keeps all.
      about: What else the checkpoint says of itself, such as the run it belongs to: JSON values.

    Returns:
      The checkpoint's folder.

    Raises:
      TypeError: A leaf of another type, or a dict's key that is no string, named by its place; nothing is written.
      ValueError: A negative step, `keep` below 1, or keys with dots because of which two leaves have one name.
      OSError: It cannot be written; checkpoints of earlier steps are as they were.
    """
    integer("step", step, low=0, high=None)
    if keep is not None:
        integer("keep", keep, low=1, high=None)
    encoded = jax.tree_util.tree_map_with_path(_encoded, tree)
    names = Counter(".".join(place) for place in by_path(tree))
    if twice := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"a checkpoint joins the keys of a tree by dots, and two leaves are then {twice[0]!r}")
    root = Path(directory).absolute()
    if not root.exists():
        root.mkdir(parents=True, exist_ok=True)
        sync(root.parent)
    _clear(root)

    unfinished, final = root / f"{_UNFINISHED}{step:08d}", _folder(root, step)
    unfinished.mkdir()
    try:
        with _unlogged(), _checkpointer() as checkpointer:
            checkpointer.save(unfinished / _TREE, {_TREE: encoded})
        manifest.write(unfinished, step=step, num_bytes=_num_bytes(encoded), about=about or {})
        for path in [*unfinished.rglob("*"), unfinished]:
            sync(path)
    except Exception as error:  # orbax hides a full disk behind errors of other kinds
        shutil.rmtree(unfinished, ignore_errors=True)
        if refused := unwritten(final, error):
            raise refused from error
        raise
    if os.path.lexists(final):  # a folder cannot be renamed onto another: move the old one out of the way first
        condemn(root, step)
    unfinished.rename(final)
    sync(root)

    newest = [s for s in steps(root) if s <= step][-keep if keep else 0 :]
    for obsolete in [s for s in steps(root) if s not in newest]:
        condemn(root, obsolete)
    _clear(root)
    return final


def steps(directory: str | os.PathLike[str]) -> list[int]:
    """Returns the steps of a folder's checkpoints, damaged ones included, ascending; none if there is no folder.

    A checkpoint is a folder with the name that `save` gives it. Links, files and other names are none.
    """
    return sorted(int(path.name) for path in Path(directory).glob("[0-9]*") if _is_checkpoint(path))


def restore(
    directory: str | os.PathLike[str], step: int, like: ArrayTree | None = None, *, check: Check | None = None
) -> ArrayTree:
    """Reads the checkpoint of one step.

    Args:
      directory: Folder of all checkpoints of a run.
      step: One of `steps(directory)`.
      like: The structure that was saved: a tree of arrays, or of shapes as `jax.eval_shape` makes them.
      check: Looks at what the checkpoint says of itself, before its arrays are read; see `Check`. A checkpoint of an
        earlier version says nothing: {}.

    Returns:
      With `like`, its structure, of device arrays. Without, dicts and lists of numpy arrays, typed keys, strings and
      Python numbers: a NamedTuple is a dict of its fields, a tuple a list, a number of numpy an array.

    Raises:
      FileNotFoundError: There is no checkpoint of this step.
      DamagedCheckpointError: It is not what was written.
      MemoryError: It takes more memory than is free.
      ValueError: It is of another structure than `like`; the message names the first difference.
    """
    folder = _folder(directory, step)
    if not folder.is_dir():
        raise FileNotFoundError(f"no checkpoint of step {step} in {directory}; there are {steps(directory)}")
    said = manifest.verified(folder, step)
    if check is not None:
        check(step, said["about"])
    try:
        _check_size(folder, said["bytes"])
        with _unlogged(), _checkpointer() as checkpointer:
            read = checkpointer.restore(folder / _TREE)
        tree = jax.tree.map(_decoded, read[_TREE], is_leaf=lambda node: isinstance(node, dict) and _KEY in node)
    except (DamagedCheckpointError, MemoryError):
        raise
    except Exception as error:  # its files are those of the manifest, but no tree that `save` writes
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: it cannot be read ({reason})") from error
    return tree if like is None else restored(tree, like, what="state")


def restore_latest(
    directory: str | os.PathLike[str],
    like: ArrayTree | None = None,
    *,
    check: Check | None = None,
    convert: Callable[[int, ArrayTree], Any] = lambda step, tree: tree,
) -> tuple[int, Any] | None:
    """Reads the newest checkpoint that is whole.

    Warns (`UserWarning`) of each damaged one passed over, and of what else is in the folder and is left alone.

    Args:
      directory: Folder of all checkpoints of a run.
      like: See `restore`.
      check: See `restore`.
      convert: (step, tree) -> what is wanted of the tree; raises `DamagedCheckpointError` to pass the checkpoint over.

    Returns:
      (step, converted tree), or None if there is no checkpoint at all.

    Raises:
      DamagedCheckpointError: There are checkpoints and every one is damaged.
      MemoryError: It takes more memory than is free.
      ValueError: It is of another structure than `like`; the message names the first difference.
    """
    damages = []
    if foreign := sorted(path.name for path in Path(directory).glob("[!.]*") if not _is_checkpoint(path)):
        text = f"{os.fspath(directory)} holds what is no checkpoint, and is left alone: {', '.join(foreign)}"
        warnings.warn(text, UserWarning, stacklevel=2)
    left = steps(directory)
    while left:
        step = left.pop()
        try:
            tree = convert(step, restore(directory, step, like, check=check))
        except (DamagedCheckpointError, FileNotFoundError) as damage:
            if is_folder(_folder(directory, step)):
                damages.append(str(damage))
            else:  # a run in progress has removed it, after it wrote a newer one
                left, damages = steps(directory), []
            continue
        for text in damages:
            warnings.warn(f"{text}; going back to step {step}", UserWarning, stacklevel=2)
        return step, tree
    if damages:
        raise DamagedCheckpointError(
            f"every checkpoint in {directory} is damaged, nothing can be restored:\n  " + "\n  ".join(damages)
        )
    return None


def about_latest(directory: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Returns what the newest checkpoint says of itself; {} where there is none, or none that can be read."""
    try:
        return manifest.read(_folder(directory, steps(directory)[-1]))["about"]
    except (IndexError, DamagedCheckpointError):
        return {}


def is_key(leaf: Any) -> bool:
    """Whether a leaf holds typed PRNG keys, or is the shape of such an array."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def restored(saved: Any, like: Any, *, what: str) -> Any:
    """Gives a tree that was read from a checkpoint the structure it was saved with.

    Args:
      saved: The tree as `restore` returns it without `like`.
      like: A tree of the wanted structure: of arrays and numbers, or of shapes (`jax.ShapeDtypeStruct`).
      what: The tree belongs to, as the message calls it.

    Returns:
      The tree, of device arrays. Python numbers, and 64-bit arrays that JAX would cut to 32 bits, stay as they are.

    Raises:
      ValueError: `saved` is of another tree; the message names the first difference.
    """
    has, wanted = by_path(saved), by_path(like)
    for place in dict.fromkeys([*has, *wanted]):
        found, needed = (_describe(tree[place]) if place in tree else "nothing" for tree in (has, wanted))
        if found != needed:
            at = repr("/".join(place)) if place else "its root"
            raise ValueError(f"the checkpoint is of another {what}: at {at} it holds {found}, and this one {needed}")
    return jax.tree.unflatten(jax.tree.structure(like), [_on_device(has[place]) for place in wanted])


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a whole file atomically and to disk: a reader, or a kill at any moment, finds the old one or the new.

    Args:
      path: Path of the file; its directory exists.
      content: Text (written as UTF-8) or bytes.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}")
    try:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        sync(unfinished)
        os.replace(unfinished, path)
        sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _folder(directory: str | os.PathLike[str], step: int) -> Path:
    return Path(directory).absolute() / f"{step:08d}"


def _is_checkpoint(path: Path) -> bool:
    name = path.name
    return name.isascii() and name.isdigit() and name == f"{int(name):08d}" and is_folder(path)


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp  # half a second

    # Not orbax's CheckpointManager: it renames a checkpoint into place before a manifest of all its files could be
    # written, does not wait for the disk, and takes half as long again.
    alone: dict[str, Any] = {}
    if jax.process_count() > 1:  # each reads, and one writes, without waiting for the others
        me = jax.process_index()
        alone["multiprocessing_options"] = ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me})
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**alone), **alone)


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keeps orbax and TensorStore from printing tracebacks of an error that is raised as well.

    At the first error orbax closes the event loop to which the threads of TensorStore still report further ones.
    """
    with _SILENCE:  # what is changed here belongs to the whole process, and runs of several threads may save
        logger, shown = logging.getLogger("absl"), sys.unraisablehook
        level = logger.level
        logger.setLevel(logging.CRITICAL)
        sys.unraisablehook = lambda raised: None if str(raised.exc_value) == "Event loop is closed" else shown(raised)
        try:
            yield
        except Exception:  # whatever orbax raises; it is raised again, once those threads have reported
            time.sleep(1.0)
            raise
        finally:
            logger.setLevel(level)
            sys.unraisablehook = shown


def _encoded(path: tuple[Any, ...], leaf: Any) -> Any:
    """A leaf in a form that orbax takes."""
    place = f"tree{jax.tree_util.keystr(path)}"
    for entry in path:
        if isinstance(entry, jax.tree_util.DictKey) and not isinstance(entry.key, str):
            raise TypeError(f"{place}: a checkpoint's dict keys are strings, got the key {entry.key!r}")
    if type(leaf) in (bool, float, str):
        return leaf
    if type(leaf) is int:
        return leaf if -(2**63) <= leaf < 2**63 else f"{_LONG} {leaf}"
    if is_key(leaf):
        return {_KEY: str(jax.random.key_impl(leaf)), "data": np.asarray(jax.random.key_data(leaf))}
    if not isinstance(leaf, np.ndarray | np.generic | jax.Array) or isinstance(leaf, np.ma.MaskedArray):
        raise TypeError(f"{place}: a checkpoint cannot hold a {type(leaf).__module__}.{type(leaf).__qualname__}")
    array = np.asarray(leaf)
    known = array.dtype == bool or (jnp.issubdtype(array.dtype, np.number) and array.dtype.char not in "gG")
    if not known or not array.dtype.isnative:
        raise TypeError(f"{place}: a checkpoint holds no array of dtype {array.dtype}")
    return array if array.size else f"{_EMPTY} {array.dtype.name} {json.dumps(array.shape)}"


def _decoded(leaf: Any) -> Any:
    if isinstance(leaf, dict):
        return jax.random.wrap_key_data(jnp.asarray(leaf["data"]), impl=leaf[_KEY])
    if isinstance(leaf, str) and leaf.startswith(_LONG):
        return int(leaf.removeprefix(_LONG))
    if isinstance(leaf, str) and leaf.startswith(_EMPTY):
        dtype, shape = leaf.removeprefix(_EMPTY).split(maxsplit=1)
        if 0 not in json.loads(shape):  # it would not be empty
            raise ValueError(f"{leaf!r} is no empty array")
        return np.zeros(json.loads(shape), jnp.dtype(dtype))
    return leaf


def _num_bytes(tree: ArrayTree) -> int:
    """Bytes of the arrays of a tree, or of what describes it; numbers are not counted."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if getattr(leaf, "shape", ())]
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)


def _check_size(folder: Path, saved: int | None) -> None:
    """Raises an error, before anything is read, if the arrays take other bytes than were saved, or too many."""
    import orbax.checkpoint as ocp  # half a second

    handler: Any = ocp.PyTreeCheckpointHandler()  # takes any path
    described = handler.metadata(folder / _TREE).tree
    for leaf in jax.tree.leaves(described):
        pieces = getattr(getattr(leaf, "storage", None), "chunk_shape", None) or ()
        if any(piece > max(size, 1) for piece, size in zip(pieces, getattr(leaf, "shape", ()), strict=True)):
            # A piece is read whole, and may be of zeros that take next to nothing on disk.
            raise DamagedCheckpointError(f"checkpoint {folder} is damaged: a piece of {leaf.name} is larger than it")
    needed = _num_bytes(described)
    if saved is not None and needed != saved:
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: it has {needed} bytes of arrays, of {saved}")
    free = host_memory()
    if free is not None and needed > free:
        raise MemoryError(f"checkpoint {folder} takes {shown(needed)} of memory, and {shown(free)} are free")


def condemn(directory: str | os.PathLike[str], step: int) -> None:
    """Renames a checkpoint, which the next `save` removes; a kill half-way leaves none rather than a damaged one."""
    (folder := _folder(directory, step)).rename(folder.with_name(f"{_UNFINISHED}{folder.name}-removed"))


def _clear(root: Path) -> None:
    for leftover in root.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):  # what another process still reads on a network's disk goes next time
            shutil.rmtree(leftover) if is_folder(leftover) else leftover.unlink()


def _describe(leaf: Any) -> str:
    """Shape and dtype as JAX would hold them, so that a Python number is like an array of no dimensions."""
    if isinstance(leaf, str):
        return "a string"
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.dtype(type(leaf))
    return f"{np.shape(leaf)} {dtype if is_key(leaf) else jax.dtypes.canonicalize_dtype(dtype)}"


def _on_device(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray) and jax.dtypes.canonicalize_dtype(leaf.dtype) == leaf.dtype:
        return jnp.asarray(leaf)
    return leaf
