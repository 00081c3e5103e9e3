"""What a run writes of each step.

Metrics are a row, one JSON object a line (`metrics.jsonl`). The log holds arrays, one compressed file a step.
"""

import hashlib
import io
import json
import math
import os
import sys
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from volvox.checkpoint import about_latest, write_file

ABOUT = "rows"
"""What a checkpoint calls the digest of the rows up to its step."""
Row = dict[str, Any]
"""One step's metrics: numbers, strings, booleans, None, or (nested) lists and dicts of them."""


def to_json(value: Any, place: str = "metrics") -> Any:
    """Returns the strict-JSON form of a metric: numpy and jax values become Python's, NaN and infinities None.

    Args:
      value: A number, string, boolean, None, array, or a list, tuple or string-keyed mapping of these.
      place: What errors call the value.

    Raises:
      TypeError: Anything else, named by its place.
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


def append_row(path: str | os.PathLike[str], row: Row) -> None:
    """Appends one row, already in JSON form (`to_json`), and returns when it is on disk."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(to_line(row))
        file.flush()
        os.fsync(file.fileno())


def read_metrics(path: str | os.PathLike[str]) -> list[Row]:
    """Reads all whole rows; a last line without its newline, cut short by a kill, is left out. No file, no rows.

    Raises:
      ValueError: A whole line is not a JSON object, or the newest checkpoint beside the file was saved with others.
    """
    saved = about_latest(Path(path).parent / "checkpoints").get(ABOUT)  # first, since a run in progress adds rows
    rows, damage = read_until_damage(path)
    if damage:
        raise ValueError(damage)
    if saved is not None and saved not in [sum_.hexdigest() for sum_ in digests(rows)]:
        raise ValueError(f"{path} is damaged: its rows are not those that were saved with the newest checkpoint")
    return rows


def digests(rows: Iterable[Row]) -> list[Any]:
    """Returns SHA-256 of no row, of the first, of the first two, and so on, by which checkpoints know their rows."""
    sums = [hashlib.sha256()]
    for row in rows:
        sums.append(sums[-1].copy())
        sums[-1].update(to_line(row).encode())
    return sums


def read_until_damage(path: str | os.PathLike[str]) -> tuple[list[Row], str]:
    """Reads rows as `read_metrics`, up to the first whole line that is no JSON object; "", or what is wrong with it."""
    path, rows = Path(path), []
    if not path.is_file():
        return [], f"{path} is no file" if path.exists() else ""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is not a whole row
        try:
            row = json.loads(line)
            to_line(row)  # refuses numbers that are not finite
        except (RecursionError, ValueError):
            row = None
        if not isinstance(row, dict):
            return rows, f"{path}, line {number}, is not a JSON object: {line[:80]!r}"
        rows.append(row)
    return rows, ""


def to_line(row: Row) -> str:
    """Returns the line of a row that is in JSON form already (`to_json`)."""
    return json.dumps(row, allow_nan=False) + "\n"


def rewrite(path: str | os.PathLike[str], rows: Iterable[Row]) -> None:
    """Replaces the file's rows by these, atomically: readers, and a kill, see the old file or the new one."""
    write_file(path, "".join(map(to_line, rows)))


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics that are finite numbers; booleans are left out."""
    found = {name: value for name, value in row.items() if isinstance(value, int | float) and type(value) is not bool}
    return {name: value for name, value in found.items() if abs(value) <= sys.float_info.max}  # false of NaN


def write_log(directory: str | os.PathLike[str], step: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes one step's arrays, atomically; makes the directory."""
    folder = Path(directory)
    folder.mkdir(exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # pyright: ignore[reportArgumentType]  # a name could be allow_pickle
    write_file(folder / f"{step:06d}.npz", content.getvalue())


def read_log(directory: str | os.PathLike[str]) -> dict[int, dict[str, np.ndarray]]:
    """Reads the arrays of all steps, by number, in order.

    Raises:
      FileNotFoundError: Nothing is logged there.
      ValueError: A file of the log is damaged.
    """
    steps = {}
    for step, path in _logged(directory):
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                steps[step] = dict(arrays)
        except (EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} is damaged: {error}; remove it to read the other steps.") from error
    if not steps:
        raise FileNotFoundError(
            f"nothing is logged in {os.fspath(directory)}; train with log=True (in the scripts: --log)."
        )
    return steps


def drop_log_after(directory: str | os.PathLike[str], last_step: int) -> None:
    """Removes what was logged of steps after a given one, which a resumed run does again."""
    for step, path in _logged(directory):
        if step > last_step:
            path.unlink()


def _logged(directory: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    paths = Path(directory).glob("[0-9]*.npz")
    return sorted((int(path.stem), path) for path in paths if path.stem.isdecimal() and path.is_file())
