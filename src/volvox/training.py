"""The outer loop of every algorithm: steps, metrics, checkpoints, resuming and interrupts.

A run directory holds

    config.json          the settings the run was started with, its key, and the versions of what it ran on
    metrics.jsonl        one row a step
    checkpoints/         the newest states
    elite.json           the lineage of the best individual of the newest state, if the algorithm keeps lineages
    fingerprint.json     what the best policy of the newest state answers to fixed observations
    .lock                held by the process that trains here
    learning_curve.png   drawn anew at the end, and about once a minute
    tensorboard/         event files, unless `loggers` says otherwise
    log/                 with `log`, arrays of each step

A row is on disk before the checkpoint that contains its step, so after a kill at any moment every step of a restored
state has its row, and rows of later steps are dropped: no row is there twice, and none is missing.
"""

import dataclasses
import math
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax

from volvox import _checks
from volvox._arguments import check_algorithm, is_true, said, state_and_metrics
from volvox._config import PLOT, REPORT, VIDEO, check_fingerprint, read_config, saved_key
from volvox._monitor import Monitor
from volvox._parts import what_load_needs
from volvox._programs import keep_programs
from volvox._record import Record, check_unused, run_path
from volvox.rollout.actor import Actor
from volvox.report import html, plots, video
from volvox.report.metrics import atari_scores
from volvox.report.rows import Row
from volvox.rollout import scoring
from volvox.rollout.scoring import Protocol, Score
from volvox.runs.export import export as export_policy
from volvox.runs.loggers import Logger, OpenLogger
from volvox.runs.progress import Progress
from volvox.types import Algorithm, Array, ArrayTree, Interrupted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Run", "check_unused", "read_config", "run_path", "train"]


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
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
      interrupted: A signal (Ctrl-C, SIGTERM) ended the run early; None of a run that was loaded, where it is not known.
      exit_code: What a script should exit with (`sys.exit(run.exit_code)`): 0, or 128 + the signal's number: 130 for
        Ctrl-C.
      elite: Variables of the elite, if the run was loaded from `elite.json` alone (`state` is None); else None.
    """

    algorithm: Algorithm
    state: Any
    metrics: list[Row]
    run_dir: Path | None
    interrupted: bool | None
    exit_code: int
    elite: ArrayTree | None = None

    def __repr__(self) -> str:
        done = f"{self.algorithm.step_name}s={len(self.metrics)}"
        directory = "" if self.run_dir is None else f", run_dir={str(self.run_dir)!r}"
        interrupted = "" if self.interrupted is None else f", interrupted={self.interrupted}"
        return f"Run({self.algorithm.env.spec.name!r}, {done}{directory}{interrupted})"

    def variables(self, which: Literal["best", "last"] = "best") -> ArrayTree:
        """Returns what `algorithm.policy.apply` takes.

        Args:
          which: "best": The best policy so far, or the last where nothing ranks them (learners without
            `evaluate_every`). "last": The last policy; the same where the algorithm keeps only one.

        Raises:
          ValueError: `which` is neither, or the run was loaded from a directory without checkpoint and elite.
        """
        if which not in ("best", "last"):
            raise ValueError(f"which={which!r}: take 'best' or 'last'.")
        if self.state is None:
            if self.elite is None:
                raise ValueError(f"{self.run_dir} holds no checkpoint and no elite.json, so there is no policy to play")
            return self.elite
        last = self.algorithm.last_variables if which == "last" else None
        return (last or self.algorithm.variables)(self.state)

    def evaluate(
        self,
        num_episodes: int | None = None,
        *,
        which: Literal["best", "last"] = "best",
        protocol: Protocol | None = None,
        sampled: bool = False,
        seed: int = scoring.UNUSED_SEED,
    ) -> Score:
        """Scores the policy on whole episodes; see `volvox.play`.

        Args:
          num_episodes: Their number; by default 100, or with "exact" as many as there are no-op starts.
          which: The best policy so far, or the last; see `variables`.
          protocol: "sticky", "exact" or "fresh"; see `volvox.play`.
          sampled: Draw actions, instead of taking the likeliest.
          seed: Of environments and actions; the default is none that training is likely to use.

        Raises:
          ValueError: There is no policy, or `volvox.play` refuses an argument.
        """
        env, policy, options = self.algorithm.env, self.algorithm.policy, {"sampled": sampled, "seed": seed}
        variables = self.variables(which)
        return scoring.play(env, policy, variables, protocol=protocol, num_episodes=num_episodes, **options)

    def actor(self, which: Literal["best", "last"] = "best") -> Actor:
        """The policy as a function from observations to actions, NumPy arrays both; see `volvox.Actor`."""
        return Actor(self.algorithm.policy, self.variables(which), self.algorithm.env.spec)

    def resume(self, *, steps: int | None = None, **options: Any) -> "Run":
        """Goes on with the run in its directory.

        Args:
          steps: Steps in all, those done included.
          **options: Further arguments of `volvox.train`, such as `stop_after`.

        Returns:
          The run, continued. This one stays as it is.

        Raises:
          ValueError: There is no run directory, or `volvox.train` refuses.
        """
        key = saved_key(read_config(self._directory("resume")))
        return train(self.algorithm, seed=key, steps=steps, run_dir=self.run_dir, resume=True, **options)

    def export(self, path: str | os.PathLike[str], *, which: Literal["best", "last"] = "best") -> Path:
        """Writes the policy to one file, `.stablehlo` or `.onnx`; see `volvox.exporting.export`."""
        algorithm, variables = self.algorithm, self.variables(which)
        return export_policy(path, algorithm.policy, variables, algorithm.env.spec, config=algorithm.config)

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Writes what the run did and how as one HTML file; see `volvox.report.html_report`.

        Args:
          path: Where to write; by default `report.html` in the run directory. The video of `watch` is in it, if there
            is one in the run directory.

        Raises:
          ValueError: There is no run directory.
        """
        directory = self._directory("report")
        video, config = directory / VIDEO, read_config(directory)
        shown = video if video.exists() else None
        path, env = directory / REPORT if path is None else path, self.algorithm.env
        random = atari_scores(env.config).get("random")
        return html.html_report(path, self.metrics, config, title=env.spec.name, video=shown, random=random)

    def command(self) -> str:
        """The command line that began the run, without `--resume`.

        Raises:
          ValueError: There is no run directory, or no command line is known: of notebooks, and of early versions.
        """
        command = read_config(self._directory("command")).get("provenance", {}).get("command")
        words = shlex.split(command) if isinstance(command, str) else []
        if not words or words[-1] == "-" or any("ipykernel" in word for word in words):
            raise ValueError(f"{self.run_dir} keeps no command line: it began in a notebook, or in an early version")
        return shlex.join(word for word in words if word != "--resume")

    def _directory(self, method: str) -> Path:
        if self.run_dir is None:
            raise ValueError(f"{method}: this run has no run directory; give train one: run_dir='runs/a'")
        return self.run_dir

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws the learning curve; see `volvox.report.learning_curve`.

        Args:
          path: Where to write the PNG; by default `learning_curve.png` in the run directory, if there is one.
        """
        if path is None and self.run_dir is not None:
            path = self.run_dir / PLOT
        env = self.algorithm.env
        return plots.learning_curve(self.metrics, path, title=env.spec.name, random=atari_scores(env.config).get("random"))

    def watch(
        self, path: str | os.PathLike[str] | None = None, *, seed: int = 0, max_episode_steps: int | None = None
    ) -> Path:
        """Records the policy playing one episode, greedily; a notebook shows it.

        Args:
          path: Where to write the MP4; by default `episode.mp4` in the run directory.
          seed: The environment's seed.
          max_episode_steps: Timesteps after which the episode is cut; by default the environment's limit.

        Returns:
          The video's path. Its return and length are printed.

        Raises:
          ValueError: Neither a path nor a run directory, or observations that are no images.
        """
        if path is None:
            if self.run_dir is None:
                raise ValueError("this run has no run directory: say where to write the video: watch('episode.mp4')")
            path = self.run_dir / VIDEO
        given = (self.algorithm.env, self.algorithm.policy, self.variables(), path)
        recorded = video.record_video(*given, seed=seed, max_episode_steps=max_episode_steps)
        print(f"{recorded.path}: return {recorded.episode_return:g} in {recorded.length} timesteps")
        video.show(recorded.path)
        return recorded.path


def train(
    algorithm: Algorithm,
    *,
    seed: int | Array = 0,
    steps: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int = 1,
    keep_checkpoints: int = 3,
    progress: bool = True,
    loggers: Sequence[Logger | OpenLogger] | None = None,
    on_step: Callable[[Run], object] | None = None,
    log: bool = False,
    stop_after: float | None = None,
    max_frames: float | None = None,
    compilation_cache: bool = True,
    about: Mapping[str, Any] | None = None,
) -> Run:
    """Trains until the run has `steps` steps, those of earlier calls included.

        run = vx.train(algorithm, seed=0, steps=10, run_dir="runs/frostbite")
        run = vx.train(algorithm, seed=0, steps=20, run_dir="runs/frostbite", resume=True)

    SIGINT (Ctrl-C, a notebook's interrupt) and SIGTERM end it within about a second, or as soon as what is being
    compiled is compiled, which may take some twenty seconds: the step in progress is abandoned, the last completed one
    is saved, and the run is returned as `interrupted`. A second signal, half a second later or more, raises
    `KeyboardInterrupt` as soon as Python runs again. Outside the main thread, signals are left alone.

    Where several processes learn together (`volvox.distributed.initialize`), each calls this with the same arguments.
    The first alone writes, logs and shows progress; the others read `run_dir` when a run is resumed, and their `Run`
    has none. All stop together, whichever of them a signal, `on_step` or `stop_after` ends. A resumed run may have
    another number of processes.

    Args:
      algorithm: What to run. It is not closed. Its `config` must hold every setting that shapes the results, the
        environment's and the network's included: it is what `resume` compares.
      seed: Fixes the algorithm's random numbers: an integer, or a key of `jax.random`.
      steps: Steps (generations or iterations) in all, those before a resume included. None: only `stop_after` or
        `max_frames` ends the run.
      run_dir: Where to keep the run; None keeps nothing on disk.
      resume: Go on from the newest whole checkpoint in `run_dir`; where there is none yet, begin there.
      checkpoint_every: Steps between checkpoints, which take some tenths of a second; the last step is always saved.
      keep_checkpoints: How many of the newest checkpoints stay.
      progress: Show a bar (terminal, notebook) or print one line a step (elsewhere) on the standard error stream.
      loggers: Where rows go besides `metrics.jsonl`, such as `(vx.loggers.csv(), vx.loggers.wandb("project"))`; see
        `volvox.loggers`. None: `(vx.loggers.tensorboard(),)` if there is a `run_dir`. After an error in one of them the
        run is saved, and a note of the error names the logger.
      on_step: Called after each step with the run so far, for example
        `lambda run: run.metrics[-1]["training_mean"] > 18`. The run ends, saved, when it returns True; any other result
        means nothing. After an error in it, the run is saved.
      log: Also write what `algorithm.log` gives after each step into `run_dir/log`, for `volvox.report.cloud` and
        `descent`; with evolution, some 20 bytes a member, and its behaviour.
      stop_after: Seconds of this call after which no further step begins; None never stops early.
      max_frames: Emulator frames of the whole run, as its metric `frames` counts them, after which no further step
        begins; None sets no limit. The last step may exceed it. A float such as 1e7 is accepted.
      compilation_cache: Keep what this process compiles from now on in the user's cache folder, at most 1 GiB, for the
        next start; loops over envpool are always compiled anew, since they hold their pools' addresses. The variable
        `VOLVOX_COMPILATION_CACHE` names another folder, or is "off". A cache that JAX was given is left alone.
      about: What else `config.json` says of the run, JSON values; it is not compared when the run is resumed.

    Returns:
      The run. Rows hold the algorithm's metrics, the step by its name (`algorithm.step_name`, counted from 1),
      `seconds` (wall-clock time of all completed steps up to this one, over resumes, their checkpoints included) and
      `step_seconds`.

    Raises:
      FileExistsError: `run_dir` holds a run of at least one step, and `resume` is False.
      ValueError: An argument is out of its range; none of `steps`, `stop_after` and `max_frames` is given; with
        `max_frames`, the algorithm counts no frames; `run_dir` cannot be written, or its disk is too small; or, with
        `resume`, settings differ from those saved (all are named), or the run directory lacks a file it must have.
      BlockingIOError: Another process is writing to `run_dir`.
      OSError: `run_dir` cannot be written, or in the course of the run it was moved, removed or replaced: the run stops
        and writes nothing more, and what was saved before is whole.
      RuntimeError: Another thread is using the algorithm.
      volvox.checkpoint.DamagedCheckpointError: Every checkpoint is damaged.
      FloatingPointError: The algorithm's numbers are no longer finite.
      Exception: Whatever else an environment or a step raises. The state before the step is saved; a note says where.
    """
    check_algorithm("train", algorithm)
    steps, max_frames = _checks.count("steps", steps), _checks.count("max_frames", max_frames)
    _checks.integer("checkpoint_every", checkpoint_every, low=1, high=None)
    _checks.integer("keep_checkpoints", keep_checkpoints, low=1, high=None)
    if stop_after is not None:
        _checks.number("stop_after", stop_after, above=0)
    if steps is None and stop_after is None and max_frames is None:
        raise ValueError("nothing would end this run: give steps, stop_after (seconds) or max_frames")
    if on_step is not None and not callable(on_step):
        raise TypeError(f"on_step takes a function of the run, such as lambda run: None; got {said(on_step)}")
    if (resume or log) and run_dir is None:
        raise ValueError(f"{'resume' if resume else 'log'}=True needs a run_dir")
    if compilation_cache:
        keep_programs()
    if algorithm.largest is None and jax.process_count() > 1:
        raise ValueError(
            f"this algorithm runs in one process, and here are {jax.process_count()}: A3C, PPO and TD3 learn in "
            "several, and populations are divided by vx.evolve(..., workers=vx.distributed.ray())"
        )
    key, name = _checks.typed_key(seed), algorithm.step_name
    if name in ("", "seconds", "step_seconds"):
        raise ValueError(f"algorithm.step_name cannot be {name!r}")
    record = Record(algorithm, run_dir, keep=keep_checkpoints, log=log)
    with ExitStack() as stack:
        stack.enter_context(_checks.one_thread(algorithm.lock))
        saved = record.open(stack, key, resume=resume, about=about)
        budget = {"stop_after": stop_after, "max_frames": max_frames, "frame_skip": algorithm.env.spec.frame_skip}
        shown = progress and record.writes
        display = Progress(steps, done=record.done, frames=record.frames, step_name=name, enabled=shown, **budget)
        stack.callback(display.close)
        if resume:
            begins = f"going on after {name} {record.done}" if saved else "no run there yet, begins now"
            if saved and steps is not None and record.done >= steps:
                fewer = f" and steps={steps} asks for fewer" if record.done > steps else ""
                begins = f"nothing to do, because {name} {record.done} is done{fewer}"
            display.note(f"{run_dir}: {begins}")
        if saved is None and record.path and (needed := what_load_needs(record.config["algorithm"])):
            display.note(f"{run_dir}: in another process vx.load will need {needed}")
        monitor = Monitor(display, stack, algorithm.largest)
        state = algorithm.init(key) if saved is None else saved.state
        if saved is not None and record.path is not None and record.done:
            check_fingerprint(record.path, record.done, algorithm, algorithm.variables(state), saved.outputs)
        record.begin(stack, state, loggers=loggers)
        # Another process may end whenever this one agrees with it, between steps too.
        stack.push(lambda kind, error, trace: record.save(state) if kind is ConnectionError else None)
        began, dropped = time.monotonic(), ""
        seconds_before = record.rows[-1]["seconds"] if record.rows else 0.0
        last, of = (math.inf, "") if steps is None else (steps, f"/{steps}")
        while record.done < last and not monitor.stops() and not record.has_frames(max_frames):
            step_began = time.monotonic()
            try:
                made = state_and_metrics(algorithm.step(state, monitor=monitor))
            except Interrupted as error:
                made, dropped = None, f"; {error}" if str(error) else ""
            except Exception as error:
                record.save(state)  # a step leaves the state that it was given as it is
                saved_in = "nothing was saved" if run_dir is None else f"its checkpoint is in {run_dir}"
                error.add_note(f"The last good state is that of {name} {record.done}; {saved_in}.")
                if isinstance(error, ValueError):
                    error.add_note(f"This was raised inside {name} {record.done + 1}.")
                raise
            if monitor.abandons(made is None) or made is None:
                break
            (after, figures), now = made, time.monotonic()
            with record.saving(state):  # the state before, if the row is refused
                record.add(after, figures, seconds=seconds_before + now - began, step_seconds=now - step_began)
            state = after
            with record.saving(state):
                record.has_frames(max_frames)
                record.tell_loggers()
            if record.done % checkpoint_every == 0:
                record.save(state)
            display.step(record.done, record.rows[-1])
            with record.saving(state):
                record.plot_now_and_then()
                so_far = Run(algorithm, state, list(record.rows), record.path, False, 0)
                ended = on_step is not None and is_true(on_step(so_far))
                if monitor.largest(ended):
                    display.note(f"stopped after {name} {record.done}{of}: on_step returned True")
                    break
            if stop_after is not None and monitor.largest(time.monotonic() - began) >= stop_after:
                if record.done < last:
                    display.note(f"stopped after {name} {record.done}{of}: {round(stop_after, 1):g} seconds are over")
                break
        else:
            if record.done < last and not monitor.signal:
                frames = f"{record.rows[-1]['frames']:,} frames have been played"
                display.note(f"stopped after {name} {record.done}{of}: {frames}")
        record.save(state)
        if monitor.signal:
            again = f"; train(..., run_dir={str(record.path)!r}, resume=True) goes on (scripts: --resume)"
            display.note(f"interrupted after {name} {record.done}{of}{dropped}{again if record.path else ''}")
        exit_code = 128 + monitor.signal if monitor.signal else 0
        record.plot()
        return Run(algorithm, state, record.rows, record.path, bool(monitor.signal), exit_code)
