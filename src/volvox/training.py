"""The one outer loop: steps, metrics, checkpoints, resume, interrupt; the same for every algorithm.

A run directory holds

    config.json          the settings the run was started with, its key, and the versions of what it ran on
    metrics.jsonl        one row a step
    checkpoints/         the newest states
    elite.json           the lineage of the best individual of the newest state, if the algorithm keeps lineages
    learning_curve.png   drawn anew at the end, and about once a minute
    tensorboard/         event files
    log/                 with `log`, arrays of each step

A row is on disk before the checkpoint that contains its step, so after a kill at any moment every step of a restored
state has its row, and rows of later steps are dropped: no row is there twice, and none is missing.
"""

import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox import _checks
from volvox._record import Record, check_unused
from volvox.report.progress import Progress
from volvox.report.run import Run
from volvox.types import Algorithm, Array, Interrupted

__all__ = ["check_unused", "train"]


def train(
    algorithm: Algorithm,
    *,
    seed: int | Array = 0,
    steps: int,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int = 1,
    keep_checkpoints: int = 3,
    progress: bool = True,
    tensorboard: bool = True,
    log: bool = False,
    stop_after: float | None = None,
    frames: int | None = None,
) -> Run:
    """Runs an algorithm, and what it did up to now, to a number of steps.

        run = vx.train(algorithm, seed=0, steps=10, run_dir="runs/frostbite")
        run = vx.train(algorithm, seed=0, steps=20, run_dir="runs/frostbite", resume=True)

    SIGINT (Ctrl-C, a notebook's interrupt) and SIGTERM end it within about a second: the step in progress is
    abandoned, the last completed one is saved, and the run is returned as `interrupted`. A second signal raises
    `KeyboardInterrupt` at once. Outside the main thread, signals are left alone.

    Args:
      algorithm: what to run. It is not closed. Its `config` must hold every setting that shapes the results, the
        environment's and the network's included: it is what `resume` compares.
      seed: fixes the algorithm's random numbers: an integer, or a key of `jax.random`.
      steps: steps (generations or iterations) in all, those before a resume included.
      run_dir: where to keep the run; None keeps nothing on disk.
      resume: go on from the newest whole checkpoint in `run_dir`; where there is none yet, begin there.
      checkpoint_every: steps between checkpoints; the last step done is always saved.
      keep_checkpoints: how many of the newest checkpoints stay.
      progress: show a bar (terminal, notebook) or print one line a step (elsewhere) on the standard error stream.
      tensorboard: also write TensorBoard event files into `run_dir/tensorboard`.
      log: also write what `algorithm.log` gives after each step into `run_dir/log`, for `volvox.report.cloud` and
        `descent`; with evolution, some 20 bytes a member, and its behaviour.
      stop_after: seconds of this call after which no further step begins; None never stops early.
      frames: no further step begins when the metric `frames` has reached this number; None never stops early.

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
      FloatingPointError: the algorithm's numbers are no longer finite; a note says where the last good checkpoint is.
    """
    _checks.integer("steps", steps, low=1)
    _checks.integer("checkpoint_every", checkpoint_every, low=1)
    _checks.integer("keep_checkpoints", keep_checkpoints, low=1)
    if stop_after is not None:
        _checks.number("stop_after", stop_after, above=0)
    if frames is not None:
        _checks.integer("frames", frames, low=1)
    if (resume or log) and run_dir is None:
        raise ValueError(f"{'resume' if resume else 'log'}=True needs a run_dir")
    if log and algorithm.log is None:
        raise ValueError("log=True: this algorithm has nothing to log")
    key, name = _typed_key(seed), algorithm.step_name
    if name in ("", "seconds", "step_seconds"):
        raise ValueError(f"algorithm.step_name cannot be {name!r}")
    record = Record(algorithm, run_dir, keep=keep_checkpoints, log=log)
    with ExitStack() as stack:
        saved = record.open(stack, key, resume=resume, tensorboard=tensorboard)
        display = Progress(steps, done=record.done, step_name=name, enabled=progress, stop_after=stop_after)
        stack.callback(display.close)
        if resume:
            begins = f"going on after {name} {record.done}" if saved else "no run there yet, begins now"
            display.note(f"{run_dir}: {begins}")
        monitor = _Monitor(display, stack)
        if saved is None:
            state = algorithm.init(key)
            record.save(state)
        else:
            state = saved[1] if algorithm.restore is None else algorithm.restore(saved[1])
            record.write_elite(state)  # a kill may have come between this state's checkpoint and its elite

        began = time.monotonic()
        seconds_before = record.rows[-1]["seconds"] if record.rows else 0.0
        while record.done < steps and not monitor.signal:
            if frames is not None and record.rows and record.rows[-1]["frames"] >= frames:
                display.note(f"stopped after {name} {record.done}/{steps}: {frames:,} frames are played")
                break
            step_began = time.monotonic()
            try:
                state, figures = algorithm.step(state, monitor=monitor)
            except Interrupted:
                monitor.signal = monitor.signal or signal.SIGINT
                break
            except FloatingPointError as error:
                record.save(state)
                saved_in = "nothing was saved" if run_dir is None else f"its checkpoint is in {run_dir}"
                error.add_note(f"The last good state is that of {name} {record.done}; {saved_in}.")
                raise
            now = time.monotonic()
            record.add(state, figures, seconds=seconds_before + now - began, step_seconds=now - step_began)
            if record.done % checkpoint_every == 0:
                record.save(state)
            display.step(record.done, record.rows[-1])
            record.plot_now_and_then()
            if stop_after is not None and time.monotonic() - began >= stop_after:
                if record.done < steps:
                    display.note(f"stopped after {name} {record.done}/{steps}: {stop_after:g} seconds have passed")
                break
        record.save(state)
        if monitor.signal:
            again = f"; train(..., run_dir={str(record.path)!r}, resume=True) goes on (scripts: --resume)"
            display.note(f"interrupted after {name} {record.done}/{steps}{again if record.path is not None else ''}")
        exit_code = 128 + monitor.signal if monitor.signal else 0
        run = Run(algorithm, state, record.rows, record.path, bool(monitor.signal), exit_code)
        if record.path is not None:
            run.plot()
        return run


class _Monitor:
    """What a step calls about once a second: it shows figures, and says whether a signal asked to stop.

    Until the stack closes, SIGINT and SIGTERM are noted here; a second one raises `KeyboardInterrupt`. Outside the main
    thread signals are left alone, since Python delivers them to the main thread only.

    Attributes:
      signal: the number of the first signal that asked to stop, or 0.
    """

    def __init__(self, display: Progress, stack: ExitStack):
        self.signal = 0
        self._display, self._announced = display, False
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                previous = signal.signal(number, self._note)
                if previous is not None:  # None: installed by C code, out of Python's reach
                    stack.callback(signal.signal, number, previous)

    def __call__(self, figures: Mapping[str, Any]) -> bool:
        self._display.inside(figures)
        if self.signal and not self._announced:
            self._display.note("stopping; once more stops at once, without saving")
            self._announced = True
        return bool(self.signal)

    def _note(self, number: int, frame: object) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number


def _typed_key(seed: int | Array) -> Array:
    if isinstance(seed, int | np.integer):
        return jax.random.key(seed)
    return seed if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(seed)
