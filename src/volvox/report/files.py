"""Files of a run directory: their names, and functions that read and write them.

A row of `metrics.jsonl` holds the metrics of one step as a JSON object. `log/` holds arrays, a file for each step.
"""

import io
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

CONFIG, METRICS, CHECKPOINTS, ELITE, LOG = "config.json", "metrics.jsonl", "checkpoints", "elite.json", "log"
PLOT, VIDEO, REPORT = "learning_curve.png", "episode.mp4", "report.html"
DIVERGED = "diverged"
"""Name of the file that marks a run whose numbers were no longer finite."""
Row = dict[str, Any]
"""Metrics of one step: numbers, strings, booleans, None, or nested lists and dicts of them."""


def read_config(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads `config.json` of a run directory.

    Raises:
      ValueError: The file does not exist, or does not describe a run.
    """
    path = Path(directory, CONFIG)
    if not path.is_file():
        seeds = sorted(file.parent.name for file in path.parent.glob(f"seed-*/{CONFIG}"))
        hint = f"; its runs are {', '.join(seeds)}" if seeds else ""
        raise ValueError(f"{path.parent} holds no run: {path} does not exist{hint}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict) or not {"algorithm", "key"} <= config.keys():
        raise ValueError(f"{path} does not describe a run: 'algorithm' or 'key' is missing")
    return config


def read_metrics(path: str | os.PathLike[str]) -> list[Row]:
    """Reads the rows of a metrics file; returns no rows if there is no file.

    Reading ends at the first line that is not a JSON object, with a warning. An incomplete last line is ignored without
    a warning, because a run was killed or is writing it.
    """
    path, rows = Path(path), []
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(dict(json.loads(line)))
        except (RecursionError, TypeError, ValueError):
            text = f"{path} is damaged: line {number} is not a JSON object; rows from there on are ignored"
            warnings.warn(text, UserWarning, stacklevel=2)
            break
    return rows


def append_row(path: str | os.PathLike[str], row: Row) -> None:
    """Appends a row in JSON form (`to_json_row`); returns when it is on disk."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(_to_line(row))
        file.flush()
        os.fsync(file.fileno())


def write_rows(path: str | os.PathLike[str], rows: Iterable[Row]) -> None:
    """Replaces the rows of a metrics file atomically."""
    write_file(path, "".join(map(_to_line, rows)))


def _to_line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def to_json_row(value: Any, name: str = "metrics") -> Any:
    """Returns metrics in JSON form: arrays become numbers and lists; NaN and infinity become None.

    Raises:
      TypeError: A value has no JSON form.
    """
    if hasattr(value, "dtype"):
        value = np.asarray(value).tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [to_json_row(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name} has no JSON form: it is a {type(value).__qualname__}")
    return {key: to_json_row(item, f"{name}[{key!r}]") for key, item in value.items()}


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of a row that are finite numbers; booleans are left out."""
    found = {name: x for name, x in row.items() if isinstance(x, int | float) and not isinstance(x, bool)}
    return {name: x for name, x in found.items() if math.isfinite(x)}


def write_log(directory: str | os.PathLike[str], step: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the arrays of one step to a compressed file."""
    Path(directory).mkdir(exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # pyright: ignore[reportArgumentType]  # a name could be allow_pickle
    write_file(Path(directory, f"{step:06d}.npz"), content.getvalue())


def read_log(directory: str | os.PathLike[str]) -> dict[int, dict[str, np.ndarray]]:
    """Reads the arrays of all steps, in order, by step.

    Raises:
      FileNotFoundError: The directory holds no logged arrays.
    """
    steps = {}
    for path in sorted(Path(directory).glob("[0-9]*.npz"), key=lambda path: int(path.stem)):
        with np.load(path, allow_pickle=False) as arrays:
            steps[int(path.stem)] = dict(arrays)
    if not steps:
        raise FileNotFoundError(
            f"{os.fspath(directory)} holds no logged arrays: train with on_step=vx.runs.log_arrays (scripts: --log)"
        )
    return steps


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file atomically and flushes it: after a kill at any moment, the old file or the new one is there.

    Args:
      path: Path of the file; its directory exists.
      content: Text (written as UTF-8) or bytes.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
