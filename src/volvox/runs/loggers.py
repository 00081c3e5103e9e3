"""Loggers, which receive the metrics of a run: TensorBoard, a CSV file, Weights & Biases, or your own.

    vx.train(algorithm, steps=10, run_dir="runs/a", loggers=(vx.loggers.tensorboard(), vx.loggers.csv()))

A logger is an object with the methods `write(step, row)` and `close()`. `train` takes loggers, and functions that make
a logger from a `LoggedRun`, such as `csv()` returns. A class whose constructor takes a `LoggedRun` is such a function.
"""

import csv as csv_files
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from volvox._checks import check_has, import_extra
from volvox.report.files import Row, numbers

__all__ = ["LoggedRun", "Logger", "csv", "tensorboard", "wandb"]


class Logger(Protocol):
    """Receives the rows of a run."""

    def write(self, step: int, row: Row) -> None:
        """Receives the metrics of a step: JSON values by name. Steps are counted from 1."""
        ...

    def close(self) -> None:
        """Ends the log. If the run ends with an error and the logger has a method `abort`, that is called instead."""
        ...


class LoggedRun(NamedTuple):
    """The run that opens a logger.

    Attributes:
      path: The run directory, which exists; None if there is none.
      name: Name of the environment.
      step_name: Metric that counts the steps: "generation" or "iteration".
      config: Settings of the algorithm, JSON values.
      rows: Rows of earlier steps if the run is resumed. A log may have rows of later steps, which the resumed run
        repeats: the logger should drop them.
    """

    path: Path | None
    name: str
    step_name: str
    config: Mapping[str, Any]
    rows: Sequence[Row]


OpenLogger = Callable[[LoggedRun], Logger]


def tensorboard(directory: str | os.PathLike[str] | None = None) -> OpenLogger:
    """Returns a logger of event files for TensorBoard, with a scalar for each number of a row.

    Args:
      directory: Directory of the event files; None: `tensorboard` in the run directory.
    """
    return functools.partial(_TensorBoard, directory)


def csv(path: str | os.PathLike[str] | None = None) -> OpenLogger:
    """Returns a logger of a CSV file with a line for each step. Lists and dictionaries are written as JSON.

    Args:
      path: The file, which is replaced if it exists; None: `metrics.csv` in the run directory.
    """
    return functools.partial(_CSV, path)


def wandb(project: str | None = None, **options: Any) -> OpenLogger:
    """Returns a logger to Weights & Biases; it needs the extra `wandb`.

    If the program has an active run, as in a sweep, rows are added to it and it is left open. Otherwise a run with the
    settings of the algorithm and the name of the run directory is begun, and finished at the end. The id of the run is
    kept in the run directory (`wandb_id`), so that a resumed run continues there.

    Args:
      project: Name of the project.
      **options: Further arguments of `wandb.init`, such as `entity`, `group`, `tags` or `mode`.
    """
    return functools.partial(_WeightsAndBiases, {"project": project, **options})


class _TensorBoard:
    def __init__(self, directory: str | os.PathLike[str] | None, run: LoggedRun):
        from tensorboardX import SummaryWriter

        # TensorBoard hides steps that a resumed run repeats. File names contain only seconds, so they need a suffix.
        first = len(run.rows) + 1
        options = {"purge_step": first, "filename_suffix": f".from-{first}", "max_queue": 0, "flush_secs": 5}
        self._writer = SummaryWriter(str(_path(directory, run, "tensorboard")), **options)

    def write(self, step: int, row: Row) -> None:
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _CSV:
    def __init__(self, path: str | os.PathLike[str] | None, run: LoggedRun):
        self._path, self._rows, self._columns = _path(path, run, "metrics.csv"), [], []
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("")
        for step, row in enumerate(run.rows, start=1):
            self.write(step, row)

    def write(self, step: int, row: Row) -> None:
        # `row` contains the step.
        self._rows.append({name: json.dumps(x) if isinstance(x, list | dict) else x for name, x in row.items()})
        new = [name for name in row if name not in self._columns]
        self._columns += new
        with self._path.open("w" if new else "a", encoding="utf-8", newline="") as file:
            table = csv_files.DictWriter(file, self._columns, lineterminator="\n")
            if new:  # another column: write the file anew
                table.writeheader()
            table.writerows(self._rows if new else self._rows[-1:])

    def close(self) -> None:
        pass


class _WeightsAndBiases:
    def __init__(self, options: Mapping[str, Any], run: LoggedRun):
        client: Any = import_extra("wandb", "wandb")

        file = None if run.path is None else run.path / "wandb_id"
        known = file.read_text() if file is not None and file.exists() else None
        self._run: Any = client.run
        self._is_ours = client.run is None
        if self._is_ours:
            place = {} if run.path is None else {"dir": str(run.path), "name": run.path.name}
            start = {"config": dict(run.config), "id": known, "resume": "allow", **place, **options}
            self._run = client.init(**start)
        else:
            self._run.config.setdefaults(dict(run.config))
        # Steps belong to the owner of the run, and W&B drops rows with a step below its latest one: rows name theirs.
        self._run.define_metric("*", step_metric=run.step_name)
        if self._run.id != known:
            for step, row in enumerate(run.rows, start=1):
                self.write(step, row)
            if file is not None:
                file.write_text(self._run.id)

    def write(self, step: int, row: Row) -> None:
        # `row` contains the step.
        self._run.log({name: value for name, value in row.items() if value is not None})

    def close(self) -> None:
        if self._is_ours:
            self._run.finish()

    def abort(self) -> None:
        if self._is_ours:
            self._run.finish(exit_code=1)


def open_loggers(
    loggers: Sequence[Logger | OpenLogger], run: LoggedRun, stack: ExitStack
) -> Callable[[int, Row], None]:
    """Opens the loggers of a run, and closes them with the stack.

    Returns:
      A function that writes the row of a step to all of them.

    Raises:
      TypeError: A logger lacks a method.
    """
    opened: list[Any] = []
    for given in loggers:
        is_open = hasattr(given, "write") and not isinstance(given, type)
        logger: Any = given if is_open or not callable(given) else given(run)
        check_has("loggers", logger, ("write", "close"), "loggers, or functions that make one, such as csv()")
        opened.append(logger)
        stack.push(functools.partial(_close, logger))

    def write(step: int, row: Row) -> None:
        for logger in opened:
            logger.write(step, dict(row))

    return write


def _close(logger: Any, kind: Any, error: BaseException | None, trace: Any) -> None:
    if error is None:
        logger.close()
        return
    with suppress(Exception):  # the error that ends the run is the one to report
        getattr(logger, "abort", logger.close)()


def _path(path: str | os.PathLike[str] | None, run: LoggedRun, default: str) -> Path:
    if path is None and run.path is None:
        raise ValueError(f"there is no run directory for {default}: give train a run_dir, or the logger a path")
    return Path(path).absolute() if path is not None else Path(run.path or "") / default
