"""The directory of a run: opened by one process, written step by step, and read to resume or load the run.

    config.json          settings, key, versions, and provenance of the run
    metrics.jsonl        one row a step
    checkpoints/         the newest states
    elite.json           lineage of the best individual, if the algorithm keeps lineages
    learning_curve.png   drawn about once a minute and at the end
    .lock                locked by the process that trains

The row of a step is on disk before the checkpoint that contains the step. After a kill at any moment, each step of the
restored state has its row, and rows of later steps are dropped.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox.ops.flat import restored
from volvox.report import files, plots
from volvox.report.files import Row, append_row, read_config, read_metrics, write_file, write_rows
from volvox.report.metrics import atari_scores
from volvox.runs import checkpoint
from volvox.runs.config import differences, digest, to_json
from volvox.runs.provenance import provenance, versions
from volvox.types import Algorithm, Array

_SECONDS_BETWEEN_PLOTS = 60.0


def config_of(algorithm: Algorithm, key: Array) -> dict[str, Any]:
    """Returns the contents of `config.json` for a new run."""
    settings = {
        "algorithm": to_json(algorithm.config),
        "key": {"impl": str(jax.random.key_impl(key)), "data": np.asarray(jax.random.key_data(key)).tolist()},
    }
    return {**settings, "digest": digest(settings), "versions": versions(), "provenance": provenance()}


def saved_key(config: Mapping[str, Any]) -> Array:
    """Returns the key with which a run began."""
    return jax.random.wrap_key_data(jnp.asarray(config["key"]["data"], jnp.uint32), impl=config["key"]["impl"])


def check_same_settings(directory: Path, saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raises ValueError if the settings of a run in a directory differ from the current ones; it lists them."""
    found = differences(saved["algorithm"], current["algorithm"]) + differences(saved["key"], current["key"], "key")
    if found:
        raise ValueError(
            "\n  ".join([f"{directory} holds a run with other settings:", *found])
            + "\nPass the same settings, give another run_dir, or change settings on purpose with "
            "run.resume(changes={name: value})."
        )


def check_unused(run_dir: str | os.PathLike[str]) -> None:
    """Raises FileExistsError if a directory holds a run with at least one step."""
    directory = Path(run_dir)
    if read_metrics(directory / files.METRICS) or any(checkpoint.steps(directory / files.CHECKPOINTS)):
        raise FileExistsError(
            f"{directory} already holds a run: pass resume=True (scripts: --resume) to continue it, give another "
            "run_dir, or remove the directory"
        )


def read_run(directory: Path, algorithm: Algorithm, config: Mapping[str, Any]) -> tuple[Any, list[Row]] | None:
    """Reads the newest usable checkpoint and the rows up to it.

    Args:
      directory: The run directory.
      algorithm: The run's algorithm.
      config: The contents of `config.json`.

    Returns:
      (state, rows), or None if there is no checkpoint.

    Raises:
      ValueError: The checkpoint does not fit the algorithm, such as one with another network.
      volvox.DamagedCheckpointError: There are checkpoints, but none can be used.
    """
    restore = algorithm.restore
    if restore is None:
        like = jax.eval_shape(algorithm.init, saved_key(config))
        restore = lambda tree: restored(tree, like, what="algorithm")  # noqa: E731
    found = checkpoint.restore_latest(
        directory / files.CHECKPOINTS,
        count_rows=lambda: len(read_metrics(directory / files.METRICS)),
        settings=config.get("digest", ""),
        restore=restore,
    )
    if found is None:
        return None
    step, state = found
    return state, read_metrics(directory / files.METRICS)[:step]


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds the lock of a run directory; the system releases it when the process ends.

    Raises:
      BlockingIOError: Another process holds it.
    """
    with (directory / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, f"another process is training in {directory}") from error
        yield


class RunDirectory:
    """Writes the files of a run.

    Attributes:
      path: The directory; None if nothing is written.
      rows: Rows of all completed steps.
      config: The contents of `config.json`.
    """

    def __init__(self, algorithm: Algorithm, path: Path | None, *, key: Array, keep_checkpoints: int):
        self.path, self.rows, self.config = path, list[Row](), config_of(algorithm, key)
        self._algorithm, self._keep, self._saved_step = algorithm, keep_checkpoints, -1
        self._next_plot = time.monotonic() + _SECONDS_BETWEEN_PLOTS

    def open(self, stack: ExitStack, *, resume: bool) -> Any:
        """Locks the directory until the stack closes, and reads the run that it holds.

        Args:
          stack: Releases the lock.
          resume: Continue the run in the directory, if there is one.

        Returns:
          The state of the run; None if it begins.

        Raises:
          FileExistsError: There is a run with at least one step, and `resume` is False.
          ValueError: The settings of the run differ, or files of it are missing.
          BlockingIOError: Another process is training in the directory.
          OSError: The directory cannot be written.
        """
        if self.path is None:
            return None
        if not resume:
            check_unused(self.path)
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(self.path))
        if not resume:
            return None
        rows, steps = read_metrics(self.path / files.METRICS), checkpoint.steps(self.path / files.CHECKPOINTS)
        if not (self.path / files.CONFIG).exists() and not rows and not any(steps):
            return None
        saved = read_config(self.path)
        check_same_settings(self.path, saved, self.config)
        self.config = saved
        found = read_run(self.path, self._algorithm, saved)
        if found is None:
            if rows:
                raise ValueError(f"{self.path} holds {len(rows)} rows of metrics, but no checkpoint to resume from")
            return None
        state, self.rows = found
        self._saved_step = len(self.rows)
        return state

    def begin(self, state: Any) -> None:
        """Writes the first files of a run, or removes those of steps that will be repeated."""
        if self.path is None:
            return
        with self._writing():
            checkpoint.remove_after(self.path / files.CHECKPOINTS, len(self.rows))
        self.save(state)
        with self._writing():
            write_file(self.path / files.CONFIG, json.dumps(self.config, indent=2) + "\n")
            write_rows(self.path / files.METRICS, self.rows)
            self._write_elite(state)  # a kill may have come between a checkpoint and its elite

    def add(self, row: Row) -> None:
        """Adds the row of a completed step."""
        if self.path is not None:
            with self._writing():
                append_row(self.path / files.METRICS, row)
        self.rows.append(row)

    def save(self, state: Any) -> None:
        """Writes the checkpoint and the elite of the state after the last row, unless they are written already."""
        if self.path is None or self._saved_step == len(self.rows):
            return
        tree = state if self._algorithm.save is None else self._algorithm.save(state)
        options = {"keep": self._keep, "num_rows": len(self.rows), "settings": self.config["digest"]}
        with self._writing():
            checkpoint.save(self.path / files.CHECKPOINTS, len(self.rows), tree, **options)
            self._saved_step = len(self.rows)
            self._write_elite(state)

    def plot(self, *, now: bool = False) -> None:
        """Draws the learning curve, if `now` or if the last time was a minute ago."""
        if self.path is not None and self.rows and (now or time.monotonic() >= self._next_plot):
            env = self._algorithm.env
            with self._writing():
                random = atari_scores(env.config).get("random")
                plots.learning_curve(self.rows, self.path / files.PLOT, title=env.spec.name, random=random)
            self._next_plot = time.monotonic() + _SECONDS_BETWEEN_PLOTS

    def _write_elite(self, state: Any) -> None:
        if self.path is not None and self._algorithm.genome is not None and self.rows:
            write_file(self.path / files.ELITE, json.dumps(self._algorithm.genome(state)) + "\n")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:
            raise
        except OSError as error:
            reason = error.strerror or error
            text = f"{self.path} cannot be written ({reason}). The run stops; what was saved before is intact."
            raise OSError(error.errno, text) from error


def change_settings(directory: Path, algorithm: Algorithm, changes: Mapping[str, Any]) -> None:
    """Replaces the settings in `config.json` by those of `algorithm`, and records the changes and their step."""
    with locked(directory):
        config = read_config(directory)
        settings = config["algorithm"].get("settings") or config["algorithm"].get("strategy") or {}
        before = {name: settings.get(name) for name in changes}
        step = max(checkpoint.steps(directory / files.CHECKPOINTS), default=0)
        record = {"after_step": step, "from": before, "to": to_json(changes)}
        new = {**config, "algorithm": to_json(algorithm.config), "changes": [*config.get("changes", []), record]}
        write_file(directory / files.CONFIG, json.dumps(new, indent=2) + "\n")
