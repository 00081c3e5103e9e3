"""The outer loop of every algorithm: steps, metrics, checkpoints, resuming, and interrupts."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np

from volvox import _checks
from volvox.report.files import LOG, Row, numbers, to_json_row, write_log
from volvox.runs.directory import RunDirectory, all_fail_together
from volvox.runs.loggers import LoggedRun, Logger, OpenLogger, open_loggers, tensorboard
from volvox.runs.progress import Progress
from volvox.runs.run import Run
from volvox.types import Algorithm, Array, Budget, Interrupted

_SECONDS_BETWEEN_PLOTS = 60.0
_SECONDS_BETWEEN_CHECKPOINTS = 60.0


def train(
    algorithm: Algorithm,
    *,
    steps: int | None = None,
    seed: int | Array = 0,
    max_frames: float | None = None,
    max_timesteps: float | None = None,
    stop_after: float | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int = 1,
    keep_checkpoints: int = 3,
    progress: bool = True,
    loggers: Sequence[Logger | OpenLogger] | None = None,
    on_step: Callable[[Run], object] | None = None,
) -> Run:
    """Trains until the run has `steps` steps, including those of earlier calls, or until another budget is used up.

        run = vx.train(algorithm, seed=0, steps=10, run_dir="runs/frostbite")
        run = vx.train(algorithm, seed=0, steps=20, run_dir="runs/frostbite", resume=True)

    An iteration of a learner ends with the round of timesteps in which a budget is used up. A generation of a
    population is always whole: the run ends after the generation in which a budget is used up. An evaluation that is
    due is finished. Without `steps`, an iteration also ends after about a minute, so that a checkpoint is written. The
    ends of iterations affect rows, not parameters.

    SIGINT (Ctrl-C, a notebook's interrupt) and SIGTERM end the run within about a second, or after the compilation in
    progress: the current step is abandoned, the last completed one is saved, and the run is returned as `interrupted`.
    Several processes finish an evaluation in progress first. A second signal has its usual effect. Outside the main
    thread, signals are ignored.

    If several processes learn together (`volvox.distributed.initialize`), each calls this function with the same
    arguments. The first process alone writes, logs, and shows progress; the others read `run_dir` to resume, and their
    `Run` has no directory. All processes stop together.

    Compiled programs are kept in `~/.cache/volvox/programs` for later processes; the folder may be deleted. If JAX
    already has a cache, such as that of `JAX_COMPILATION_CACHE_DIR`, it is used instead.
    `JAX_ENABLE_COMPILATION_CACHE=false` turns both off.

    Args:
      algorithm: The algorithm. It is not closed. A resumed run is compared with its `config`.
      steps: Steps (generations or iterations) of the whole run. None: another budget ends the run.
      seed: An integer or a key of `jax.random`, from which all random numbers derive.
      max_frames: Largest number of emulator frames of the whole run (metric `frames`).
      max_timesteps: Largest number of timesteps of the whole run (metric `timesteps`): of each learner, or of training
        and validation of a population.
      stop_after: Duration of this call in seconds. With `steps`, the iteration in progress is completed.
      run_dir: Directory of the run. None: nothing is written.
      resume: Continue from the newest usable checkpoint in `run_dir`; without one, begin there.
      checkpoint_every: Steps between checkpoints. The last step is always saved, and so is a step that ends a minute
        (and 20 times the duration of a checkpoint) after the last checkpoint.
      keep_checkpoints: Number of newest checkpoints that are kept.
      progress: Show progress on the standard error stream. False prints nothing.
      loggers: Loggers that receive each row, such as `(vx.loggers.csv(), vx.loggers.wandb("project"))`. None:
        TensorBoard files in `run_dir`, if there is one.
      on_step: Called after each step with the run so far. If it returns True, the run is saved and ends; other values
        are ignored. For example, `volvox.runs.log_arrays` writes arrays of each step.

    Returns:
      The run. Its rows hold the algorithm's metrics, the step by its name (`algorithm.step_name`, from 1), `seconds`
      (wall-clock time of all completed steps, over resumes) and `step_seconds`.

    Raises:
      FileExistsError: `run_dir` holds a run with at least one step, and `resume` is False.
      ValueError: An argument is out of range; no argument would end the run; or, with `resume`, the settings of the run
        differ (all differences are listed).
      BlockingIOError: Another process is training in `run_dir`.
      OSError: `run_dir` cannot be written. Checkpoints and rows that were saved are intact.
      volvox.DamagedCheckpointError: No checkpoint can be used.
      FloatingPointError: Numbers of the algorithm are no longer finite.
      Exception: Any error of an environment, a step, a logger, or `on_step`. The last good state is saved.
    """
    _checks.check_type("algorithm", algorithm, Algorithm, "vx.evolve or vx.learn")
    steps = _checks.count("steps", steps)
    given = {"frames": max_frames, "timesteps": max_timesteps}
    limits: dict[str, Any] = {name: _checks.count(f"max_{name}", x) for name, x in given.items() if x is not None}
    _checks.integer("checkpoint_every", checkpoint_every, low=1, high=None)
    _checks.integer("keep_checkpoints", keep_checkpoints, low=1, high=None)
    if stop_after is not None:
        _checks.number("stop_after", stop_after, above=0)
    if steps is None and stop_after is None and not limits:
        raise ValueError("nothing would end this run: give steps, max_timesteps, max_frames or stop_after (seconds)")
    if resume and run_dir is None:
        raise ValueError("resume=True needs a run_dir")
    if algorithm.max_over_processes is None and jax.process_count() > 1:
        raise ValueError("this algorithm trains in one process; learners train in several (docs/how-to/scale.md)")
    if getattr(jax.config, "jax_compilation_cache_dir") is None:  # noqa: B009  # for type checks
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "volvox", "programs").expanduser()
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a start compiles many small programs
    key, name = _checks.typed_key(seed), algorithm.step_name
    agree = algorithm.max_over_processes or (lambda number: number)
    is_first = jax.process_index() == 0
    path = None if run_dir is None else run_path(run_dir)
    directory = RunDirectory(algorithm, path if is_first else None, key=key, keep_checkpoints=keep_checkpoints)

    with ExitStack() as stack:
        with all_fail_together(agree):
            directory.open(stack, resume=resume)
        state = directory.read(path) if resume and path is not None else None
        rows = directory.rows
        if agree(len(rows)) != -agree(-len(rows)):
            raise ValueError(f"run_dir={str(run_dir)!r} must be on a disk that all processes share")
        begins, state = state is None, algorithm.init(key) if state is None else state
        display = Progress(algorithm, rows, progress and is_first, steps, stop_after, limits)
        stack.callback(display.close)
        if resume:
            display.note(f"{run_dir}: {'the run begins' if begins else f'the run continues after {name} {len(rows)}'}")
        with all_fail_together(agree):
            directory.begin(state)
            if loggers is None:
                loggers = () if directory.path is None else (tensorboard(),)
            saved_config = directory.config["algorithm"]
            logged = LoggedRun(directory.path, algorithm.env.spec.name, name, saved_config, tuple(rows))
            log = open_loggers(loggers if is_first else (), logged, stack)
        signals = _catch_signals(stack)

        def monitor(figures: Mapping[str, Any]) -> bool:
            display.inside(figures)
            return bool(signals)

        began = time.monotonic()
        save_at = began + _SECONDS_BETWEEN_CHECKPOINTS
        end, seconds_before = began + (stop_after or math.inf), rows[-1]["seconds"] if rows else 0.0
        last, reason, next_plot = math.inf if steps is None else steps, "", began + _SECONDS_BETWEEN_PLOTS
        while len(rows) < last and not reason and not agree(len(signals)):
            if over := [name for name, limit in limits.items() if rows and _count(rows[-1], name) >= limit]:
                reason = f"{_count(rows[-1], over[0]):,} {over[0]} were played"
                break
            step_began = time.monotonic()
            # With `steps`, the length of a step must not depend on the speed of the machine.
            deadline = min(end, step_began + _SECONDS_BETWEEN_CHECKPOINTS) if steps is None else math.inf
            metrics = None
            try:
                after, metrics = algorithm.step(state, monitor=monitor, budget=Budget(**limits, deadline=deadline))
                now = time.monotonic()
                times = {"seconds": round(seconds_before + now - began, 3), "step_seconds": round(now - step_began, 3)}
                directory.add({name: len(rows) + 1} | to_json_row(metrics) | {name: len(rows) + 1} | times)
                state = after
                log(len(rows), rows[-1])
                if len(rows) % checkpoint_every == 0 or time.monotonic() >= save_at:
                    began_saving = time.monotonic()
                    directory.save(state)
                    saved = time.monotonic()
                    save_at = saved + max(_SECONDS_BETWEEN_CHECKPOINTS, 20 * (saved - began_saving))
                display.step(len(rows), rows[-1])
                run = Run(algorithm, state, list(rows), directory.path)
                if directory.path is not None and time.monotonic() >= next_plot:
                    run.plot()
                    next_plot = time.monotonic() + _SECONDS_BETWEEN_PLOTS
                result = on_step(run) if on_step else None
                ended = isinstance(result, bool | np.bool_ | jax.Array) and bool(result)
            except Interrupted:
                break
            except Exception as error:  # of the algorithm, a logger or `on_step`; it is raised again
                of_envs = metrics is None and not isinstance(error, FloatingPointError)
                if signals and of_envs and algorithm.max_over_processes is None:
                    break  # the signal may have ended the workers of environments too
                with suppress(OSError):  # of a full disk; the first error is raised
                    directory.save(state)
                    if path is not None:
                        error.add_note(f"The state after {name} {len(rows)} is saved in {path}.")
                raise
            if agree(ended):
                reason = "on_step returned True"
            elif stop_after is not None and agree(time.monotonic() - began) >= stop_after:
                reason = f"{stop_after:g} seconds are over"
        directory.save(state)
        stopped_by = int(agree(max(signals, default=0)))
        if stopped_by:
            again = f"; train(..., run_dir={str(run_dir)!r}, resume=True) continues it" if run_dir is not None else ""
            display.note(f"interrupted after {name} {len(rows)}{again}")
        elif reason and len(rows) < last:
            display.note(f"stopped after {name} {len(rows)}: {reason}")
        if rows and rows[-1].get("update") == 0:
            display.note("no update was made: it needs more time, or more timesteps (random_timesteps, segment_length)")
        exit_code = 128 + stopped_by if stopped_by else 0
        run = Run(algorithm, state, rows, directory.path, interrupted=bool(stopped_by), exit_code=exit_code)
        if directory.path is not None and rows:
            run.plot()
        return run


def log_arrays(run: Run) -> None:
    """Writes the arrays of the last step into `log/` of the run directory, for `on_step` of `train`.

    Evolution logs about 20 bytes and the behavior of each member; see `Algorithm.log`.

    Raises:
      ValueError: The run has no directory, or its algorithm has no arrays to log.
    """
    if run.run_dir is None or run.algorithm.log is None:
        raise ValueError("log_arrays needs a run_dir, and an algorithm that logs arrays, such as those of vx.evolve")
    write_log(run.run_dir / LOG, len(run.metrics), run.algorithm.log(run.state))


def run_path(run_dir: str | os.PathLike[str]) -> Path:
    """Returns the absolute path of a run directory; raises ValueError for an empty name."""
    if not os.fspath(run_dir).strip():
        raise ValueError("run_dir is empty: name a directory")
    return Path(run_dir).absolute()


def _count(row: Row, name: str) -> int:
    if name not in numbers(row):
        raise ValueError(f"max_{name}: the rows of this run have no metric {name!r}; give steps or stop_after")
    return int(row[name])


def _catch_signals(stack: ExitStack) -> list[int]:
    """Returns a list to which SIGINT and SIGTERM are added; the stack restores the handlers."""
    received, previous = list[int](), dict[int, Any]()

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        restore()  # a second signal has its usual effect

    if threading.current_thread() is threading.main_thread():
        stack.callback(restore)
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, receive)
    return received
