"""The record of a run: its rows of metrics, and the files in its directory."""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from tensorboardX import SummaryWriter

from volvox import checkpoint
from volvox._settings import versions
from volvox.report import plots, rows
from volvox.types import Algorithm, Array, ArrayTree

_CONFIG, _METRICS, _CHECKPOINTS, _ELITE = "config.json", "metrics.jsonl", "checkpoints", "elite.json"
PLOT, _LOG, _TENSORBOARD = "learning_curve.png", "log", "tensorboard"
_SECONDS_BETWEEN_PLOTS = 60.0
_PLOTS_SHARE = 0.005
"""Of the time, at most, that goes into plots while the run lasts."""


def check_unused(run_dir: str | os.PathLike[str]) -> None:
    """Checks, before long work, that a directory holds no run, as `train` does without `resume`.

    Raises:
      FileExistsError: It holds a run.
    """
    if holds := _holds(Path(run_dir)):
        raise FileExistsError(
            f"{os.fspath(run_dir)} already holds a run ({', '.join(holds)}): pass resume=True (scripts: --resume) to "
            "go on with it, or give another run_dir, or remove the directory"
        )


class Record:
    """The record of a run: its rows and, if it has a directory, the files there.

    Attributes:
      path: The run directory; None if nothing is written.
      rows: One row for each completed step, those before a resume included.
    """

    def __init__(self, algorithm: Algorithm, run_dir: str | os.PathLike[str] | None, *, keep: int, log: bool):
        self.path = None if run_dir is None else Path(run_dir)
        self.rows: list[rows.Row] = []
        self._algorithm, self._keep, self._log = algorithm, keep, log
        self._events: SummaryWriter | None = None
        self._saved_step = -1
        self._next_plot = time.monotonic() + _SECONDS_BETWEEN_PLOTS

    @property
    def done(self) -> int:
        """Steps completed."""
        return len(self.rows)

    def has_frames(self, number: int | None) -> bool:
        """Whether the run has so many frames; never with None."""
        return number is not None and bool(self.rows) and self.rows[-1].get("frames", 0) >= number

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
        lock = stack.enter_context((self.path / ".lock").open("w"))
        try:  # the system drops the lock when the process ends, however it ends
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, f"another process is training in {self.path}") from error
        like = jax.eval_shape(self._algorithm.init, key) if resume and self._algorithm.restore is None else None
        saved = checkpoint.restore_latest(self.path / _CHECKPOINTS, like)
        self.rows = self._rows_until(self.path / _METRICS, None if saved is None else saved[0])
        if saved is not None:
            self._saved_step = self.done
        if not (self.path / _CONFIG).exists():
            checkpoint.write_file(self.path / _CONFIG, json.dumps(config, indent=2) + "\n")
        rows.rewrite(self.path / _METRICS, self.rows)
        rows.drop_log_after(self.path / _LOG, self.done)
        if tensorboard:
            events = rows.event_writer(self.path / _TENSORBOARD, first_step=self.done + 1)
            self._events = stack.enter_context(events)
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
        self.rows.append(own | rows.to_json(figures) | own)
        if self.path is not None:
            if self._log and self._algorithm.log is not None:
                rows.write_log(self.path / _LOG, number, self._algorithm.log(state))
            rows.append_row(self.path / _METRICS, self.rows[-1])
        if self._events is not None:
            rows.write_events(self._events, number, self.rows[-1])

    def save(self, state: Any) -> None:
        """Writes the checkpoint and the elite of the state after the last row, unless they are there."""
        if self.path is not None and self._saved_step != self.done:
            tree = state if self._algorithm.save is None else self._algorithm.save(state)
            checkpoint.save(self.path / _CHECKPOINTS, self.done, tree, keep=self._keep)
            self.write_elite(state)
            self._saved_step = self.done

    def write_elite(self, state: Any) -> None:
        """Writes the lineage of a state's best individual; before the first step there is none."""
        if self.path is None or self._algorithm.genome is None:
            return
        if self.done:
            checkpoint.write_file(self.path / _ELITE, json.dumps(self._algorithm.genome(state)) + "\n")
        else:
            (self.path / _ELITE).unlink(missing_ok=True)

    def plot_now_and_then(self) -> None:
        """Draws the learning curve, about once a minute."""
        began = time.monotonic()
        if self.path is not None and began >= self._next_plot:
            plots.learning_curve(self.rows, self.path / PLOT, title=self._algorithm.env.spec.name)
            took = time.monotonic() - began
            self._next_plot = began + max(_SECONDS_BETWEEN_PLOTS, took / _PLOTS_SHARE)

    def _rows_until(self, file: Path, step: int | None) -> list[rows.Row]:
        """Reads the rows up to the newest checkpoint, of which there is one for each step."""
        found, name = rows.read_metrics(file), self._algorithm.step_name
        if step is None and found:  # the state before the first step is saved before any row
            raise ValueError(f"{file} has {len(found)} rows, but {file.with_name(_CHECKPOINTS)} no checkpoint")
        if [row.get(name) for row in found[:step]] != list(range(1, (step or 0) + 1)):
            raise ValueError(
                f"{file} does not hold one row for each {name} from 1 to {step}, where the newest checkpoint stands: "
                "it was changed by hand, or algorithm.step_name is another"
            )
        return found[:step]


def _config(algorithm: Algorithm, key: Array) -> dict[str, Any]:
    """What `config.json` says, in the form in which it is read back."""
    config = {
        "algorithm": algorithm.config,
        "key": {"impl": str(jax.random.key_impl(key)), "data": np.asarray(jax.random.key_data(key)).tolist()},
        "versions": versions(),
    }
    try:
        return json.loads(json.dumps(config, allow_nan=False, default=dict))
    except (TypeError, ValueError) as error:
        raise TypeError(f"algorithm.config must hold JSON values only: {error}") from error


def _holds(directory: Path) -> list[str]:
    """Returns the names of a run's files that are in a directory."""
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
        f"\n  {name}: saved {saved.get(name, 'nothing')}, now {given.get(name, 'nothing')}"
        for name in dict.fromkeys([*saved, *given])
        if saved.get(name) != given.get(name)
    ]
    if differences:
        raise ValueError(
            f"{directory} was started with other settings; use those, or another run_dir:{''.join(differences)}"
        )


def _flat(config: dict[str, Any]) -> dict[str, str]:
    """Settings by their places, such as `algorithm.env.game`, as JSON text; versions are left out."""
    flat = flatten_dict({**config, "versions": None}, keep_empty_nodes=True, sep=".")
    return {name: json.dumps(value, default=lambda empty: {}) for name, value in flat.items()}
