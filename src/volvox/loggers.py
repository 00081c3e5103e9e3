"""Where the rows of a run go besides its own `metrics.jsonl`: TensorBoard, a CSV file, Weights & Biases, your own.

    vx.train(algorithm, steps=10, run_dir="runs/a", loggers=(vx.loggers.tensorboard(), vx.loggers.csv()))

A logger is two functions, `write(step, row)` and `close()`. It is opened by the run, which knows its directory and the
rows that are there already: `train` takes functions of a `LoggedRun` that return a logger, such as `csv()` is. A class
whose instances are loggers is such a function, too. A logger that needs to know nothing of the run can be given as it
is.
"""

import contextlib
import functools
import io
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from csv import writer
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from volvox._arguments import said
from volvox.checkpoint import write_file
from volvox.report.rows import Row, numbers
from volvox.types import Config

__all__ = ["LoggedRun", "Logger", "OpenLogger", "csv", "tensorboard", "wandb"]


class Logger(Protocol):
    """What takes the rows of a run; any object with these two functions."""

    def write(self, step: int, row: Row) -> None:
        """Takes the row of a step (a generation or an iteration, counted from 1): JSON values by their names."""
        ...

    def close(self) -> None:
        """Ends the log, however the run ended; called once, unless opening it failed.

        Where the run ends by an error, a logger's function `abort` is called in its place, if it has one.
        """
        ...


class LoggedRun(NamedTuple):
    """What a logger may know of the run that opens it.

    Attributes:
      path: The run directory, which exists; None if there is none.
      name: The name of the environment.
      step_name: What a step is called, and the name of its number in rows: "generation" or "iteration".
      config: The algorithm's settings, JSON values.
      rows: The rows of the steps before, where a run is resumed; () at its beginning. A log may hold rows of later
        steps, which are done again: it should drop them.
    """

    path: Path | None
    name: str
    step_name: str
    config: Config
    rows: Sequence[Row]


OpenLogger = Callable[[LoggedRun], Logger]
"""What `train` takes: opens a logger for a run."""


def tensorboard(directory: str | os.PathLike[str] | None = None) -> OpenLogger:
    """Returns a logger of event files for TensorBoard, in which each number of a row is a scalar.

    When a run is resumed, TensorBoard hides the steps that are done again. TensorFlow is not needed.

    Args:
      directory: Folder of the event files; None: `tensorboard` in the run directory.
    """
    return functools.partial(TensorBoard, directory)


def csv(path: str | os.PathLike[str] | None = None) -> OpenLogger:
    """Returns a logger of one CSV file with a line a step.

    A metric that first appears in a later step begins a new column; the file is then written anew. Lists and
    dictionaries are written as JSON. When a run is resumed, lines of steps that are done again are dropped.

    Args:
      path: The file, which is replaced if it exists; None: `metrics.csv` in the run directory.
    """
    return functools.partial(CSV, path)


def wandb(project: str | None = None, **options: Any) -> OpenLogger:
    """Returns a logger to Weights & Biases; `pip install 'volvox[wandb]'`.

    The run there has the settings of this one and the name of its run directory. Its id is kept in the run directory
    (`wandb_id`), so that a resumed run goes on there; steps that are done again are not logged a second time. A run
    that began without this logger sends its earlier rows, too. Values that are NaN are left out. With
    `mode="offline"`, or the environment variable `WANDB_MODE=offline`, files are written for `wandb sync`.

    Args:
      project: Name of the project.
      **options: Further arguments of `wandb.init`, such as `entity`, `group`, `tags` or `mode`.
    """
    return functools.partial(WeightsAndBiases, {"project": project, **options})


class TensorBoard:
    """A TensorBoard event file.

    It is written by the thread that calls, unlike with tensorboardX's own `SummaryWriter`, whose thread ends with a
    traceback when the disk is full, and nobody else notices.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, run: LoggedRun):
        """Opens a new file; TensorBoard hides what earlier files hold of the steps that follow."""
        # These would import PyTorch where that is installed.
        from tensorboardX.proto.event_pb2 import SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.record_writer import RecordWriter

        folder, first_step = _place(directory, run, "tensorboard"), len(run.rows) + 1
        folder.mkdir(parents=True, exist_ok=True)
        # Files are named by the second: without a suffix a quick resume would overwrite the file before.
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.from-{first_step}"
        self._writer = RecordWriter(os.path.join(folder, name))
        self._put(0, file_version="brain.Event:2")
        self._put(first_step, session_log=SessionLog(status=SessionLog.START))
        self._writer.flush()

    def write(self, step: int, row: Row) -> None:
        """Writes every finite number of a row as a scalar at this step, and flushes."""
        from tensorboardX.summary import scalar

        for name, value in numbers(row).items():
            self._put(step, summary=scalar(name, value))
        self._writer.flush()

    def close(self) -> None:
        """Closes the file; what could not be written was said by `write`."""
        with contextlib.suppress(OSError):
            self._writer.close()

    def _put(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

        self._writer.write(Event(step=step, wall_time=time.time(), **content).SerializeToString())


class CSV:
    """A CSV file; it is opened for each line, so that it is whole at any time."""

    def __init__(self, path: str | os.PathLike[str] | None, run: LoggedRun):
        """Replaces the file by the rows before."""
        self._path, self._rows = _place(path, run, "metrics.csv"), list(run.rows)
        self._columns = list(dict.fromkeys(name for row in self._rows for name in row))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._write_all()

    def write(self, step: int, row: Row) -> None:
        """Adds a line."""
        self._rows.append(row)
        if more := [name for name in row if name not in self._columns]:
            self._columns += more
            self._write_all()
            return
        with self._path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._lines([row]))

    def close(self) -> None:
        """Does nothing: the file is closed after each line."""

    def _write_all(self) -> None:
        write_file(self._path, self._lines([dict(zip(self._columns, self._columns, strict=True)), *self._rows]))

    def _lines(self, rows: Sequence[Row]) -> str:
        text = io.StringIO()
        lines = writer(text, lineterminator="\n")
        for row in rows if self._columns else ():
            values = [row.get(name) for name in self._columns]
            lines.writerow([json.dumps(value) if isinstance(value, list | dict) else value for value in values])
        return text.getvalue()


class WeightsAndBiases:
    """A run of Weights & Biases."""

    def __init__(self, options: dict[str, Any], run: LoggedRun):
        """Begins the run there, with the rows before if it has none, or goes on with it."""
        try:
            import wandb as client  # pyright: ignore[reportMissingImports]  # an extra
        except ImportError as error:
            raise ImportError(f"vx.loggers.wandb: {error}; install it: pip install 'volvox[wandb]'") from error
        own: dict[str, Any] = {"config": dict(run.config)}
        file = None if run.path is None else run.path / "wandb_id"
        begins = file is None or not file.exists()
        name = secrets.token_hex(4) if file is None or begins else file.read_text()
        if run.path is not None:
            own |= {"dir": str(run.path), "name": run.path.name, "id": name, "resume": "allow"}
        self._run = client.init(**(own | options))
        if file is not None and begins:
            for step, row in enumerate(run.rows, 1):
                self.write(step, row)
            write_file(file, name)  # only now: where anything before fails, these rows are sent by the next resume

    def write(self, step: int, row: Row) -> None:
        """Logs the values of a row."""
        self._run.log({name: value for name, value in row.items() if value is not None}, step=step)

    def close(self) -> None:
        """Ends the run there."""
        self._run.finish()

    def abort(self) -> None:
        """Ends the run there as one that failed."""
        self._run.finish(exit_code=1)


def opened(loggers: Sequence[Any], run: LoggedRun, stack: ExitStack) -> Callable[[int, Row], None]:
    """Opens the loggers of a run, which the stack closes.

    What they raise has a note with the logger's name.

    Args:
      loggers: As `train` takes them.
      run: The run.
      stack: Closes them.

    Returns:
      Writes the row of a step to all of them.

    Raises:
      TypeError: One of them is no logger.
    """
    if not isinstance(loggers, Sequence) or isinstance(loggers, str):
        raise TypeError(f"loggers takes a tuple of loggers, such as (vx.loggers.csv(),); got {said(loggers)}")
    made: list[tuple[str, Logger]] = []
    for place, given in enumerate(loggers):
        name = f"loggers[{place}] ({_name(given)})"
        logger: Any = given
        if not _is_logger(given):
            if not callable(given):
                raise TypeError(f"loggers[{place}] has no functions write and close; got {said(given)}")
            with _named(name):
                logger = given(run)
            if not _is_logger(logger):
                again = ". Call it, in the tuple" if callable(logger) else ""
                raise TypeError(f"{name} gave no logger, with functions write and close, but {said(logger)}{again}")
        made.append((name, logger))
        stack.push(functools.partial(_close, name, logger))

    def write(step: int, row: Row) -> None:
        for name, logger in made:
            with _named(name):
                logger.write(step, dict(row))

    return write


def _is_logger(given: Any) -> bool:
    functions = callable(getattr(given, "write", None)) and callable(getattr(given, "close", None))
    return functions and not isinstance(given, type)


def _name(given: Any) -> str:
    given = given.func if isinstance(given, functools.partial) else given
    return getattr(given, "__qualname__", type(given).__qualname__)


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # raised again, with the name of the logger
        error.add_note(f"This was raised by {name}.")
        raise


def _close(name: str, logger: Logger, kind: Any, error: BaseException | None, trace: Any) -> None:
    """Closes a logger; where the run ended by an error, another one does not take its place."""
    del kind, trace
    close = logger.close if error is None else getattr(logger, "abort", logger.close)
    try:
        with _named(name):
            close()
    except Exception as of_closing:  # whatever a logger's own code raises
        if error is None:
            raise
        error.add_note(f"{name} could not be closed either: {of_closing}")


def _place(path: str | os.PathLike[str] | None, run: LoggedRun, default: str) -> Path:
    """Returns where a logger writes: the path that was given, or a place in the run directory."""
    if path is not None:
        return Path(path).absolute()  # a program may change its working directory
    if run.path is None:
        raise ValueError(f"there is no run directory for {default}: give train a run_dir, or the logger a path")
    return run.path / default
