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

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from volvox import _checks
from volvox._record import PLOT, Record, check_unused
from volvox.report import plots, video
from volvox.report.progress import Progress
from volvox.report.rows import Row
from volvox.types import Algorithm, Array, ArrayTree, Interrupted

__all__ = ["Run", "check_unused", "train"]


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of `volvox.train`, as far as it got.

        run = vx.train(algorithm, steps=10, run_dir="runs/a")
        run.plot()
        run.watch()
        print(vx.play(env, algorithm.policy, run.variables()))

    Attributes:
      algorithm: As given.
      state: The algorithm's state after the last completed step.
      metrics: One row a completed step, those before a resume included.
      run_dir: The run directory, if there is one.
      interrupted: A signal (Ctrl-C, SIGTERM) ended the run early.
      exit_code: What a script should exit with (`sys.exit(run.exit_code)`): 0, or 128 + the signal's number: 130 for
        Ctrl-C.
    """

    algorithm: Algorithm = dataclasses.field(repr=False)
    state: Any = dataclasses.field(repr=False)
    metrics: list[Row] = dataclasses.field(repr=False)
    run_dir: Path | None
    interrupted: bool
    exit_code: int

    def variables(self, which: Literal["best", "last"] = "best") -> ArrayTree:
        """Returns what `algorithm.policy.apply` takes.

        Args:
          which: "best": The best policy so far, or the last where nothing ranks them (learners without
            `evaluate_every`). "last": The last policy; the same where the algorithm keeps only one.

        Raises:
          ValueError: `which` is neither.
        """
        if which not in ("best", "last"):
            raise ValueError(f"which={which!r}: take 'best' or 'last'.")
        last = self.algorithm.last_variables if which == "last" else None
        return (last or self.algorithm.variables)(self.state)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draws the learning curve; see `volvox.report.learning_curve`.

        Args:
          path: Where to write the PNG; by default `learning_curve.png` in the run directory, if there is one.
        """
        if path is None and self.run_dir is not None:
            path = self.run_dir / PLOT
        return plots.learning_curve(self.metrics, path, title=self.algorithm.env.spec.name)

    def watch(self, path: str | os.PathLike[str] | None = None, *, seed: int = 0, max_steps: int | None = None) -> Path:
        """Records the policy playing one episode, greedily; a notebook shows it.

        Args:
          path: Where to write the MP4; by default `episode.mp4` in the run directory.
          seed: The environment's seed.
          max_steps: Steps after which the episode is cut; by default the environment's limit.

        Returns:
          The video's path. Its return and length are printed.

        Raises:
          ValueError: Neither a path nor a run directory, or observations that are no images.
        """
        if path is None:
            if self.run_dir is None:
                raise ValueError("this run has no run directory: say where to write the video: watch('episode.mp4')")
            path = self.run_dir / "episode.mp4"
        recorded = video.record_video(
            self.algorithm.env, self.algorithm.policy, self.variables(), path, seed=seed, max_steps=max_steps
        )
        print(f"{recorded.path}: return {recorded.episode_return:g} in {recorded.length} steps")
        video.show(recorded.path)
        return recorded.path


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
    max_frames: int | None = None,
) -> Run:
    """Runs an algorithm, and what it did up to now, to a number of steps.

        run = vx.train(algorithm, seed=0, steps=10, run_dir="runs/frostbite")
        run = vx.train(algorithm, seed=0, steps=20, run_dir="runs/frostbite", resume=True)

    SIGINT (Ctrl-C, a notebook's interrupt) and SIGTERM end it within about a second: the step in progress is
    abandoned, the last completed one is saved, and the run is returned as `interrupted`. A second signal raises
    `KeyboardInterrupt` at once. Outside the main thread, signals are left alone.

    Args:
      algorithm: What to run. It is not closed. Its `config` must hold every setting that shapes the results, the
        environment's and the network's included: it is what `resume` compares.
      seed: Fixes the algorithm's random numbers: an integer, or a key of `jax.random`.
      steps: Steps (generations or iterations) in all, those before a resume included.
      run_dir: Where to keep the run; None keeps nothing on disk.
      resume: Go on from the newest whole checkpoint in `run_dir`; where there is none yet, begin there.
      checkpoint_every: Steps between checkpoints; the last step done is always saved.
      keep_checkpoints: How many of the newest checkpoints stay.
      progress: Show a bar (terminal, notebook) or print one line a step (elsewhere) on the standard error stream.
      tensorboard: Also write TensorBoard event files into `run_dir/tensorboard`.
      log: Also write what `algorithm.log` gives after each step into `run_dir/log`, for `volvox.report.cloud` and
        `descent`; with evolution, some 20 bytes a member, and its behaviour.
      stop_after: Seconds of this call after which no further step begins; None never stops early.
      max_frames: Emulator frames of the whole run, as its metric `frames` counts them, after which no further step
        begins; None sets no limit. The last step may exceed it.

    Returns:
      The run. Rows hold the algorithm's metrics, the step by its name (`algorithm.step_name`, counted from 1),
      `seconds` (wall-clock time of all completed steps up to this one, over resumes, their checkpoints included) and
      `step_seconds`.

    Raises:
      FileExistsError: `run_dir` holds a run and `resume` is False.
      ValueError: An argument is out of its range; or, with `resume`, settings differ from those saved (all are
        named), or the run directory lacks a file it must have.
      BlockingIOError: Another process is writing to `run_dir`.
      volvox.checkpoint.DamagedCheckpointError: Every checkpoint is damaged.
      FloatingPointError: The algorithm's numbers are no longer finite; a note says where the last good checkpoint is.
    """
    _checks.integer("steps", steps, low=1)
    _checks.integer("checkpoint_every", checkpoint_every, low=1)
    _checks.integer("keep_checkpoints", keep_checkpoints, low=1)
    if stop_after is not None:
        _checks.number("stop_after", stop_after, above=0)
    if max_frames is not None:
        _checks.integer("max_frames", max_frames, low=1)
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
        while record.done < steps and not monitor.signal and not record.has_frames(max_frames):
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
      signal: The number of the first signal that asked to stop, or 0.
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
