"""Metrics: one JSON object a line (`metrics.jsonl`), and TensorBoard event files without TensorFlow."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter

from volvox import _files

Row = dict[str, Any]
"""One step's metrics: numbers, strings, booleans, None, or (nested) lists and dicts of them."""


def to_json(value: Any, place: str = "metrics") -> Any:
    """Returns the strict-JSON form of a metric: numpy and jax values become Python's, NaN and infinities None.

    Args:
      value: a number, string, boolean, None, array, or a list, tuple or string-keyed mapping of these.
      place: what errors call the value.

    Raises:
      TypeError: anything else, named by its place.
    """
    if hasattr(value, "dtype"):
        array = np.asarray(value)
        if array.dtype.kind in "biufV" and array.dtype.fields is None:  # bfloat16 and its kin have kind V
            value = array.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [to_json(child, f"{place}[{i}]") for i, child in enumerate(value)]
    if not isinstance(value, Mapping):
        raise TypeError(f"{place}: JSON has no {type(value).__module__}.{type(value).__qualname__}")
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"{place}: keys must be strings, got {key!r}")
    return {key: to_json(child, f"{place}[{key!r}]") for key, child in value.items()}


def append(path: str | os.PathLike[str], row: Row) -> None:
    """Appends one row, already in JSON form (`to_json`), and returns when it is on disk."""
    line = json.dumps(row, allow_nan=False) + "\n"
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read(path: str | os.PathLike[str]) -> list[Row]:
    """Reads all whole rows; a last line without its newline, cut short by a kill, is left out. No file, no rows.

    Raises:
      ValueError: a whole line is not a JSON object.
    """
    path = Path(path)
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is not a whole row
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, is not JSON: {line[:80]!r}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}, is not a JSON object: {line[:80]!r}")
        rows.append(row)
    return rows


def rewrite(path: str | os.PathLike[str], rows: Iterable[Row]) -> None:
    """Replaces the file's rows by these, atomically: readers, and a kill, see the old file or the new one."""
    _files.write(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


class EventWriter:
    """A TensorBoard event file, written without TensorFlow."""

    def __init__(self, directory: str | os.PathLike[str], *, first_step: int = 1):
        """Opens a new event file.

        Args:
          directory: folder of the event files, made if missing.
          first_step: TensorBoard hides what earlier files hold at this step and after it.
        """
        # Files are named by the second: without a suffix a quick resume would overwrite the file before.
        suffix = f".from-{first_step}"
        self._writer = SummaryWriter(str(directory), purge_step=first_step, flush_secs=3600, filename_suffix=suffix)

    def write(self, step: int, row: Row) -> None:
        """Writes every finite number of a row as a scalar at this step, and flushes."""
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        self._writer.close()
