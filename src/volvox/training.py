"""The one outer loop: steps, metrics, checkpoints, resume, interrupt; the same for every algorithm.

A run directory holds

    config.json          the settings the run was started with, its key, and the versions of what it ran on
    metrics.jsonl        one row a step
    checkpoints/         the newest states
    elite.json           the best individual's lineage, if the algorithm keeps lineages
    learning_curve.png   drawn anew at the end, and about once a minute
    tensorboard/         event files
    log/                 with `log`, arrays of each step

A row is on disk before the checkpoint that contains its step, so after a kill at any moment every step of a restored
state has its row, and rows of later steps are dropped: no row is there twice, and none is missing.
"""

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox import _files as files
from volvox import _machine as machine
from volvox import checkpoint
from volvox.report import log as log_files
from volvox.report import metrics as metrics_file
from volvox.report import plots
from volvox.report.progress import Progress
from volvox.report.progress import progress as make_progress
from volvox.report.run import PLOT, Run
from volvox.types import Algorithm, Array, ArrayTree, Interrupted

__all__ = ["Run", "train"]

_CONFIG, _METRICS, _CHECKPOINTS, _ELITE = "config.json", "metrics.jsonl", "checkpoints", "elite.json"
_LOG = "log"
_SECONDS_BETWEEN_PLOTS = 60.0


def train(
    algorithm: Algorithm,
    key: Array,
    *,
    steps: int,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int = 1,
    keep_checkpoints: int = 3,
    progress: bool = True,
    tensorboard: bool = True,
    log: bool = False,
    stop_after: float | None = None,
) -> Run:
    """Runs an algorithm, and what it did up to now, to a number of steps.

    SIGINT (Ctrl-C, a notebook's interrupt) and SIGTERM end it within about a second: the step in progress is
    abandoned, the last completed one is saved, and the run is returned as `interrupted`. A second signal raises
    `KeyboardInterrupt` at once. Outside the main thread, signals are left alone.

    Args:
        algorithm: what to run. It is not closed. Its `config` must hold every setting that shapes the results, the
            environment's and the network's included: it is what `resume` compares.
        key: fixes the algorithm's random numbers; a typed or raw key.
        steps: steps (generations or rounds) in all, those before a resume included.
        run_dir: where to keep the run; None keeps nothing on disk.
        resume: go on from the newest whole checkpoint in `run_dir`; where there is none yet, begin there.
        checkpoint_every: steps between checkpoints; the last step done is always saved.
        keep_checkpoints: how many of the newest checkpoints stay.
        progress: show a bar (terminal, notebook) or print one line a step (elsewhere) on the standard error stream.
        tensorboard: also write TensorBoard event files into `run_dir/tensorboard`.
        log: also write what `algorithm.log` gives after each step into `run_dir/log`, for `volvox.report.population`;
            with evolution, some 20 bytes a member, and its behaviour.
        stop_after: seconds of this call after which no further step begins; None never stops early.

    Returns:
        The run. Rows hold the algorithm's metrics, the step by its name (`algorithm.step_name`, counted from 1),
        `seconds` (wall-clock time of all completed steps up to this one, over resumes, their checkpoints included) and
        `step_seconds`.

    Raises:
        FileExistsError: `run_dir` holds a run and `resume` is False.
        ValueError: an argument is out of its range; or, with `resume`, settings differ from those saved (all are
            named), or the run directory lacks a file it must have.
        BlockingIOError: another process is writing to `run_dir`.
        volvox.checkpoint.DamagedCheckpointError: every checkpoint is damaged.
        FloatingPointError: the algorithm's numbers are no longer finite; a note names the last good checkpoint.
    """
    step_name = algorithm.step_name
    _check(steps, run_dir, resume, checkpoint_every, keep_checkpoints, stop_after, step_name)
    if log and (run_dir is None or algorithm.log is None):
        raise ValueError(
            "log=True needs a run_dir to write to" if run_dir is None else "log=True: this algorithm has nothing to log"
        )
    config = _config(algorithm, key)
    directory = None if run_dir is None else Path(run_dir)
    with ExitStack() as stack:
        rows: list[metrics_file.Row] = []
        saved = None
        if directory is not None:
            _check_directory(directory, config, resume)
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_only_writer(directory))
            saved, rows = _open(directory, config, step_name)
        done, seconds_before = (0, 0.0) if saved is None else (saved.step, saved.seconds)

        display = make_progress(steps, done=done, step_name=step_name, enabled=progress, stop_after=stop_after)
        stack.callback(display.close)
        if directory is not None and resume:
            display.note(
                f"{directory}: going on after {step_name} {done}"
                if saved
                else f"{directory}: no run there yet, begins now"
            )
        events = None
        if directory is not None and tensorboard:
            events = metrics_file.tensorboard(directory / "tensorboard", first_step=done + 1)
            stack.callback(events.close)
        stop = stack.enter_context(_stop_on_signal())
        monitor = _monitor(stop, display)

        began = plotted = time.monotonic()

        def seconds() -> float:
            return seconds_before + time.monotonic() - began

        def save() -> None:
            if directory is not None:
                tree = {"seconds": rows[-1]["seconds"] if rows else 0.0, "state": algorithm.save(state)}
                checkpoint.save(directory / _CHECKPOINTS, done, tree, keep=keep_checkpoints)
                if algorithm.genome is not None and done:
                    files.write(directory / _ELITE, json.dumps(algorithm.genome(state)) + "\n")

        if saved is None:
            state = algorithm.init(key)
            save()
        else:
            state = algorithm.restore(saved.state)
        last_saved = done

        abandoned = False
        while done < steps and stop.signal is None:
            step_began = time.monotonic()
            try:
                state, figures = algorithm.step(state, monitor=monitor)
            except Interrupted:
                abandoned = True
                break
            except FloatingPointError as error:
                if last_saved != done:
                    save()
                if directory is not None:
                    kept = checkpoint.folder_of(directory / _CHECKPOINTS, done)
                    error.add_note(f"The last good checkpoint, of {step_name} {done}, is {kept}.")
                raise
            row = _row(step_name, done + 1, figures, seconds(), time.monotonic() - step_began)
            done += 1
            rows.append(row)
            if directory is not None:
                if log:
                    assert algorithm.log is not None
                    log_files.write(directory / _LOG, done, algorithm.log(state))
                metrics_file.append(directory / _METRICS, row)
            if events is not None:
                events.write(done, row)
            if done % checkpoint_every == 0:
                save()
                last_saved = done
            display.step(done, row)
            if directory is not None and time.monotonic() - plotted > _SECONDS_BETWEEN_PLOTS:
                plots.learning_curve(rows, directory / PLOT, title=algorithm.env.spec.name)
                plotted = time.monotonic()
            if stop_after is not None and time.monotonic() - began >= stop_after:
                if done < steps:
                    display.note(f"stopped after {step_name} {done}/{steps}: {stop_after:g} seconds have passed")
                break
        if last_saved != done:
            save()
        interrupted = abandoned or stop.signal is not None
        if interrupted:
            where = (
                f"; train(..., run_dir={str(directory)!r}, resume=True) goes on (scripts: --resume)"
                if directory is not None
                else ""
            )
            display.note(f"interrupted after {step_name} {done}/{steps}{where}")
        run = Run(
            algorithm=algorithm,
            state=state,
            metrics=rows,
            run_dir=directory,
            interrupted=interrupted,
            exit_code=128 + (stop.signal or signal.SIGINT) if interrupted else 0,
        )
        if directory is not None:
            run.plot()
        return run


def _check(
    steps: int,
    run_dir: str | os.PathLike[str] | None,
    resume: bool,
    checkpoint_every: int,
    keep_checkpoints: int,
    stop_after: float | None,
    step_name: str,
) -> None:
    for name, value in (
        ("steps", steps),
        ("checkpoint_every", checkpoint_every),
        ("keep_checkpoints", keep_checkpoints),
    ):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if stop_after is not None and not stop_after > 0:
        raise ValueError(f"stop_after must be a positive number of seconds or None, got {stop_after}")
    if step_name in ("", "seconds", "step_seconds"):
        raise ValueError(f"algorithm.step_name cannot be {step_name!r}")
    if resume and run_dir is None:
        raise ValueError("resume=True needs the run_dir to resume from")


def _config(algorithm: Algorithm, key: Array) -> dict[str, Any]:
    """What `config.json` says, in the form in which it is read back."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        about_key = {"impl": str(jax.random.key_impl(key)), "data": np.asarray(jax.random.key_data(key)).tolist()}
    else:
        about_key = {"impl": "raw", "data": np.asarray(key).tolist()}
    config = {
        "algorithm": algorithm.config,
        "key": about_key,
        "versions": machine.versions(),
    }
    try:
        return json.loads(json.dumps(config, allow_nan=False, default=_mapping))
    except (TypeError, ValueError) as error:
        raise TypeError(f"algorithm.config must hold JSON values only: {error}") from error


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is a {type(value).__module__}.{type(value).__qualname__}")


def check_unused(run_dir: str | os.PathLike[str]) -> None:
    """Raises FileExistsError if a directory holds a run: what `train` does without `resume`, before long work."""
    if holds := _holds(Path(run_dir)):
        raise FileExistsError(
            f"{os.fspath(run_dir)} already holds a run ({', '.join(holds)}): pass resume=True (scripts: --resume) to "
            "go on with it, or give another run_dir, or remove the directory"
        )


def _holds(directory: Path) -> list[str]:
    """What of a run is in a directory."""
    holds = [name for name in (_CONFIG, _METRICS) if (directory / name).exists()]
    return holds + ([_CHECKPOINTS] if checkpoint.steps(directory / _CHECKPOINTS) else [])


def _check_directory(directory: Path, config: dict[str, Any], resume: bool) -> None:
    """Raises if no run with these settings may begin or go on here; changes nothing."""
    if not resume:
        return check_unused(directory)
    if not (holds := _holds(directory)):
        return
    if _CONFIG not in holds:
        raise ValueError(f"{directory} holds {', '.join(holds)} but no {_CONFIG}: it cannot be resumed")
    saved = json.loads((directory / _CONFIG).read_text())
    differences = list(_differences("", {**saved, "versions": None}, {**config, "versions": None}))
    if differences:
        raise ValueError(
            f"{directory} was started with other settings; use those, or another run_dir:\n  "
            + "\n  ".join(differences)
        )


def _differences(place: str, saved: Any, given: Any) -> Iterator[str]:
    if isinstance(saved, dict) and isinstance(given, dict):
        for name in dict.fromkeys([*saved, *given]):
            inner = f"{place}.{name}" if place else name
            if name not in saved:
                yield f"{inner}: not saved, now {json.dumps(given[name])}"
            elif name not in given:
                yield f"{inner}: saved {json.dumps(saved[name])}, now absent"
            else:
                yield from _differences(inner, saved[name], given[name])
    elif saved != given:
        yield f"{place}: saved {json.dumps(saved)}, now {json.dumps(given)}"


class _Saved(NamedTuple):
    step: int
    seconds: float
    state: ArrayTree


def _open(directory: Path, config: dict[str, Any], step_name: str) -> tuple[_Saved | None, list[metrics_file.Row]]:
    """Makes the directory ready to go on: writes the settings, or restores the state and drops rows beyond it."""
    restored = checkpoint.restore_latest(directory / _CHECKPOINTS)
    rows = metrics_file.read(directory / _METRICS)
    if restored is None:
        if rows:  # the state before the first step is saved before any row
            raise ValueError(
                f"{directory / _METRICS} has {len(rows)} rows, but {directory / _CHECKPOINTS} no checkpoint"
            )
        if not (directory / _CONFIG).exists():
            files.write(directory / _CONFIG, json.dumps(config, indent=2) + "\n")
        metrics_file.rewrite(directory / _METRICS, [])
        return None, []
    step, tree = restored
    kept = rows[:step]
    if [row.get(step_name) for row in kept] != list(range(1, step + 1)):
        raise ValueError(
            f"{directory / _METRICS} does not hold one row for each {step_name} from 1 to {step}, where the newest "
            "checkpoint stands: it was changed by hand, or algorithm.step_name is another"
        )
    metrics_file.rewrite(directory / _METRICS, kept)
    log_files.drop_after(directory / _LOG, step)
    return _Saved(step, tree["seconds"], tree["state"]), kept


def _row(
    step_name: str, number: int, figures: Mapping[str, Any], seconds: float, step_seconds: float
) -> metrics_file.Row:
    if figures.get(step_name, number) != number:
        raise ValueError(
            f"the algorithm calls this {step_name} {figures[step_name]}, but by train's count it is {number}: "
            "a state begins with none done, and each step does one"
        )
    own = {step_name: number, "seconds": round(seconds, 3), "step_seconds": round(step_seconds, 3)}
    return own | {name: value for name, value in metrics_file.to_json(figures).items() if name not in own}


@dataclass
class _Stop:
    """Stop.

    Attributes:
      signal: The first signal that asked to stop.
    """

    signal: int | None = None


@contextmanager
def _stop_on_signal() -> Iterator[_Stop]:
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():  # Python delivers signals to the main thread only
        yield stop
        return

    def handle(number: int, frame: object) -> None:
        if stop.signal is not None:
            raise KeyboardInterrupt
        stop.signal = number

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            if handler is not None:  # None: installed by C code, out of Python's reach
                signal.signal(number, handler)


def _monitor(stop: _Stop, display: Progress) -> Callable[[Mapping[str, Any]], bool]:
    announced = False

    def monitor(figures: Mapping[str, Any]) -> bool:
        nonlocal announced
        display.inside(figures)
        if stop.signal is not None and not announced:
            display.note("stopping; once more stops at once, without saving")
            announced = True
        return stop.signal is not None

    return monitor


@contextmanager
def _only_writer(directory: Path) -> Iterator[None]:
    """Holds the directory's lock; the system drops it when the process ends, however it ends."""
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, f"another process is training in {directory}") from error
        yield
