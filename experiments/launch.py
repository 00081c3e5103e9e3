"""Code that the scripts share: reading flags, training in a run directory, and tuning."""

import collections.abc
import contextlib
import dataclasses
import importlib
import json
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import optax
import tyro
from flags import Run, Sweep, ray_workers
from scores import keep_score

import volvox as vx
from volvox.report.files import CHECKPOINTS, CONFIG, DIVERGED, METRICS, numbers, read_metrics, write_file
from volvox.report.metrics import format_duration
from volvox.runs.checkpoint import steps as steps_of
from volvox.runs.config import to_json
from volvox.runs.directory import check_unused
from volvox.runs.train import run_path

Make = Callable[[Any], tuple[vx.Algorithm, int | None]]
"""Settings -> (algorithm, number of generations or iterations, or None). Raises ValueError for settings that
do not fit together. It is a function at the top level of its script, because `--tune` sends it to other processes."""
TUNED = "tuned.json"
"""File of a run directory with the settings that `--tune` found."""
_UNIONS = (typing.Union, types.UnionType)
_FUNCTIONS = (collections.abc.Callable, optax.GradientTransformation)
REGISTRY = tyro.constructors.ConstructorRegistry()


@REGISTRY.primitive_rule
def _functions(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Flags of fields that may be functions: a number, text such as linear:1,0.01,200000, or a path (optax.adam)."""
    parts = typing.get_args(info.type) if typing.get_origin(info.type) in _UNIONS else (info.type,)
    if not any(part in _FUNCTIONS or typing.get_origin(part) in _FUNCTIONS for part in parts):
        return None
    number = "NUMBER|SCHEDULE" if str in parts else "NUMBER|linear:START,END,COUNT"
    metavar = number if float in parts else "MODULE.FUNCTION"
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{None}}|{metavar}" if type(None) in parts else metavar,
        instance_from_str=partial(_parse, parts),
        is_instance=lambda value: True,
        str_from_instance=_shown,
    )


def _parse(parts: tuple[Any, ...], arguments: list[str]) -> Any:
    (text,) = arguments
    if text == "None" and type(None) in parts:
        return None
    if float in parts:
        if str not in parts and text.startswith("linear:"):
            return _linear(text)
        try:
            return float(text)
        except ValueError:
            if str not in parts:
                raise
            return text
    module, _, name = text.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{text!r} is not an import path such as optax.adam ({error})") from error


def _linear(text: str) -> optax.Schedule:
    with contextlib.suppress(ValueError):
        start, end, count = map(float, text.removeprefix("linear:").split(","))
        if count >= 1:
            return optax.linear_schedule(start, end, int(count))
    raise ValueError(f"{text!r} is not linear:START,END,COUNT, such as linear:1,0.01,200000")


def _shown(value: Any) -> list[str]:
    data, keywords = to_json(value), {}
    if isinstance(data, dict) and (data.get("type"), data.get("power")) == ("optax.polynomial_schedule", 1):
        return [f"linear:{data['init_value']},{data['end_value']},{data['transition_steps']}"]
    if isinstance(data, dict) and "partial" in data:
        data, keywords = data["partial"], data["keywords"]
    path = data.get("function", data.get("type")) if isinstance(data, dict) else data
    return [" ".join([str(path), *(f"{name}={setting}" for name, setting in keywords.items())])]


@REGISTRY.struct_rule
def _settings(info: tyro.constructors.StructTypeInfo) -> tyro.constructors.StructConstructorSpec | None:
    """Flags of settings: of the default's class where the type is a protocol; `read` raises their ValueErrors."""
    if _Refused in info.markers or not dataclasses.is_dataclass(info.default):
        return None
    # Marked, so that the question goes past this rule to tyro's own.
    narrowed = dataclasses.replace(info, type=type(info.default), markers=(*info.markers, _Refused))
    spec = tyro.constructors.ConstructorRegistry.get_struct_spec(narrowed)
    assert isinstance(spec, tyro.constructors.StructConstructorSpec)
    return dataclasses.replace(spec, instantiate=partial(_instantiate, spec.instantiate))


class _Refused(Exception):
    """Settings do not fit together; no ValueError, of which tyro would print a page."""


def _instantiate(settings: Callable[..., Any], **fields: Any) -> Any:
    try:
        return settings(**fields)
    except ValueError as error:
        raise _Refused(*error.args) from error


def read(presets: Mapping[str, tuple[str, Any]], about: str | None, arguments: list[str] | None = None) -> Any:
    """Reads a script's flags.

    Args:
      presets: A description and settings of each preset, by name.
      about: Beginning of the text of `--help`.
      arguments: Words of the command line; None takes those of this process. The first word may be a preset, which
        flags change. The default preset is "desktop", or the first one. Of the budgets in frames and in timesteps, the
        one given as a flag takes the place of the preset's.

    Raises:
      ValueError: Settings do not fit together.
      SystemExit: There is no such flag or preset, or a value has another type; the message is printed.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or (words[0].startswith("-") and not words[0].startswith(("-h", "--help", "--tyro"))):
        words = [_default(presets), *words]
    if words[0] not in presets and not words[0].startswith("-"):
        print(f"error: {words[0]!r} is not a preset: choose from {', '.join(presets)}", file=sys.stderr)
        raise SystemExit(2)
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands)
    try:
        settings: Any = tyro.extras.overridable_config_cli(
            presets, description=about, args=words, config=config, registry=REGISTRY
        )
    except _Refused as error:
        raise ValueError(*error.args) from error
    flags, run = {word.partition("=")[0] for word in words}, settings.run
    given = [name for name in ("frames", "timesteps") if f"--{name}" in flags and getattr(run, name) is not None]
    replaced = {"frames": "timesteps", "timesteps": "frames"}[given[0]] if len(given) == 1 else None
    return settings if replaced is None else changed(settings, {replaced: None})


def _default(presets: Mapping[str, Any]) -> str:
    return "desktop" if "desktop" in presets else next(iter(presets))


def exit_code(main: Callable[[], int]) -> int:
    """Runs the main function of a script, and shows errors of its settings or of the machine in one line.

    Args:
      main: () -> exit code.

    Returns:
      The exit code: 2 if settings do not fit together or do not fit the run directory; 1 if the machine or the
      environment failed during the run; 130 after a second Ctrl-C.

    Raises:
      ValueError: An error from inside a step, whose traceback is needed.
    """
    try:
        return main()
    except (ValueError, ImportError, FileExistsError, BlockingIOError, vx.DamagedCheckpointError) as error:
        if getattr(error, "__notes__", ()):  # from inside a step
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (OSError, MemoryError, FloatingPointError) as error:
        print(_text(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # a compilation in progress goes on in other threads and may crash an orderly end
        sys.stdout.flush()
        print("stopped; saved checkpoints are intact", file=sys.stderr, flush=True)
        os._exit(130)


def _text(error: BaseException) -> str:
    return " ".join([f"error: {error}", *getattr(error, "__notes__", [])])


def tell(text: str) -> None:
    """Prints a line to standard error, unless the terminal is gone."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def once(run_dir: str | Path, *, resume: bool) -> Iterator[None]:
    """Marks a run whose numbers are no longer finite in this context, and refuses to resume a marked run.

    On envpool a resumed run begins new episodes. If diverged runs were trained again until they do not diverge, the
    remaining seeds would be a selection.

    Raises:
      FileExistsError: There is a run already, and `resume` is False.
      FloatingPointError: The run diverged, here or before.
    """
    marker = Path(run_dir) / DIVERGED
    if resume and marker.is_file():
        raise FloatingPointError(
            f"{run_dir} diverged and is not trained again; remove {marker} to do that. Its error was: "
            f"{marker.read_text().strip()}"
        )
    if not resume:
        check_unused(run_dir)
        marker.unlink(missing_ok=True)  # of a run without a step, which begins anew
    try:
        yield
    except FloatingPointError as error:
        if Path(run_dir).is_dir():
            write_file(marker, f"{error}\n")
        raise


def launch(make: Make, presets: Mapping[str, tuple[str, Any]], about: str | None, *, sampled: bool = False) -> int:
    """Reads flags, trains, scores and films; returns the exit code: see `exit_code`.

    Args:
      make: See `Make`.
      presets: What each preset is, and its settings, by name; flags that every script has are in `settings.run`.
      about: What `--help` begins with.
      sampled: Score drawn actions too, not only the likeliest.
    """
    if sys.argv[1:2] == ["sweep"]:
        return exit_code(lambda: sweep(make, presets, about, sys.argv[2:]))
    default = _default(presets)
    text = f"{(about or '').rstrip()}\n\n`{default} --help` lists the flags; without a preset it is {default}. "
    text += "With `sweep` as the first word it searches for settings: see `sweep --help`."
    return exit_code(lambda: _launch(make, read(presets, text), sampled))


def sweep(make: Make, presets: Mapping[str, tuple[str, Any]], about: str | None, words: list[str]) -> int:
    """Searches for settings; `words` are a preset, flags of `Sweep`, and flags of the script. Returns the exit code."""
    text = f"{(about or '').rstrip()}\n\nWords: sweep, a preset, flags of the sweep, and flags of the preset, such as "
    text += "--run-dir and a budget (and --minutes None where the preset has minutes)."
    given, others = tyro.cli(Sweep, args=words, return_unknown_args=True, description=text)
    space, settings = given.ranges(), read(presets, about, others)
    if unknown := [name for name in space if name not in names(settings)]:
        raise ValueError(
            f"--space: there is no setting {unknown[0]!r}; choose from {', '.join(sorted(names(settings)))}"
        )
    flags: Run = settings.run
    ignored = ("seeds", "tune", "log", "video", "no-video", "score-episodes", "checkpoint-every")
    words_given = {word.partition("=")[0].removeprefix("--").replace("_", "-") for word in others}
    if unused := [name for name in ignored if name in words_given]:
        raise ValueError(f"--{unused[0]} is for runs, not for sweeps (several seeds of a setting: --num-learners)")
    if flags.minutes is not None:
        raise ValueError("--minutes is for runs; give --minutes None, and --frames, --timesteps or --generations")
    ranked = "validation_mean" if hasattr(settings, "population") else "training_mean"
    is_evaluated = getattr(getattr(settings, "learning", None), "evaluate_every", None) is not None
    budget: dict[str, Any] = {"steps": make(settings)[1], "max_frames": flags.frames, "max_timesteps": flags.timesteps}
    found = vx.sweep(
        partial(_make_trial, make, settings),
        space,
        num_trials=given.trials,
        run_dir=flags.run_dir,
        metric=given.metric or ("evaluation_mean" if is_evaluated else ranked),
        num_learners=given.at_once,
        pruner="halving" if given.prune else None,
        storage=given.storage,
        workers=ray_workers(given.sweep_workers),
        seed=flags.seed,
        resume=flags.resume,
        **{name: value for name, value in budget.items() if value is not None},
    )
    print(found)
    return found.exit_code


def names(settings: Any) -> set[str]:
    """Returns the names of all fields of settings and of their parts."""
    own = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    parts = (names(value) for value in own.values() if dataclasses.is_dataclass(value))
    return set().union(own, *parts)


def _launch(make: Make, settings: Any, sampled: bool) -> int:
    flags: Run = settings.run
    vx.distributed.initialize()  # where SLURM, MPI, Kubernetes or the environment say that there are several processes
    folder = run_path(flags.run_dir)
    if flags.seeds is None:
        if found := [path.parent.name for path in sorted(folder.glob("seed-*/config.json"))]:
            raise ValueError(
                f"{flags.run_dir} holds a series of seeds ({', '.join(found)}): give --seeds, or another --run-dir."
            )
        return _train(make, settings, sampled, flags.seed, flags.run_dir)
    if (folder / "config.json").exists():
        raise ValueError(f"{flags.run_dir} holds a single run: leave --seeds out, or give another --run-dir.")
    places = {flags.seed + i: folder / f"seed-{flags.seed + i}" for i in range(flags.seeds)}
    if not flags.resume:  # before the first of them begins
        for place in places.values():
            for run in (place, *(config.parent for config in place.glob("*/config.json"))):
                check_unused(run)
    failed = 0
    for done, (seed, place) in enumerate(places.items(), start=1):
        tell(f"seed {seed}, {done} of {flags.seeds}: {place}")
        try:
            code = _train(make, settings, sampled, seed, str(place))
        except FloatingPointError as error:  # the others go on
            tell(_text(error))
            failed = 1
            continue
        if code:
            tell(f"the series stops in {place}; with --resume it goes on there")
            return code
    if not failed:
        try:
            print(vx.compare({Path(flags.run_dir).name: flags.run_dir}))
        except ValueError as error:  # there may be no scores, where no episode has ended
            print(f"the seeds are not compared: {error}", file=sys.stderr)
    return failed


def _train(make: Make, settings: Any, sampled: bool, seed: int, run_dir: str) -> int:
    """Trains one seed, scores it and records a video; returns the exit code."""
    flags: Run = dataclasses.replace(settings.run, seed=seed, run_dir=run_dir)
    settings, folder = dataclasses.replace(settings, run=flags), Path(run_dir)
    if not flags.resume:
        check_unused(run_dir)  # making the algorithm may take a while
    algorithm, asked = make(changed(settings, _tuned(make, settings)))
    if flags.log and algorithm.log is None:
        raise ValueError("--log is for populations; leave it out.")
    before = read_metrics(folder / METRICS)[: max(steps_of(folder / CHECKPOINTS), default=0)]  # later ones are dropped
    seconds, steps = None if flags.minutes is None else 60 * flags.minutes - spent(before), asked
    if seconds is not None and seconds <= 0:
        seconds, steps = None, min(len(before), len(before) if steps is None else steps)
    try:
        with once(run_dir, resume=flags.resume):
            run = vx.train(
                algorithm,
                seed=seed,
                steps=steps,
                run_dir=run_dir,
                resume=flags.resume,
                checkpoint_every=flags.checkpoint_every,
                on_step=vx.runs.log_arrays if flags.log else None,
                stop_after=seconds,
                max_frames=flags.frames,
                max_timesteps=flags.timesteps,
            )
    except FloatingPointError:
        algorithm.close()  # another seed may follow
        raise
    left = asked is None or len(run.metrics) < asked
    if flags.minutes is not None and left and not run.interrupted and spent(run.metrics) >= 60 * flags.minutes:
        tell(f"{run_dir}: stopped after {flags.minutes:g} min; continue with more --minutes and --resume")
        if flags.frames and (frames := numbers(run.metrics[-1]).get("frames")):
            whole = format_duration(spent(run.metrics) * flags.frames / frames)
            tell(f"{run_dir}: at this speed, compilation included, {flags.frames:,} frames take {whole}")
    try:
        if not run.interrupted and run.metrics and run.run_dir is not None:  # of several processes one has a directory
            algorithm.close()
            if flags.score_episodes:
                keep_score(run, flags.score_episodes, seed=flags.seed, sampled=sampled)
            images = len(algorithm.env.spec.observation_shape) == 3
            recorded = len(run.metrics) == len(before) and (folder / "episode.mp4").exists()
            if flags.video and images and not recorded:
                run.watch()
    finally:
        if algorithm.max_over_processes is not None:
            algorithm.max_over_processes(0)  # a process that ends waits five minutes for the others; then JAX ends them
    return run.exit_code


def spent(rows: list[dict[str, Any]]) -> float:
    """The seconds that a run has taken, by its rows."""
    return numbers(rows[-1]).get("seconds", 0.0) if rows else 0.0


def _tuned(make: Make, settings: Any) -> dict[str, Any]:
    """Settings that tuning found: those of the run in the directory, those of another seed, or new ones."""
    flags: Run = settings.run
    folder = Path(flags.run_dir)
    files = [folder / TUNED, *(sorted(folder.parent.glob(f"seed-*/{TUNED}")) if flags.seeds is not None else [])]
    if found := next((file for file in files if file.exists() and (flags.resume or file != files[0])), None):
        return json.loads(found.read_text())
    if flags.tune == "off" or (flags.resume and (folder / CONFIG).exists()):
        return {}
    if jax.process_count() > 1:
        raise ValueError("--tune works in one process: tune there, and give the flags that it prints to all processes")
    make(settings)  # refuses bad settings before minutes of trials
    tuned = vx.tune(partial(_make_changed, make, settings), choices(settings))
    print(f"tuned: {tuned.settings}: {tuned.timesteps_per_second:,.0f} timesteps/s")
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / TUNED, json.dumps(tuned.settings) + "\n")
    return tuned.settings


def choices(settings: Any) -> dict[str, tuple[Any, ...]]:
    """Values to try for `--tune`, the first of each to begin with; names are flags."""
    env, cpus = settings.env, len(os.sched_getaffinity(0))
    found = {
        "groups": first(env.groups, (n for n in (1, 2, 3, 4) if env.num_envs % n == 0)),
        "threads": first(cpus if env.threads is None else env.threads, sorted({max(1, cpus // 2), cpus, cpus + 1})),
    }
    learner = getattr(settings, "learner", None)
    if isinstance(learner, vx.PPO | vx.PQN):
        share = -(-env.num_envs * learner.segment_length // (max(env.groups, 1) * learner.num_minibatches))
        divisors = [n for n in (32, 64, 128, 256, share) if n <= share and share % n == 0]
        found["micro_batch"] = first(learner.micro_batch, dict.fromkeys(divisors))
    if isinstance(learner, vx.A3C):
        group = max(env.num_envs // max(env.groups, 1), 1)
        divisors = [n for n in range(1, group + 1) if group % n == 0 and n * learner.segment_length <= 512]
        found["micro_batch"] = first(learner.micro_batch, divisors[-4:])
    return found


def first(value: Any, others: Iterable[Any]) -> tuple[Any, ...]:
    """A value, and the others that differ from it."""
    return (value, *(other for other in others if other != value))


def _make_trial(make: Make, settings: Any, changes: Mapping[str, Any]) -> vx.Algorithm:
    return make(changed(settings, changes))[0]


def _make_changed(make: Make, settings: Any, **changes: Any) -> vx.Algorithm:
    return _make_trial(make, settings, changes)


def changed(settings: Any, changes: Mapping[str, Any]) -> Any:
    """Settings with other values, in whichever part of them the fields of these names are."""
    own = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    parts = {name: changed(value, changes) for name, value in own.items() if dataclasses.is_dataclass(value)}
    return dataclasses.replace(settings, **parts, **{name: changes[name] for name in own if name in changes})
