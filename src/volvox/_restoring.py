"""Reads the newest whole checkpoint of a run and its rows, for resuming and loading."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from volvox import checkpoint
from volvox._config import CHECKPOINTS, CONFIG, METRICS, is_outputs
from volvox.checkpoint import DamagedCheckpointError
from volvox.report import rows
from volvox.types import Algorithm, Array

_NO_STATE = (AssertionError, AttributeError, LookupError, OverflowError, RecursionError, TypeError)
"""Errors that `Algorithm.restore` may raise for a tree that is not its state; another structure is a ValueError."""


class Restored(NamedTuple):
    """A run as its directory has it.

    Attributes:
      step: Steps done.
      state: The algorithm's state after them.
      rows: Their rows.
      rows_digest: SHA-256 of the lines of these rows.
      outputs: What the best policy answered when it was saved; None where the checkpoint does not say.
    """

    step: int
    state: Any
    rows: list[rows.Row]
    rows_digest: Any
    outputs: list[float] | None


def read_run(directory: Path, algorithm: Algorithm, config: Mapping[str, Any], key: Array) -> Restored | None:
    """Reads the newest checkpoint that is whole and belongs to a run, and the rows up to it.

    Args:
      directory: The run directory.
      algorithm: The run's algorithm.
      config: What `config.json` holds, in the format in which it was written.
      key: The key with which the run began.

    Returns:
      The run; None if there is no checkpoint.

    Raises:
      ValueError: A checkpoint belongs to another run, or holds the state of another algorithm or network.
      MemoryError: A checkpoint takes more memory than is free.
      volvox.checkpoint.DamagedCheckpointError: Every checkpoint is damaged, or its rows are.
    """
    folder, history = directory / CHECKPOINTS, _History(directory, algorithm.step_name, config)
    like = jax.eval_shape(algorithm.init, key) if algorithm.restore is None and checkpoint.steps(folder) else None

    def state_of(step: int, tree: Any) -> Any:
        place = folder / f"{step:08d}"
        try:
            return tree if algorithm.restore is None else algorithm.restore(tree)
        except ValueError as error:
            changed = "if the algorithm's code was changed, take that with which the run began"
            raise ValueError(f"{place}: {error}; {changed}") from error
        except _NO_STATE as error:
            reason = f"{type(error).__name__}: {error}"
            raise DamagedCheckpointError(f"checkpoint {place} holds no state of this algorithm ({reason})") from error

    saved = checkpoint.restore_latest(folder, like, check=history.check, convert=state_of)
    if saved is None:
        return None
    step, state = saved
    return Restored(step, state, history.rows[:step], history.sums[step], history.outputs)


class _History:
    """The rows of a run, by which checkpoints are checked.

    Attributes:
      rows: Rows up to the first that is damaged.
      sums: Digests of no row, of the first, of the first two, and so on.
      outputs: See `Restored`.
    """

    def __init__(self, directory: Path, step_name: str, config: Mapping[str, Any]):
        self._directory, self._step_name = directory, step_name
        self._settings, self._is_old = settings_digest(config), "format" not in config

    def check(self, step: int, about: Mapping[str, Any]) -> None:
        """Raises an error if a checkpoint does not belong to this run, or to the rows of it that are there.

        Args:
          step: That of the checkpoint.
          about: What it says of itself.
        """
        file, folder = self._directory / METRICS, self._directory / CHECKPOINTS / f"{step:08d}"
        if about.get("settings", self._settings if self._is_old else None) != self._settings:
            raise ValueError(
                f"checkpoint {folder} belongs to another run than {self._directory / CONFIG}: it was saved with other "
                "settings or another seed; move it out of the folder"
            )
        # Read after the checkpoint was found, since a run in progress writes its rows before.
        self.rows, damage = rows.read_until_damage(file)
        self.sums = rows.digests(self.rows)
        if not self._are_counted(step):
            missing = f"{file} does not hold one row for each {self._step_name} from 1 to {step}, where a "
            changed = "checkpoint stands: it was changed by hand, or algorithm.step_name is another"
            raise DamagedCheckpointError(damage or missing + changed)
        if about.get(rows.ABOUT, self.sums[step].hexdigest()) != self.sums[step].hexdigest():
            raise DamagedCheckpointError(f"{file} is damaged: its first {step} rows are not those that were saved")
        self.outputs = about.get("outputs")  # earlier versions saved none
        if self.outputs is not None and not is_outputs(self.outputs):
            raise DamagedCheckpointError(f"{folder} is damaged: the outputs in its manifest are no numbers")

    def _are_counted(self, step: int) -> bool:
        """Whether there is one row for each step up to a given one, and each has its time."""
        numbers = [row.get(self._step_name) for row in self.rows[:step]]
        return numbers == list(range(1, step + 1)) and all("seconds" in rows.numbers(row) for row in self.rows[:step])


def settings_digest(config: Mapping[str, Any]) -> str:
    """The digest by which checkpoints know their run; entries that are added later change nothing."""
    settings = {name: config[name] for name in ("algorithm", "key")}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
