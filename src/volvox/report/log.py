"""Arrays that a run keeps of each step, beside its metrics: one compressed file a step."""

import io
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from volvox import _files

_SUFFIX = ".npz"


def write(directory: str | os.PathLike[str], step: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes one step's arrays, atomically; makes the directory."""
    folder = Path(directory)
    folder.mkdir(exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # pyright: ignore[reportArgumentType]  # a name could be allow_pickle
    _files.write(folder / f"{step:06d}{_SUFFIX}", content.getvalue())


def read(directory: str | os.PathLike[str]) -> dict[int, dict[str, np.ndarray]]:
    """Reads all steps, by number, in order.

    Raises:
      FileNotFoundError: nothing is logged there.
    """
    steps = {}
    for path in _paths(Path(directory)):
        with np.load(path, allow_pickle=False) as arrays:
            steps[int(path.stem)] = dict(arrays)
    if not steps:
        raise FileNotFoundError(
            f"nothing is logged in {os.fspath(directory)}; train with log=True (in the scripts: --log)."
        )
    return steps


def drop_after(directory: str | os.PathLike[str], step: int) -> None:
    """Removes what was logged of steps after a given one, which a resumed run does again."""
    for path in _paths(Path(directory)):
        if int(path.stem) > step:
            path.unlink()


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"[0-9]*{_SUFFIX}"), key=lambda path: int(path.stem))
