"""The record of a run: its rows of metrics, and the files in its directory."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax

from volvox import _manifest as manifest
from volvox import checkpoint
from volvox._arguments import check_path
from volvox._config import (
    CHECKPOINTS,
    CONFIG,
    ELITE,
    FINGERPRINT,
    METRICS,
    PLOT,
    check_settings,
    config_of,
    fingerprint,
    outputs_of,
    read_config,
)
from volvox._manifest import sync
from volvox._resources import LOCK, check_disk, check_writable, locked
from volvox._restoring import Restored, read_run, settings_digest
from volvox.population import lineage
from volvox.report import plots, rows
from volvox.report.metrics import atari_scores
from volvox.runs.loggers import LoggedRun, open_loggers, tensorboard
from volvox.types import Algorithm, Array, ArrayTree

_LOG = "log"
_SECONDS_BETWEEN_PLOTS = 60.0
_CERTAIN = 3
"""Checkpoints, at most, for which the disk must have room at the start: a run that would keep more may be short."""
_PLOTS_SHARE = 0.005
"""Of the time, at most, that goes into plots while the run lasts."""
_LEFTOVER = re.compile(r"\.(config\.json|metrics\.jsonl|elite\.json|fingerprint\.json)-\d+-\d+")
"""Files of `checkpoint.write_file` that a kill left behind."""


def check_unused(run_dir: str | os.PathLike[str]) -> None:
    """Checks, before long work, that a directory holds no run with a step, as `train` does without `resume`.

    Raises:
      FileExistsError: It holds a run.
      ValueError: The name is empty, or the directory cannot be written.
    """
    directory = run_path(run_dir)
    check_writable(directory)
    if (holds := _holds(directory)) and not _has_no_step(directory):
        raise FileExistsError(
            f"{os.fspath(run_dir)} already holds a run ({', '.join(holds)}): pass resume=True (scripts: --resume) to "
            "go on with it, or give another run_dir, or remove the directory"
        )


def run_path(run_dir: str | os.PathLike[str]) -> Path:
    """Returns the path of a run directory; raises TypeError for what is no path, and ValueError for an empty name."""
    check_path("run_dir", run_dir)
    if not os.fspath(run_dir).strip():
        raise ValueError(f"run_dir={os.fspath(run_dir)!r} is empty: name a directory for the run")
    return Path(run_dir)


class Record:
    """The record of a run: its rows and, if it has a directory, the files there.

    Attributes:
      path: The run directory; None if nothing is written, as in every process but the first.
      writes: Whether this process is the first.
      rows: One row for each completed step, those before a resume included.
      config: What `config.json` holds; empty before `open`.
    """

    def __init__(self, algorithm: Algorithm, run_dir: str | os.PathLike[str] | None, *, keep: int, log: bool):
        if log and algorithm.log is None:
            raise ValueError("log=True: this algorithm has nothing to log")
        # Absolute, since a program may change its working directory.
        self.path = None if run_dir is None else run_path(run_dir).absolute()
        self.rows: list[rows.Row] = []
        self.writes = algorithm.largest is None or jax.process_index() == 0
        self._algorithm, self._keep, self._log = algorithm, keep, log
        self._tell: Callable[[int, rows.Row], None] = lambda step, row: None
        self._lock: Any = None
        self._folder: tuple[int, int] | None = None  # that of the checkpoints, once one was written
        self.config: dict[str, Any] = {}
        self._settings = ""  # digest of the settings, by which checkpoints know their run
        self._rows_digest = hashlib.sha256()
        self._saved_step = -1
        self._saved_outputs: list[float] | None = None  # of the checkpoint with which a resumed run begins
        self._next_plot = time.monotonic() + _SECONDS_BETWEEN_PLOTS
        self._outputs: Callable[[ArrayTree], list[float]] | None = None

    @property
    def done(self) -> int:
        """Steps completed."""
        return len(self.rows)

    @property
    def frames(self) -> int:
        """Emulator frames of these steps."""
        return int(rows.numbers(self.rows[-1]).get("frames", 0)) if self.rows else 0

    def has_frames(self, number: int | None) -> bool:
        """Whether the run has so many frames; never with None.

        Raises:
          ValueError: Its rows do not count frames.
        """
        if number is None or not self.rows:
            return False
        if "frames" not in rows.numbers(self.rows[-1]):
            raise ValueError(f"max_frames={number}: this algorithm has no metric 'frames'; give steps or stop_after")
        return self.frames >= number

    def open(self, stack: ExitStack, key: Array, *, resume: bool, about: Mapping[str, Any] | None) -> Restored | None:
        """Holds the directory until the stack closes, and reads the run that is there; nothing of it is changed.

        What a refusal leaves is at most an empty directory with the file that is locked. Of several processes the
        first holds the directory, and the others read it after that.

        Returns:
          The run at its newest whole checkpoint; None if the run begins.
        """
        largest, directory = self._algorithm.largest, self.path
        if largest is None:
            return self._open(stack, key, resume, about)
        found = self._open(stack, key, resume, about) if self.writes else None
        largest(0)  # the first has opened it
        if not self.writes:
            self.path = None
            if directory is not None and resume and _holds(directory):
                found = read_run(directory, self._algorithm, read_config(directory), key)
                self.rows = [] if found is None else found.rows
        if largest(self.done) != -largest(-self.done):
            raise ValueError(
                f"run_dir={os.fspath(directory or '')!r} does not hold the same run for all processes: put it on a "
                "disk that all of them share"
            )
        return found

    def _open(self, stack: ExitStack, key: Array, resume: bool, about: Mapping[str, Any] | None) -> Restored | None:
        self.config = config_of(self._algorithm, key, about)
        if self.path is None:
            return None
        there = False
        if resume:
            check_writable(self.path)
            if there := bool(_holds(self.path)):
                saved_config = read_config(self.path)
                check_settings(self.path, saved_config, self.config)
                self.config = saved_config
        else:
            check_unused(self.path)
        self._settings = settings_digest(self.config)
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True)
            sync(self.path.parent)
        self._lock = stack.enter_context(locked(self.path))
        found = read_run(self.path, self._algorithm, self.config, key) if there else None
        if found is not None:
            self.rows, self._rows_digest, self._saved_step = found.rows, found.rows_digest, found.step
            self._saved_outputs = found.outputs
        elif there:
            file, folder = self.path / METRICS, self.path / CHECKPOINTS
            metrics, damage = rows.read_until_damage(file)
            if metrics or damage:  # the state before the first step is saved before any row
                raise ValueError(damage or f"{file} has {len(metrics)} rows, but {folder} no checkpoint")
        return found

    def begin(self, stack: ExitStack, state: Any, *, loggers: Sequence[Any] | None) -> None:
        """Writes the first files of a run, or removes those of steps that will be repeated; opens the loggers.

        A directory holds a run once `config.json` is written, after the first checkpoint. If that does not fit on the
        disk, or a logger cannot be opened, the directory holds no run.
        """
        if self.path is None:
            self._open_loggers(stack, loggers if loggers and self.writes else ())
            return
        begins = self._saved_step < 0
        if begins:
            first = self._save_checkpoint(state)
            number = min(self._keep, _CERTAIN) + 1  # one is written before the oldest is removed
            try:
                check_disk(self.path, first, number, manifest.read(first)["bytes"])
            except ValueError:
                shutil.rmtree(first, ignore_errors=True)
                raise
        self._open_loggers(stack, (tensorboard(),) if loggers is None else loggers)
        with self._writing():
            for name in filter(_LEFTOVER.fullmatch, os.listdir(self.path)):
                (self.path / name).unlink()
            for step in checkpoint.steps(saved := self.path / CHECKPOINTS):
                if step > max(self._saved_step, 0):  # damaged; readers would hold the rows that replace its to it
                    checkpoint.condemn(saved, step)
            self._write_config(anew=begins)
            rows.rewrite(self.path / METRICS, self.rows)
            rows.drop_log_after(self.path / _LOG, self.done)
        self.write_elite(state)  # a kill may have come between a checkpoint and its elite
        self._write_fingerprint(self._saved_outputs)

    def _open_loggers(self, stack: ExitStack, loggers: Sequence[Any]) -> None:
        algorithm, before = self._algorithm, tuple(map(dict, self.rows))
        run = LoggedRun(self.path, algorithm.env.spec.name, algorithm.step_name, algorithm.config, before)
        self._tell = open_loggers(loggers, run, stack)

    def tell_loggers(self) -> None:
        """Gives the last row to the loggers."""
        self._tell(self.done, self.rows[-1])

    @contextlib.contextmanager
    def saving(self, state: Any) -> Iterator[None]:
        """Saves the state if the user's code that runs in this context raises an error."""
        try:
            yield
        except Exception:  # whatever that code raises; it is raised again
            self.save(state)
            raise

    def add(self, state: Any, figures: Mapping[str, Any], *, seconds: float, step_seconds: float) -> None:
        """Adds the row of a step that is done, here and on disk; where this raises, there is no such row here."""
        name, number = self._algorithm.step_name, self.done + 1
        if figures.get(name, number) != number:
            raise ValueError(
                f"the algorithm calls this {name} {figures[name]}, but by train's count it is {number}: "
                "a state begins with none done, and each step does one"
            )
        own = {name: number, "seconds": round(seconds, 3), "step_seconds": round(step_seconds, 3)}
        row = own | rows.to_json(figures) | own
        if self.path is not None:
            logged = self._algorithm.log(state) if self._log and self._algorithm.log is not None else None
            with self._writing():
                if logged is not None:
                    rows.write_log(self.path / _LOG, number, logged)
                rows.append_row(self.path / METRICS, row)
            self._rows_digest.update(rows.to_line(row).encode())
        self.rows.append(row)

    def save(self, state: Any) -> None:
        """Writes the checkpoint and the elite of the state after the last row, unless they are there."""
        if self.path is None:
            return
        if self._saved_step != self.done:
            try:
                outputs = self._outputs_of(state)
            except BaseException:  # of the policy, or an interrupt: the state is saved first
                self._save_checkpoint(state)
                raise
            self._save_checkpoint(state, outputs)
            self.write_elite(state)
            self._write_fingerprint(outputs)
        with self._writing():
            self._write_config()

    def _write_config(self, *, anew: bool = False) -> None:
        """Writes `config.json` anew, or if it is not there: somebody may have removed it in the course of the run."""
        assert self.path is not None
        if anew or not (self.path / CONFIG).exists():
            checkpoint.write_file(self.path / CONFIG, json.dumps(self.config, indent=2) + "\n")

    def _save_checkpoint(self, state: Any, outputs: list[float] | None = None) -> Path:
        assert self.path is not None
        tree = state if self._algorithm.save is None else self._algorithm.save(state)
        about: dict[str, Any] = {"settings": self._settings, "rows": self._rows_digest.hexdigest()}
        if (elite := self._elite(state)) is not None:
            about[lineage.ABOUT] = lineage.digest(elite)
        if outputs is not None:
            about["outputs"] = outputs
        with self._writing():
            folder = checkpoint.save(self.path / CHECKPOINTS, self.done, tree, keep=self._keep, about=about)
        self._saved_step, self._folder = self.done, _identity(folder.parent)
        return folder

    def _outputs_of(self, state: Any) -> list[float] | None:
        """What the state's best policy answers to fixed observations, by which a wrong network is noticed."""
        if not self.done:
            return None
        self._outputs = self._outputs or outputs_of(self._algorithm.policy, self._algorithm.env.spec)
        return self._outputs(self._algorithm.variables(state))

    def write_elite(self, state: Any) -> None:
        """Writes the lineage of a state's best individual; before the first step there is none."""
        if self.path is None or self._algorithm.genome is None:
            return
        with self._writing():
            if (elite := self._elite(state)) is not None:
                checkpoint.write_file(self.path / ELITE, elite)
            else:
                (self.path / ELITE).unlink(missing_ok=True)

    def _write_fingerprint(self, outputs: list[float] | None) -> None:
        """Writes what the best policy answered, for what loads the elite without a checkpoint."""
        if self.path is not None and outputs is not None:
            with self._writing():
                checkpoint.write_file(self.path / FINGERPRINT, fingerprint(self.done, outputs))

    def plot_now_and_then(self) -> None:
        """Draws the learning curve, about once a minute."""
        if self.path is not None and time.monotonic() >= self._next_plot:
            self.plot()

    def plot(self) -> None:
        """Draws the learning curve, if there is a directory."""
        if self.path is None:
            return
        began = time.monotonic()
        with self._writing():
            env = self._algorithm.env
            plots.learning_curve(self.rows, self.path / PLOT, title=env.spec.name, random=atari_scores(env.config).get("random"))
        took = time.monotonic() - began
        self._next_plot = began + max(_SECONDS_BETWEEN_PLOTS, took / _PLOTS_SHARE)

    def _elite(self, state: Any) -> str | None:
        """The text of `elite.json`; None where there is no such file."""
        if self._algorithm.genome is None or not self.done:
            return None
        return json.dumps(self._algorithm.genome(state)) + "\n"

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Makes one clear error of what the system may refuse while the run's files are written."""
        self._check_directory()
        try:
            yield
        except OSError as error:
            self._check_directory()
            raised = OSError(
                f"{self.path} cannot be written: {error.strerror or error}. The run stops here; what was saved before "
                "is whole, and the run can be resumed from there"
            )
            raised.errno = error.errno
            raise raised from error

    def _check_directory(self) -> None:
        """Raises OSError if the directory is no longer that in which this run began."""
        assert self.path is not None
        mine = os.fstat(self._lock.fileno())
        is_here = _identity(self.path / LOCK) == (mine.st_dev, mine.st_ino)
        if not is_here or self._folder not in (None, _identity(self.path / CHECKPOINTS)):
            raise OSError(
                f"{self.path} is no longer the directory in which this run began: it, or .lock or {CHECKPOINTS} in it, "
                "was moved, removed or replaced. The run stops and writes nothing more; what was saved is where it was "
                "moved, and the run can be resumed there"
            )


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells this file or folder from one that takes its place; None if there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _holds(directory: Path) -> list[str]:
    """Returns the names of a run's files that are in a directory."""
    holds = [name for name in (CONFIG, METRICS) if os.path.lexists(directory / name)]
    # A checkpoint of step 0 alone is left by a run that was killed while it began.
    return holds + ([CHECKPOINTS] if any(checkpoint.steps(directory / CHECKPOINTS)) else [])


def _has_no_step(directory: Path) -> bool:
    """Whether a run was begun here and has no step, as after an error in its first one: it may be begun anew."""
    metrics, steps = directory / METRICS, checkpoint.steps(directory / CHECKPOINTS)
    # A kill may have come between the files that begin a run, of which this is the last.
    unwritten = metrics.stat().st_size == 0 if metrics.is_file() else steps == [0] and not os.path.lexists(metrics)
    return unwritten and not any(steps) and not os.path.lexists(directory / ELITE)
