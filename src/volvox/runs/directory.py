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
import datetime
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import volvox
from volvox.ops.flat import restored
from volvox.report import files
from volvox.report.files import Row, append_row, read_config, read_metrics, write_file, write_rows
from volvox.runs import checkpoint
from volvox.runs.config import differences, to_json
from volvox.types import Algorithm, Array


def versions() -> dict[str, str]:
    """Versions of volvox and of packages that affect its results."""
    others = {name: version(name) for name in ("jax", "envpool", "optax")}
    return {"python": platform.python_version(), "volvox": volvox.__version__, **others}


def processor() -> str:
    """The processor's name."""
    found = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def revision() -> str | None:
    """The git commit of volvox, with "-dirty" if files were changed; None if it was not installed from git."""
    file = Path(__file__)
    # `ls-files` fails in a checkout of another project, in which volvox is installed.
    command = f"git ls-files --error-unmatch -- {file.name} && git describe --always --abbrev=12 --dirty --exclude='*'"
    found = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=file.parent)
    return found.stdout.split()[-1] if found.returncode == 0 else None


def provenance() -> dict[str, Any]:
    """Where a result comes from: revision, hardware, command line and date."""
    return {
        "revision": revision(),
        "hardware": {
            "processor": processor(),
            "cpus": len(os.sched_getaffinity(0)),
            "devices": [device.device_kind for device in jax.devices()],
        },
        "command": shlex.join([Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def saved_key(config: Mapping[str, Any]) -> Array:
    """Returns the key with which a run began."""
    return jax.random.wrap_key_data(jnp.asarray(config["key"]["data"], jnp.uint32), impl=config["key"]["impl"])


def holds_steps(directory: Path) -> bool:
    """Whether a directory holds a run with at least one step."""
    return bool(read_metrics(directory / files.METRICS)) or any(checkpoint.steps(directory / files.CHECKPOINTS))


def check_unused(run_dir: str | os.PathLike[str]) -> None:
    """Raises FileExistsError if a directory holds a run with at least one step."""
    if holds_steps(Path(run_dir)):
        raise FileExistsError(f"{run_dir} already holds a run: pass resume=True (--resume), or give another run_dir")


def read_run(directory: Path, algorithm: Algorithm, config: Mapping[str, Any]) -> tuple[Any, list[Row]] | None:
    """Reads the newest usable checkpoint and the rows up to it.

    Returns:
      (state, rows), or None if there is no checkpoint.

    Raises:
      ValueError: The checkpoint does not fit the algorithm, such as one with another network.
      volvox.DamagedCheckpointError: There are checkpoints, but none can be used.
    """
    restore = algorithm.restore
    if restore is None:
        like = jax.eval_shape(algorithm.init, saved_key(config))
        restore = lambda tree: restored(tree, like, owner="algorithm")  # noqa: E731
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


@contextlib.contextmanager
def all_fail_together(agree: Callable[[float], float]) -> Iterator[None]:
    """Raises in all processes if one of them raises, so that none waits for it.

    Args:
      agree: `Algorithm.max_over_processes`, or the identity.
    """
    failed: float = True
    try:
        yield
        failed = False
    finally:
        failed = agree(failed)
    if failed:
        raise RuntimeError("another process failed; its error says why")


class RunDirectory:
    """Writes the files of a run.

    Attributes:
      path: The directory; None if nothing is written.
      rows: Rows of all completed steps.
      config: The contents of `config.json`.
    """

    def __init__(self, algorithm: Algorithm, path: Path | None, *, key: Array, keep_checkpoints: int):
        settings = {
            "algorithm": to_json(algorithm.config),
            "key": {"impl": str(jax.random.key_impl(key)), "data": np.asarray(jax.random.key_data(key)).tolist()},
        }
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        self.path, self.rows = path, list[Row]()
        self.config = {**settings, "digest": digest, "versions": versions(), "provenance": provenance()}
        self._algorithm, self._keep, self._saved_step = algorithm, keep_checkpoints, -1

    def open(self, stack: ExitStack, *, resume: bool) -> None:
        """Makes the directory, and locks it until the stack closes.

        Raises:
          FileExistsError: There is a run with at least one step, and `resume` is False.
          BlockingIOError: Another process is training in the directory.
          OSError: The directory cannot be written.
        """
        if self.path is None:
            return
        if not resume:
            check_unused(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(self.path))

    def read(self, path: Path) -> Any:
        """Reads the run in a directory; returns its state, or None if it has no steps.

        Args:
          path: The directory. It is an argument because processes that write nothing (`self.path` is None) read, too.

        Raises:
          ValueError: The settings of the run differ (all differences are listed), files of it are missing, or the
            checkpoint does not fit the algorithm.
          volvox.DamagedCheckpointError: There are checkpoints, but none can be used.
        """
        if not holds_steps(path):
            return None
        saved = read_config(path)
        found = differences(saved["algorithm"], self.config["algorithm"])
        if saved["key"] != self.config["key"]:
            found.append("seed: the run began with another seed, or another kind of key")
        if found:
            advice = "pass the same settings, give another run_dir, or use run.resume(changes={name: value})"
            raise ValueError("\n  ".join([f"{path} holds a run with other settings; {advice}:", *found]))
        self.config = saved
        run = read_run(path, self._algorithm, saved)
        if run is None:
            raise ValueError(f"{path} holds rows of metrics, but no checkpoint to resume from")
        state, self.rows = run
        self._saved_step = len(self.rows)
        return state

    def begin(self, state: Any) -> None:
        """Writes the first files of a run, or removes those of steps that will be repeated."""
        if self.path is None:
            return
        checkpoint.remove_after(self.path / files.CHECKPOINTS, len(self.rows))
        self.save(state)
        write_file(self.path / files.CONFIG, json.dumps(self.config, indent=2) + "\n")
        write_rows(self.path / files.METRICS, self.rows)
        self._write_elite(state)  # a kill may have come between a checkpoint and its elite

    def add(self, row: Row) -> None:
        """Adds the row of a completed step."""
        if self.path is not None:
            append_row(self.path / files.METRICS, row)
        self.rows.append(row)

    def save(self, state: Any) -> None:
        """Writes the checkpoint and the elite of the state after the last row, unless they are written already."""
        if self.path is None or self._saved_step == len(self.rows):
            return
        tree = state if self._algorithm.save is None else self._algorithm.save(state)
        folder, digest = self.path / files.CHECKPOINTS, self.config["digest"]
        checkpoint.save(folder, len(self.rows), tree, keep=self._keep, settings=digest)
        self._saved_step = len(self.rows)
        self._write_elite(state)

    def _write_elite(self, state: Any) -> None:
        if self.path is not None and self._algorithm.genome is not None and self.rows:
            write_file(self.path / files.ELITE, json.dumps(self._algorithm.genome(state)) + "\n")


def change_settings(directory: Path, algorithm: Algorithm, changes: Mapping[str, Any]) -> None:
    """Replaces the settings in `config.json` by those of `algorithm`, and records the changes and their step."""
    with locked(directory):
        config = read_config(directory)
        settings = config["algorithm"].get("settings") or config["algorithm"].get("strategy") or {}
        several = isinstance(settings, list)  # of several learners
        before = {name: [x.get(name) for x in settings] if several else settings.get(name) for name in changes}
        step = max(checkpoint.steps(directory / files.CHECKPOINTS), default=0)
        record = {"after_step": step, "from": before, "to": to_json(changes)}
        new = {**config, "algorithm": to_json(algorithm.config), "changes": [*config.get("changes", []), record]}
        write_file(directory / files.CONFIG, json.dumps(new, indent=2) + "\n")
