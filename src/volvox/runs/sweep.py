"""Search for good settings, in an Optuna study whose trials are runs.

    def make(settings):
        return vx.learn(vx.PPO(**settings), network, env, num_learners=4, evaluate_every=10_000)

    space = {"learning_rate": vx.space.log(1e-4, 1e-2), "entropy_coefficient": vx.space.log(1e-4, 1e-1)}
    sweep = vx.sweep(make, space, num_trials=12, max_timesteps=50_000, run_dir="runs/sweep")
    print(sweep)

The directory of a sweep holds:

    study.db                the study, for `optuna-dashboard sqlite:///runs/sweep/study.db`
    trials/0007             the run of trial 7, or of a group of trials that begins with trial 7
    trials/0007-restarted   the same without the trials that diverged in `trials/0007`, which has a file `diverged`
    again/0007              the settings of trial 7, trained with another seed (`Sweep.again`)
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from volvox._checks import check_type, count, import_extra, integer
from volvox.data.metrics import EACH
from volvox.distributed import RaySettings
from volvox.learners.space import Choice, Range, check_space
from volvox.report import plots
from volvox.report.comparison import markdown
from volvox.report.files import DIVERGED, METRICS, Row, read_metrics, write_file
from volvox.report.metrics import format_number, latest
from volvox.runs.config import differences, from_json, to_json
from volvox.runs.directory import locked
from volvox.runs.run import Run, load
from volvox.runs.train import run_path, train
from volvox.types import Algorithm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BUDGETS = ("steps", "max_frames", "max_timesteps")
_FRESH_SEED = 2**30
"""Added to the seeds of trials whose settings are trained again."""


def sweep(
    make: Callable[[dict[str, Any]], Algorithm],
    space: Mapping[str, Range | Choice] | Callable[[Any], dict[str, Any]],
    *,
    num_trials: int,
    run_dir: str | os.PathLike[str],
    metric: str = "evaluation_mean",
    num_learners: int = 1,
    pruner: Any = "halving",
    sampler: Any = None,
    storage: str | None = None,
    workers: RaySettings | None = None,
    seed: int = 0,
    resume: bool = False,
    progress: bool = True,
    **budget: Any,
) -> "Sweep":
    """Searches for the settings with the highest metric; needs Optuna (the extra `sweep`).

        sweep = vx.sweep(make, space, num_trials=24, max_timesteps=100_000, run_dir="runs/sweep")
        sweep = vx.sweep(make, space, num_trials=48, max_timesteps=100_000, run_dir="runs/sweep", resume=True)

    The score of a trial is the latest value of the metric in the rows of its run, the mean if it has several learners.
    Ctrl-C saves the trial in progress, and `resume=True` continues it, also after a kill. A trial whose numbers are no
    longer finite is recorded as failed, and the others of its program begin again without it. Another error ends the
    sweep; with `resume=True` the trial goes on.

    Args:
      make: Settings of a trial -> algorithm. Trials with equal shapes share their compiled program if the environment
        is pure JAX and is made once, outside of `make`.
      space: Ranges of the settings by name (`vx.space`), or a function that draws settings from an `optuna.Trial`.
        Drawn values must have a JSON form (`volvox.runs.config`); lists become tuples.
      num_trials: Trials of the whole study, including those of earlier calls and of other machines. Machines that draw
        at the same moment may exceed it. If a machine dies, its trials remain "running" until it resumes.
      run_dir: Directory of the sweep.
      metric: Metric of the rows; higher is better.
      num_learners: Number of trials in one program, on one device. `vx.learn` must make them, and their settings may
        differ in the numbers that the class attribute `traced` names. If each trial has n learners, the program has n
        times as many.
      pruner: "halving" stops bad trials by Optuna's asynchronous successive halving. Otherwise a pruner of Optuna, or
        None. The first value of the metric stops no trial: the first generation of a genetic algorithm is random.
        Several trials of one program and resumed trials are not pruned.
      sampler: Sampler of Optuna. None: TPE.
      storage: URL of an Optuna storage. Machines with the same URL and the same name of the directory share the study.
        None: `study.db` in the directory.
      workers: Workers that run the trials, such as `vx.distributed.ray(num_actors="gpus")`, which all must see the
        directory and the storage. None: this process.
      seed: Seed of the sampler, except with `storage`. A run has the seed `seed + n` if trial n is its first.
      resume: Continue the sweep in the directory, if there is one.
      progress: Print a line for each trial on the standard error stream, and the progress of several in one program.
      **budget: Budget of each trial: `steps`, `max_frames` or `max_timesteps` of `volvox.train`.

    Returns:
      `Sweep`. Its `exit_code` is not 0 if it was interrupted.

    Raises:
      ImportError: Optuna is not installed.
      FileExistsError: The study exists, and `resume` is False.
      BlockingIOError: Another process sweeps in the directory.
      TypeError: `make` does not know a setting, or the space or a budget has another type or name.
      ValueError: Rows do not have the metric, `pbt` explores a setting of the space, trials of one program differ in
        more than numbers or do not fit into the memory, the storage cannot be opened, or, with `resume`, metric, budget
        or seed differ.
    """
    optuna = _optuna()
    integer("num_trials", num_trials, low=1)
    integer("num_learners", num_learners, low=1)
    if unknown := sorted(budget.keys() - set(_BUDGETS)):
        raise TypeError(f"{unknown[0]} is not a budget of a trial; give {', '.join(_BUDGETS)}")
    budget = {name: count(name, x) for name, x in budget.items() if x is not None}
    if not budget:
        raise ValueError(f"nothing would end a trial; give {', '.join(_BUDGETS)}")
    if not callable(space):
        check_space("space", space, (Range, Choice))
    if workers is not None:
        check_type("workers", workers, RaySettings, "vx.distributed.ray(...)")
    if pruner not in ("halving", None, False):
        check_type("pruner", pruner, optuna.pruners.BasePruner, 'optuna.pruners, or be "halving" or None')
    if sampler is not None:
        check_type("sampler", sampler, optuna.samplers.BaseSampler, "optuna.samplers")

    draw = partial(_draw, space)
    _check_trials(make, draw, space, metric, budget, min(num_learners, num_trials), seed)  # before anything is written
    path = run_path(run_dir)
    path.mkdir(parents=True, exist_ok=True)
    with locked(path):
        study = _open(path, storage, optuna.create_study, direction="maximize", load_if_exists=resume)
        about = to_json({"metric": metric, "budget": budget, "seed": seed})
        if found := differences(study.user_attrs.get("sweep", about), about, "sweep"):
            raise ValueError("\n  ".join([f"{path} holds a sweep with other settings:", *found]))
        study.set_user_attr("sweep", about)
        sampler_seed = seed + len(study.trials) if storage is None else None  # machines must draw different settings
        study.sampler = sampler or optuna.samplers.TPESampler(seed=sampler_seed)
        none = optuna.pruners.NopPruner()
        study.pruner = optuna.pruners.SuccessiveHalvingPruner() if pruner == "halving" else pruner or none
        trials = path / "trials"
        jobs = _unfinished(study, trials)

        def next_job() -> _Job | None:
            return jobs.pop(0) if jobs else _ask(study, draw, trials, num_trials, num_learners)

        play = partial(_play, make, metric, budget, trials, seed, progress and workers is None)
        local = ((job, play(job)) for job in iter(next_job, None))
        outcomes = local if workers is None else workers.run(play, next_job)
        exit_code = 128 + signal.SIGINT
        with suppress(KeyboardInterrupt), closing(outcomes):  # between two trials, or while workers are busy
            codes = (_record(study, jobs, job, outcome, progress) for job, outcome in outcomes)
            exit_code = next(filter(None, codes), 0)
        if progress and exit_code:
            print(f"interrupted; vx.sweep(..., run_dir={str(run_dir)!r}, resume=True) continues", file=sys.stderr)
    return Sweep(path, storage=storage, exit_code=exit_code)


def _check_trials(
    make: Callable[..., Algorithm], draw: Callable[..., Any], space: Any, metric: str, budget: Any, num: int, seed: int
) -> None:
    """Raises ValueError or TypeError if a program of `num` trials cannot be made."""
    optuna = _optuna()
    rehearsal = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    settings = [draw(rehearsal.ask()) if callable(space) else _ends(space, i) for i in range(num)]
    made = [make(one) for one in settings]
    for one in made:
        check_type("the result of make", one, Algorithm, "vx.learn or vx.evolve")
    algorithm = _together(made)
    evolves, every = algorithm.config.get("type") == "volvox.evolve", algorithm.config.get("evaluate_every", 0)
    if metric.startswith("evaluation_") and (evolves or every is None or every > budget.get("max_timesteps", every)):
        other = "validation_mean" if evolves else "training_mean"
        limit = f" of at most max_timesteps={budget['max_timesteps']}, not {every}" if every else ""
        raise ValueError(f"{metric=} needs vx.learn(..., evaluate_every=...){limit}; or give metric={other!r}")
    pbt = algorithm.config.get("pbt")
    if pbt is not None and (both := pbt.explore.keys() & settings[0].keys()):
        raise ValueError(f"{sorted(both)[0]} is in the space and in explore of pbt, which replaces it; leave one out")


def _draw(space: Any, trial: Any) -> dict[str, Any]:
    """Returns settings of an `optuna.Trial`, as they are read from the study."""
    drawn: Any = space(trial) if callable(space) else {name: _suggest(trial, name, x) for name, x in space.items()}
    return {name: from_json(to_json(x)) for name, x in drawn.items()}


class _Job(NamedTuple):
    """Trials of one run: its name, the settings of each by number, and the `optuna.Trial` if it may be pruned."""

    run: str
    settings: dict[int, dict[str, Any]]
    trial: Any = None


_Outcome = tuple[list[tuple[str, float | None]], int]
"""State and score of each trial of a run, "WAITING" if it begins again; and the exit code if it was interrupted."""


def _unfinished(study: Any, folder: Path) -> list[_Job]:
    """Returns the jobs that were interrupted here."""
    return [
        _Job(name, {trial.number: _drawn(trial) for trial in trials})
        for name, trials in _runs(study).items()
        if any(trial.state.name == "RUNNING" for trial in trials) and (folder / name).is_dir()
    ]


def _ask(study: Any, draw: Callable[..., Any], folder: Path, num_trials: int, num_learners: int) -> _Job | None:
    """Returns the next job of the study; None if there are `num_trials`."""
    begun = sum("run" in trial.user_attrs for trial in study.trials)  # others were lost while they were drawn
    trials = [study.ask() for _ in range(min(num_learners, num_trials - begun))]
    if not trials:
        return None
    settings = {trial.number: draw(trial) for trial in trials}
    job = _Job(f"{trials[0].number:04d}", settings, None if num_learners > 1 else trials[0])
    (folder / job.run).mkdir(parents=True, exist_ok=True)
    for trial in trials:
        trial.set_user_attr("settings", to_json(job.settings[trial.number]))
        trial.set_user_attr("run", job.run)
    return job


def _record(study: Any, jobs: list[_Job], job: _Job, outcome: _Outcome, progress: bool) -> int:
    """Records the results of a job, and adds a job of the trials that begin again; returns its exit code."""
    (results, exit_code), again = outcome, {}
    for (number, settings), (state, score) in zip(job.settings.items(), results, strict=False):
        if state == "WAITING":
            again[number] = settings
            continue
        value = score if state == "COMPLETE" else None
        study.tell(number, value, _optuna().trial.TrialState[state], skip_if_finished=True)
        if progress:
            text = ", ".join(f"{name} {_text(x)}" for name, x in settings.items())
            print(f"trial {number}: {text}: {state.lower()} {_text(score)}", file=sys.stderr)
    if again:
        jobs.append(_Job(job.run, again))
    return exit_code


def _play(
    make: Callable[..., Algorithm],
    metric: str,
    budget: dict[str, Any],
    trials: Path,
    seed: int,
    progress: bool,
    job: _Job,
) -> _Outcome:
    """Trains the trials of a job, with progress if there are several. It is picklable, for Ray."""
    algorithm = _together([make(dict(settings)) for settings in job.settings.values()])
    if budget.get("max_frames") is not None:  # which counts the frames of all learners
        budget = budget | {"max_frames": budget["max_frames"] * len(job.settings)}
    each, folder, pruned = max(len(algorithm.learners), 1) // len(job.settings), _folder(trials / job.run), False

    def on_step(run: Run) -> bool:
        nonlocal pruned
        if job.trial is not None and (value := run.metrics[-1].get(metric)) is not None:
            job.trial.report(value, int(run.metrics[-1].get("timesteps", len(run.metrics))))
            first = all(row.get(metric) is None for row in run.metrics[:-1])
            pruned = not first and job.trial.should_prune()
        return pruned

    try:
        shown = {"on_step": on_step, "progress": progress and len(job.settings) > 1}
        run = _train(algorithm, seed + min(job.settings), folder, budget, **shown)
    except FloatingPointError as error:
        write_file(folder / DIVERGED, f"{error}\n")
        diverged = {i // each for i in getattr(error, "learners", ()) or range(each * len(job.settings))}
        return [("FAIL" if i in diverged else "WAITING", None) for i in range(len(job.settings))], 0
    if run.interrupted:
        return [], run.exit_code
    scores = np.reshape(_scores(run.metrics, metric, each * len(job.settings)), (-1, each)).mean(axis=1)
    return [("PRUNED" if pruned else "COMPLETE", score) for score in scores.tolist()], 0


def _train(algorithm: Algorithm, seed: int, folder: Path, budget: dict[str, Any], **options: Any) -> Run:
    try:  # checkpoints each minute and at the end; one for each step would take most of the time of short trials
        options = {"checkpoint_every": 2**30, "progress": False, "loggers": ()} | options
        return train(algorithm, seed=seed, run_dir=folder, resume=True, **options, **budget)
    finally:
        algorithm.close()


def _scores(rows: Sequence[Row], metric: str, num_learners: int) -> list[float]:
    """Returns the latest value of a metric, one for each learner; raises ValueError if rows do not have it."""
    having = [row for row in rows if row.get(metric) is not None]
    found = having[-1].get(metric + EACH, [having[-1][metric]]) if having else []
    if len(found) != num_learners:
        has = ", ".join(latest(rows))
        raise ValueError(f"rows have no {metric!r} of each trial, but {has}; is evaluate_every beyond the budget?")
    return found


def _together(algorithms: Sequence[Algorithm]) -> Algorithm:
    """Returns one algorithm with the learners of all; raises ValueError if they cannot be one program."""
    if len(algorithms) == 1:
        return algorithms[0]
    if any(x.config["type"] != "volvox.learn" or x.config["pbt"] or x.env.axis.size > 1 for x in algorithms):
        raise ValueError("num_learners is for algorithms of vx.learn without pbt, on one device; leave it out")
    configs = [to_json({**x.config, "settings": (), "num_learners": len(_settings(x))}) for x in algorithms]
    for config in configs[1:]:
        if found := differences(configs[0], config, "trial"):
            raise ValueError("\n  ".join(["trials of one program differ:", *found]))
    remake: Any = algorithms[0].remake
    return remake([one for algorithm in algorithms for one in _settings(algorithm)], num_learners=1, devices=None)


def _settings(algorithm: Algorithm) -> list[Any]:
    """Returns the settings of each learner."""
    given = algorithm.config["settings"]
    return list(given) if isinstance(given, Sequence) else [given] * len(algorithm.learners)


class Sweep:
    """A sweep in a directory.

        sweep = vx.Sweep("runs/sweep")
        print(sweep)                             # a table of the trials, the best first
        sweep.plot("sweep.png")
        algorithm = make(sweep.trials[0]["settings"])

    Attributes:
      run_dir: Directory of the sweep.
      study: The `optuna.Study`.
      metric: Metric of the scores.
      exit_code: Exit code for a script: 0, or 128 plus the number of the signal that interrupted `vx.sweep`.
    """

    def __init__(self, run_dir: str | os.PathLike[str], *, storage: str | None = None, exit_code: int = 0):
        """Opens the study of `vx.sweep`; raises ValueError if there is none."""
        self.run_dir, self.exit_code = run_path(run_dir), exit_code
        if storage is None and not (self.run_dir / "study.db").exists():
            raise ValueError(f"{run_dir} holds no sweep: there is no study.db in it")
        self.study = _open(self.run_dir, storage, _optuna().load_study)
        self._about: dict[str, Any] = self.study.user_attrs["sweep"]
        self.metric: str = self._about["metric"]

    @property
    def trials(self) -> list[dict[str, Any]]:
        """One dict for each trial, the best first.

        `trial`, its number; `state`: "complete", "pruned", "fail" (diverged) or "running"; `settings`, as drawn from
        the space; `score`, None without one; `scores` of its learners; `run`, the directory of its run; and `learners`,
        their numbers in that run. The last three are missing if the run has no such rows here.
        """
        found: dict[int, dict[str, Any]] = {}
        for trial in (trial for trial in self.study.trials if "run" in trial.user_attrs):
            row = {"trial": trial.number, "state": trial.state.name.lower(), "settings": _drawn(trial)}
            found[trial.number] = row | {"score": trial.value}
        for name, trials in _runs(self.study).items():
            run = _folder(self.run_dir / "trials" / name)
            if rows := [row for row in read_metrics(run / METRICS) if row.get(self.metric) is not None]:
                each = np.reshape(rows[-1].get(self.metric + EACH, [rows[-1][self.metric]]), (len(trials), -1))
                for i, (trial, scores) in enumerate(zip(trials, each.tolist(), strict=True)):
                    learners = range(i * len(scores), (i + 1) * len(scores))
                    found[trial.number] |= {"scores": scores, "run": run, "learners": learners}
        rank = ("complete", "pruned", "running", "fail")
        return sorted(found.values(), key=lambda row: (rank.index(row["state"]), -(row["score"] or 0.0), row["trial"]))

    def importances(self) -> dict[str, float]:
        """Returns the share of each setting in the variance of good scores (PED-ANOVA, arXiv 2304.10255).

        It is empty with fewer than four scores.
        """
        optuna = _optuna()
        scored = sum(trial.state.name == "COMPLETE" for trial in self.study.trials)
        return optuna.importance.get_param_importances(self.study) if scored >= 4 else {}

    def __str__(self) -> str:
        """Returns tables in Markdown."""
        trials, importances = self.trials, self.importances()
        names = list(dict.fromkeys(name for trial in trials for name in trial["settings"]))
        table = [["trial", *names, self.metric.replace("_", " "), "learners", "worst", "best", "note"]]
        for trial in trials:
            scores = trial.get("scores", [])
            note = {"complete": "", "fail": "diverged"}.get(trial["state"], trial["state"])
            several = [_text(min(scores)), _text(max(scores))] if len(scores) > 1 else ["", ""]
            settings = [_text(trial["settings"].get(name)) for name in names]
            table.append(
                [str(trial["trial"]), *settings, _text(trial["score"]), str(len(scores) or ""), *several, note]
            )
        shares = [["setting", "importance"], *([name, f"{share:.2f}"] for name, share in importances.items())]
        return "\n\n".join(markdown(rows) for rows in (table, shares) if len(rows) > 1)

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws the scores against each setting, and all settings of each trial as a line.

        Args:
          path: PNG file to write; None writes none.

        Raises:
          ValueError: No trial has a score.
        """
        scored = [trial for trial in self.trials if trial["state"] == "complete"]
        if not scored:
            raise ValueError(f"no trial of {self.run_dir} is complete")
        settings, scores = [trial["settings"] for trial in scored], [trial["score"] for trial in scored]
        return plots.settings_and_scores(settings, scores, path, metric=self.metric)

    def again(self, num_trials: int = 3, *, custom: Iterable[Any] = ()) -> list[dict[str, Any]]:
        """Trains the best settings again with other seeds: their scores in the sweep are too high, since they won.

        Args:
          num_trials: Number of trials. They are trained in turn, each as long as in the sweep.
          custom: The user's classes, functions and environments; see `volvox.load`.

        Returns:
          Their mappings (`trials`) with `score_again` and `scores_again`, which are None and [] if the run diverged.
          The runs are in `again/`, and a later call reads them; a diverged one has a file `diverged`.

        Raises:
          KeyboardInterrupt: A run was interrupted; a later call continues it.
        """
        best = [trial for trial in self.trials if trial["state"] == "complete" and "run" in trial][:num_trials]
        found = []
        for trial in best:
            algorithm = load(trial["run"], custom=custom).algorithm
            if len(algorithm.learners) > len(trial["learners"]):
                several, remake = _settings(algorithm), cast("Any", algorithm.remake)
                algorithm = remake([several[i] for i in trial["learners"]], num_learners=1)
            folder = self.run_dir / "again" / f"{trial['trial']:04d}"
            seed, scores = self._about["seed"] + _FRESH_SEED + trial["trial"], []
            if not (folder / DIVERGED).exists():
                try:
                    run = _train(algorithm, seed, folder, self._about["budget"])
                    if run.interrupted:
                        raise KeyboardInterrupt
                    scores = _scores(run.metrics, self.metric, len(trial["scores"]))
                except FloatingPointError as error:
                    write_file(folder / DIVERGED, f"{error}\n")
            mean = float(np.mean(scores)) if scores else None
            found.append({**trial, "score_again": mean, "scores_again": scores})
        return found


def _runs(study: Any) -> dict[str, list[Any]]:
    """Maps the name of each run to its trials; leaves out trials that diverged."""
    found: dict[str, list[Any]] = {}
    for trial in study.trials:
        if "run" in trial.user_attrs and trial.state.name != "FAIL":
            found.setdefault(trial.user_attrs["run"], []).append(trial)
    return found


def _folder(folder: Path) -> Path:
    """Returns the directory of a run, which begins in another one after trials of it have diverged."""
    return _folder(folder.with_name(f"{folder.name}-restarted")) if (folder / DIVERGED).exists() else folder


def _drawn(trial: Any) -> dict[str, Any]:
    """Returns the settings of an `optuna.trial.FrozenTrial`, as `make` gets them."""
    return {name: from_json(x) for name, x in trial.user_attrs.get("settings", trial.params).items()}


def _ends(space: Mapping[str, Range | Choice], i: int) -> dict[str, Any]:
    """Returns the first value of each range if `i` is even, otherwise the last."""
    return {name: (x.options if isinstance(x, Choice) else (x.low, x.high))[-(i % 2)] for name, x in space.items()}


def _suggest(trial: Any, name: str, values: Range | Choice) -> Any:
    """Draws a setting from an `optuna.Trial`."""
    if isinstance(values, Choice):
        return trial.suggest_categorical(name, values.options)
    suggest = trial.suggest_int if values.whole else trial.suggest_float
    return suggest(name, values.low, values.high, log=values.log)


def _open(path: Path, storage: str | None, function: Callable[..., Any], again: bool = True, **options: Any) -> Any:
    """Creates or loads the study of a directory."""
    optuna = _optuna()
    from sqlalchemy.exc import SQLAlchemyError  # pyright: ignore[reportMissingImports]  # comes with Optuna
    from sqlalchemy.pool import NullPool  # pyright: ignore[reportMissingImports]  # no connection stays open

    try:
        own = partial(optuna.storages.RDBStorage, engine_kwargs={"poolclass": NullPool})
        return function(study_name=path.name, storage=storage or own(f"sqlite:///{path / 'study.db'}"), **options)
    except optuna.exceptions.DuplicatedStudyError as error:
        raise FileExistsError(f"{path} holds a sweep: pass resume=True (--resume), or give another run_dir") from error
    except (KeyError, ValueError, ImportError, optuna.exceptions.OptunaError, SQLAlchemyError) as error:
        if again and isinstance(error, SQLAlchemyError):  # another process may have been making the tables
            time.sleep(1.0)
            return _open(path, storage, function, again=False, **options)
        raise ValueError(f"storage={storage!r} has no study {path.name!r} or cannot be opened: {error}") from error


def _optuna() -> Any:
    optuna = import_extra("optuna", "sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would log each study to the standard error stream
    return optuna


def _text(value: Any) -> str:
    return "" if value is None else format_number(value) if type(value) in (int, float) else str(value)
