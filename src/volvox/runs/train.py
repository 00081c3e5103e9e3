"""The outer loop of every algorithm: steps, metrics, checkpoints, resuming, and interrupts."""

import hashlib
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
from volvox.report.files import CONFIG, LOG, Row, numbers, read_config, to_json_row, write_log
from volvox.runs.directory import RunDirectory, check_same_settings, read_run
from volvox.runs.loggers import LoggedRun, Logger, OpenLogger, open_loggers, tensorboard
from volvox.runs.progress import Progress
from volvox.runs.provenance import processor
from volvox.runs.run import Run
from volvox.types import Algorithm, Array, Interrupted

_CACHE_BYTES = 2**30


def train(
    algorithm: Algorithm,
    *,
    steps: int | None = None,
    seed: int | Array = 0,
    max_frames: float | None = None,
    stop_after: float | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int = 1,
    keep_checkpoints: int = 3,
    progress: bool = True,
    loggers: Sequence[Logger | OpenLogger] | None = None,
    on_step: Callable[[Run], object] | None = None,
) -> Run:
    """Trains until the run has `steps` steps, including those of earlier calls.

        run = vx.train(algorithm, seed=0, steps=10, run_dir="runs/frostbite")
        run = vx.train(algorithm, seed=0, steps=20, run_dir="runs/frostbite", resume=True)

    SIGINT (Ctrl-C, a notebook's interrupt) and SIGTERM end the run within about a second, or after the compilation in
    progress: the current step is abandoned, the last completed one is saved, and the run is returned as `interrupted`.
    A second signal has its usual effect. Outside the main thread, signals are ignored.

    If several processes learn together (`volvox.distributed.initialize`), each calls this function with the same
    arguments. The first process alone writes, logs, and shows progress; the others read `run_dir` to resume, and their
    `Run` has no directory. All processes stop together.

    Compiled programs are kept in the user's cache folder for later processes. The environment variable
    `VOLVOX_COMPILATION_CACHE` names another folder, or is "off"; a cache that was configured for JAX is used as it is.

    Args:
      algorithm: The algorithm. It is not closed. A resumed run is compared with its `config`.
      steps: Steps (generations or iterations) of the whole run. None: `stop_after` or `max_frames` ends the run.
      seed: An integer or a key of `jax.random`, from which all random numbers derive.
      max_frames: Emulator frames of the whole run, by the metric `frames`, after which no further step begins.
      stop_after: Seconds of this call after which no further step begins.
      run_dir: Directory of the run. None: nothing is written.
      resume: Continue from the newest usable checkpoint in `run_dir`; without one, begin there.
      checkpoint_every: Steps between checkpoints. The last step is always saved.
      keep_checkpoints: Number of the newest checkpoints that stay.
      progress: Show progress on the standard error stream. False prints nothing.
      loggers: Loggers that receive each row, such as `(vx.loggers.csv(), vx.loggers.wandb("project"))`. None:
        TensorBoard files in `run_dir`, if there is one.
      on_step: Called after each step with the run so far. The run ends, saved, if it returns True; other return values
        are ignored. `volvox.runs.log_arrays` is one that writes arrays of each step.

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
    attributes = ("init", "step", "variables", "policy", "env", "config")
    _checks.check_has("algorithm", algorithm, attributes, "an algorithm, made by vx.evolve or vx.learn")
    steps, max_frames = _checks.count("steps", steps), _checks.count("max_frames", max_frames)
    _checks.integer("checkpoint_every", checkpoint_every, low=1, high=None)
    _checks.integer("keep_checkpoints", keep_checkpoints, low=1, high=None)
    if stop_after is not None:
        _checks.number("stop_after", stop_after, above=0)
    if steps is None and stop_after is None and max_frames is None:
        raise ValueError("nothing would end this run: give steps, max_frames or stop_after (seconds)")
    if resume and run_dir is None:
        raise ValueError("resume=True needs a run_dir")
    if algorithm.max_over_processes is None and jax.process_count() > 1:
        raise ValueError(
            "this algorithm runs in one process: A3C, PPO and TD3 learn in several, and vx.evolve divides populations "
            "with workers=vx.distributed.ray()"
        )
    _keep_programs()
    key, name = _checks.typed_key(seed), algorithm.step_name
    agree = algorithm.max_over_processes or (lambda number: number)
    is_first = algorithm.max_over_processes is None or jax.process_index() == 0
    path = None if run_dir is None else run_path(run_dir)
    directory = RunDirectory(algorithm, path if is_first else None, key=key, keep_checkpoints=keep_checkpoints)
    rows = directory.rows

    with ExitStack() as stack:
        state = directory.open(stack, resume=resume)
        agree(0)  # the first process has opened the directory
        if resume and path is not None and not is_first and (path / CONFIG).exists():
            config = read_config(path)
            check_same_settings(path, config, directory.config)
            state, directory.rows = read_run(path, algorithm, config) or (None, [])
        rows = directory.rows
        if agree(len(rows)) != -agree(-len(rows)):
            raise ValueError(f"run_dir={str(run_dir)!r} must be on a disk that all processes share")
        begins, state = state is None, algorithm.init(key) if state is None else state
        display = None
        if progress and is_first:
            frames = int(numbers(rows[-1]).get("frames", 0)) if rows else 0
            limits = {"stop_after": stop_after, "max_frames": max_frames, "frame_skip": algorithm.env.spec.frame_skip}
            display = Progress(steps, done=len(rows), frames=frames, step_name=name, **limits)
            stack.callback(display.close)
        note = display.note if display is not None else lambda text: None
        if resume:
            note(f"{run_dir}: {'the run begins' if begins else f'the run continues after {name} {len(rows)}'}")
        directory.begin(state)
        if loggers is None:
            loggers = () if directory.path is None else (tensorboard(),)
        settings, before = directory.config["algorithm"], tuple(map(dict, rows))
        logged = LoggedRun(directory.path, algorithm.env.spec.name, name, settings, before)
        log = open_loggers(loggers if is_first else (), logged, stack)
        interrupt = _Interrupt(stack, display)

        began, seconds_before = time.monotonic(), rows[-1]["seconds"] if rows else 0.0
        last, reason = math.inf if steps is None else steps, ""
        while len(rows) < last and not reason:
            if agree(interrupt.signal):
                break
            if max_frames is not None and rows and _frames(rows[-1]) >= max_frames:
                reason = f"{_frames(rows[-1]):,} frames were played"
                break
            step_began = time.monotonic()
            try:
                after, metrics = algorithm.step(state, monitor=interrupt)
            except Interrupted:
                break
            except Exception as error:
                directory.save(state)
                saved = "was not saved" if path is None else f"is saved in {path}"
                error.add_note(f"Raised inside {name} {len(rows) + 1}. The state after {name} {len(rows)} {saved}.")
                raise
            now = time.monotonic()
            try:
                times = {"seconds": round(seconds_before + now - began, 3), "step_seconds": round(now - step_began, 3)}
                directory.add({name: len(rows) + 1} | to_json_row(metrics) | {name: len(rows) + 1} | times)
                state = after
                log(len(rows), rows[-1])
                if len(rows) % checkpoint_every == 0:
                    directory.save(state)
                directory.plot()
                if display is not None:
                    display.step(len(rows), rows[-1])
                result = on_step(Run(algorithm, state, list(rows), directory.path)) if on_step else None
                ended = isinstance(result, bool | np.bool_ | jax.Array) and bool(result)
            except Exception:
                with suppress(OSError):  # of a full disk; the first error is raised
                    directory.save(state)
                raise
            if agree(ended):
                reason = "on_step returned True"
            elif stop_after is not None and agree(time.monotonic() - began) >= stop_after:
                reason = f"{stop_after:g} seconds are over"
        directory.save(state)
        directory.plot(now=True)
        stopped_by = int(agree(interrupt.signal))
        if stopped_by:
            again = f"; train(..., run_dir={str(run_dir)!r}, resume=True) continues it" if run_dir is not None else ""
            note(f"interrupted after {name} {len(rows)}{again}")
        elif reason and len(rows) < last:
            note(f"stopped after {name} {len(rows)}: {reason}")
        exit_code = 128 + stopped_by if stopped_by else 0
        return Run(algorithm, state, rows, directory.path, interrupted=bool(stopped_by), exit_code=exit_code)


def log_arrays(run: Run) -> None:
    """Writes the arrays of the last step into `log/` of the run directory, for `on_step` of `train`.

    With evolution these are some 20 bytes a member, and its behaviour; see `Algorithm.log`.

    Raises:
      ValueError: The run has no directory, or its algorithm has no arrays to log.
    """
    if run.run_dir is None or run.algorithm.log is None:
        missing = "a run_dir" if run.run_dir is None else "an algorithm that logs arrays, such as those of vx.evolve"
        raise ValueError(f"log_arrays needs {missing}")
    write_log(run.run_dir / LOG, len(run.metrics), run.algorithm.log(run.state))


def run_path(run_dir: str | os.PathLike[str]) -> Path:
    """Returns the absolute path of a run directory; raises ValueError for an empty name."""
    if not os.fspath(run_dir).strip():
        raise ValueError("run_dir is empty: name a directory")
    return Path(run_dir).absolute()


def _frames(row: Row) -> int:
    if "frames" not in numbers(row):
        raise ValueError("max_frames: this algorithm has no metric 'frames'; give steps or stop_after")
    return int(row["frames"])


class _Interrupt:
    """The monitor of a step: shows progress, and asks the step to stop after SIGINT or SIGTERM.

    Attributes:
      signal: Number of the signal that was received, or 0.
    """

    def __init__(self, stack: ExitStack, display: Progress | None):
        self.signal, self._display, self._previous = 0, display, dict[int, Any]()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
            stack.callback(self._restore)

    def __call__(self, figures: Mapping[str, Any]) -> bool:
        if self._display is not None:
            self._display.inside(figures)
        return bool(self.signal)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()  # a second signal has its usual effect

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            if handler is not None:  # None: installed outside of Python
                signal.signal(number, handler)


def _keep_programs() -> None:
    """Lets JAX keep compiled programs between processes."""
    place = os.environ.get("VOLVOX_COMPILATION_CACHE", "")
    if place == "off" or getattr(jax.config, "jax_compilation_cache_dir") is not None:  # noqa: B009  # for type checks
        return
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    # Programs are compiled for one kind of processor, and home directories may be shared.
    machine = hashlib.sha256(processor().encode()).hexdigest()[:8]
    folder = Path(place or Path(home, "volvox", "programs")).expanduser() / machine
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", _CACHE_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a start compiles many small programs
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
