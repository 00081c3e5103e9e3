"""What a run keeps of itself, in memory and in its directory."""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from volvox import _files, _machine, checkpoint
from volvox.report import log as log_files
from volvox.report import metrics as metric_files
from volvox.report import plots
from volvox.report.run import PLOT
from volvox.types import Algorithm, Array, ArrayTree

_CONFIG, _METRICS, _CHECKPOINTS, _ELITE = "config.json", "metrics.jsonl", "checkpoints", "elite.json"
_LOG, _TENSORBOARD = "log", "tensorboard"
_SECONDS_BETWEEN_PLOTS = 60.0
_PLOTS_SHARE = 0.005
"""Of the time, at most, that goes into plots while the run lasts."""


def check_unused(run_dir: str | os.PathLike[str]) -> None:
    """Checks, before long work, that a directory holds no run, as `train` does without `resume`.

    Raises:
      FileExistsError: it holds a run.
    """
    if holds := _holds(Path(run_dir)):
        raise FileExistsError(
            f"{os.fspath(run_dir)} already holds a run ({', '.join(holds)}): pass resume=True (scripts: --resume) to "
            "go on with it, or give another run_dir, or remove the directory"
        )


class Record:
    """What a run keeps of itself: its rows and, if it has a directory, everything there.

    Attributes:
      path: the run directory, or None: then nothing is written.
      rows: one a completed step, those before a resume included.
    """

    def __init__(self, algorithm: Algorithm, run_dir: str | os.PathLike[str] | None, *, keep: int, log: bool):
        self.path = None if run_dir is None else Path(run_dir)
        self.rows: list[metric_files.Row] = []
        self._algorithm, self._keep, self._log = algorithm, keep, log
        self._events: metric_files.EventWriter | None = None
        self._saved_step = -1
        self._next_plot = time.monotonic() + _SECONDS_BETWEEN_PLOTS

    @property
    def done(self) -> int:
        """Steps completed."""
        return len(self.rows)

    def open(self, stack: ExitStack, key: Array, *, resume: bool, tensorboard: bool) -> tuple[int, ArrayTree] | None:
        """Makes the directory ready to begin or to go on, and holds it until the stack closes.

        Nothing is changed if no run with these settings may begin or go on there.

        Returns:
          (step, what `algorithm.save` gave) of the newest whole checkpoint; None if the run begins.
        """
        config = _config(self._algorithm, key)
        if self.path is None:
            return None
        if resume:
            _check_settings(self.path, config)
        else:
            check_unused(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_only_writer(self.path))
        like = jax.eval_shape(self._algorithm.init, key) if resume and self._algorithm.restore is None else None
        saved = checkpoint.restore_latest(self.path / _CHECKPOINTS, like)
        self.rows = metric_files.read(self.path / _METRICS)
        self._drop_rows(None if saved is None else saved[0])
        if not (self.path / _CONFIG).exists():
            _files.write(self.path / _CONFIG, json.dumps(config, indent=2) + "\n")
        metric_files.rewrite(self.path / _METRICS, self.rows)
        log_files.drop_after(self.path / _LOG, self.done)
        if tensorboard:
            self._events = metric_files.EventWriter(self.path / _TENSORBOARD, first_step=self.done + 1)
            stack.callback(self._events.close)
        return saved

    def add(self, state: Any, figures: Mapping[str, Any], *, seconds: float, step_seconds: float) -> None:
        """Adds the row of a step that is done, here and on disk."""
        name, number = self._algorithm.step_name, self.done + 1
        if figures.get(name, number) != number:
            raise ValueError(
                f"the algorithm calls this {name} {figures[name]}, but by train's count it is {number}: "
                "a state begins with none done, and each step does one"
            )
        own = {name: number, "seconds": round(seconds, 3), "step_seconds": round(step_seconds, 3)}
        self.rows.append(own | {key: value for key, value in metric_files.to_json(figures).items() if key not in own})
        if self.path is not None:
            if self._log and self._algorithm.log is not None:
                log_files.write(self.path / _LOG, number, self._algorithm.log(state))
            metric_files.append(self.path / _METRICS, self.rows[-1])
        if self._events is not None:
            self._events.write(number, self.rows[-1])

    def save(self, state: Any) -> None:
        """Writes the checkpoint and the elite of the state after the last row."""
        if self.path is not None:
            tree = state if self._algorithm.save is None else self._algorithm.save(state)
            checkpoint.save(self.path / _CHECKPOINTS, self.done, tree, keep=self._keep)
            self.write_elite(state)
        self._saved_step = self.done

    def save_if_new(self, state: Any) -> None:
        """Writes the checkpoint unless it was the last one written or read."""
        if self._saved_step != self.done:
            self.save(state)

    def write_elite(self, state: Any) -> None:
        """Writes the lineage of a state's best individual; before the first step there is none."""
        if self.path is None or self._algorithm.genome is None:
            return
        if self.done:
            _files.write(self.path / _ELITE, json.dumps(self._algorithm.genome(state)) + "\n")
        else:
            (self.path / _ELITE).unlink(missing_ok=True)

    def last_good(self) -> str:
        """Says where the newest checkpoint is."""
        if self.path is None:
            return "There is no run directory: nothing was saved."
        kept = checkpoint.folder_of(self.path / _CHECKPOINTS, self.done)
        return f"The last good checkpoint, of {self._algorithm.step_name} {self.done}, is {kept}."

    def plot_now_and_then(self) -> None:
        """Draws the learning curve, about once a minute."""
        began = time.monotonic()
        if self.path is not None and began >= self._next_plot:
            plots.learning_curve(self.rows, self.path / PLOT, title=self._algorithm.env.spec.name)
            took = time.monotonic() - began
            self._next_plot = began + max(_SECONDS_BETWEEN_PLOTS, took / _PLOTS_SHARE)

    def _drop_rows(self, step: int | None) -> None:
        """Drops the rows after the newest checkpoint, of which there is one for each step before."""
        assert self.path is not None
        file, name = self.path / _METRICS, self._algorithm.step_name
        if step is None:
            if self.rows:  # the state before the first step is saved before any row
                raise ValueError(f"{file} has {self.done} rows, but {self.path / _CHECKPOINTS} no checkpoint")
            return
        del self.rows[step:]
        if [row.get(name) for row in self.rows] != list(range(1, step + 1)):
            raise ValueError(
                f"{file} does not hold one row for each {name} from 1 to {step}, where the newest checkpoint stands: "
                "it was changed by hand, or algorithm.step_name is another"
            )
        self._saved_step = step


def _config(algorithm: Algorithm, key: Array) -> dict[str, Any]:
    """What `config.json` says, in the form in which it is read back."""
    config = {
        "algorithm": algorithm.config,
        "key": {"impl": str(jax.random.key_impl(key)), "data": np.asarray(jax.random.key_data(key)).tolist()},
        "versions": _machine.versions(),
    }
    try:
        return json.loads(json.dumps(config, allow_nan=False, default=dict))
    except (TypeError, ValueError) as error:
        raise TypeError(f"algorithm.config must hold JSON values only: {error}") from error


def _holds(directory: Path) -> list[str]:
    """What of a run is in a directory."""
    holds = [name for name in (_CONFIG, _METRICS) if (directory / name).exists()]
    return holds + ([_CHECKPOINTS] if checkpoint.steps(directory / _CHECKPOINTS) else [])


def _check_settings(directory: Path, config: dict[str, Any]) -> None:
    """Raises ValueError if the run in a directory, if there is one, has other settings; versions may differ."""
    if not (holds := _holds(directory)):
        return
    if _CONFIG not in holds:
        raise ValueError(f"{directory} holds {', '.join(holds)} but no {_CONFIG}: it cannot be resumed")
    saved, given = _flat(json.loads((directory / _CONFIG).read_text())), _flat(config)
    differences = [
        f"{name}: {_value('saved', saved, name)}, {_value('now', given, name)}"
        for name in dict.fromkeys([*saved, *given])
        if not name.startswith("versions.") and (name not in saved or name not in given or saved[name] != given[name])
    ]
    if differences:
        raise ValueError(
            f"{directory} was started with other settings; use those, or another run_dir:\n  "
            + "\n  ".join(differences)
        )


def _flat(config: Any, place: str = "") -> dict[str, Any]:
    """Settings by their places, `algorithm.env.game`; lists are values."""
    if not isinstance(config, dict) or not config:
        return {place: config}
    parts = [_flat(value, f"{place}.{name}" if place else name) for name, value in config.items()]
    return {name: value for part in parts for name, value in part.items()}


def _value(when: str, settings: dict[str, Any], name: str) -> str:
    if name in settings:
        return f"{when} {json.dumps(settings[name])}"
    return "not saved" if when == "saved" else "now absent"


@contextmanager
def _only_writer(directory: Path) -> Iterator[None]:
    """Holds the directory's lock; the system drops it when the process ends, however it ends."""
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, f"another process is training in {directory}") from error
        yield
