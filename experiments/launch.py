"""What the scripts share: reading flags, training in a run directory, tuning, and scoring the result."""

import collections.abc
import dataclasses
import importlib
import json
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import optax
import tyro
from flags import Run

import volvox as vx
from volvox.data.segments import micro_batch_size
from volvox.training import check_unused

Make = Callable[[Any], tuple[vx.Algorithm, int]]
"""Settings -> (algorithm, its generations or iterations in all); raises ValueError for bad settings. A function at the
top level of its script, so that it can travel to other processes."""
_UNIONS = (typing.Union, types.UnionType)
_FUNCTIONS = (collections.abc.Callable, optax.GradientTransformation)
REGISTRY = tyro.constructors.ConstructorRegistry()


@REGISTRY.primitive_rule
def _functions(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Flags of fields that may be functions: a number, text such as linear:1,0,100, or an import path (optax:adam)."""
    parts = typing.get_args(info.type) if typing.get_origin(info.type) in _UNIONS else (info.type,)
    if not any(part in _FUNCTIONS or typing.get_origin(part) in _FUNCTIONS for part in parts):
        return None
    metavar = "NUMBER|SCHEDULE" if str in parts else "NUMBER" if float in parts else "MODULE:FUNCTION"
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
        try:
            return float(text)
        except ValueError:
            if str not in parts:
                raise
            return text
    module, _, name = text.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{text!r} is no import path such as optax:adam ({error})") from error


def _shown(value: Any) -> list[str]:
    described = vx.describe(value)
    if not isinstance(described, dict):
        return [str(described)]
    path = described.pop("function", described.pop("type", ""))
    return [" ".join([path, *(f"{name}={setting}" for name, setting in described.items())])]


@REGISTRY.struct_rule
def _settings(info: tyro.constructors.StructTypeInfo) -> tyro.constructors.StructConstructorSpec | None:
    """Flags of settings: of the default's class where the type is a protocol; what they refuse, `read` raises."""
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
    """Reads a script's flags; those not given come from the preset, the first word.

    Args:
      presets: name -> (what it is, settings).
      about: what `--help` begins with.
      arguments: of the command line; None: those of this process.

    Raises:
      ValueError: settings do not fit together.
      SystemExit: there is no such flag or preset, or its value is of another kind; which, is printed.
    """
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands)
    try:
        return tyro.extras.overridable_config_cli(
            presets, description=about, args=arguments, config=config, registry=REGISTRY
        )
    except _Refused as error:
        raise ValueError(*error.args) from error


def launch(make: Make, presets: Mapping[str, tuple[str, Any]], about: str | None, *, sampled: bool = False) -> int:
    """Reads flags, trains, scores and films; returns what the script should exit with: 2 for bad settings.

    Args:
      make: see `Make`.
      presets: name -> (what it is, settings); flags that every script has are in `settings.run`.
      about: what `--help` begins with.
      sampled: score drawn actions too, not only the likeliest.
    """
    try:
        settings = read(presets, about)
        flags: Run = settings.run
        if not flags.resume:
            check_unused(flags.run_dir)  # making the algorithm may take a while
        tuned = _tuned(make, settings)
        algorithm, steps = make(changed(settings, tuned))
        if tuned:
            about_tuning = {"tuned": tuned, "given": _values(settings, tuned)}
            algorithm = algorithm._replace(config={**algorithm.config, **about_tuning})
        run = vx.train(
            algorithm,
            seed=flags.seed,
            steps=steps,
            run_dir=flags.run_dir,
            resume=flags.resume,
            checkpoint_every=flags.checkpoint_every,
            log=flags.log,
            stop_after=None if flags.minutes is None else 60 * flags.minutes,
            frames=settings.population.frames if hasattr(settings, "population") else None,
        )
    except (ValueError, FileExistsError, BlockingIOError, vx.DamagedCheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    if not run.interrupted and run.metrics:
        algorithm.close()
        if flags.score_episodes:
            score(flags, run, sampled=sampled)
        if flags.video and len(algorithm.env.spec.observation_shape) == 3:
            run.watch()
    return run.exit_code


def _tuned(make: Make, settings: Any) -> dict[str, Any]:
    """What tuning changes: as the run in the directory has it, or found now; nothing if it is off."""
    config = Path(settings.run.run_dir) / "config.json"
    if config.exists():
        saved = json.loads(config.read_text())["algorithm"]
        given = _values(settings, saved.get("tuned", {}))
        # A flag that is not what it was is not overridden, so that `train` refuses it by name.
        return {
            name: value for name, value in saved.get("tuned", {}).items() if given.get(name) == saved["given"][name]
        }
    if settings.run.tune == "off":
        return {}
    algorithm, _ = make(settings)  # refuses bad settings before minutes of trials
    if settings.run.log and algorithm.log is None:
        raise ValueError("--log: this algorithm has nothing to log.")
    if any(config.with_name(name).exists() for name in ("metrics.jsonl", "checkpoints")):
        raise ValueError(f"{settings.run.run_dir} holds a run without its config.json; give another --run-dir.")
    tuned = vx.tune(partial(_make_changed, make, settings), choices(settings))
    print(f"tuned: {tuned.settings}: {tuned.steps_per_second:,.0f} timesteps/s")
    return tuned.settings


def choices(settings: Any) -> dict[str, tuple[Any, ...]]:
    """Values to try for `--tune`, the first of each to begin with; names are flags."""
    env, cpus = settings.env, len(os.sched_getaffinity(0))
    found = {
        "groups": first(env.groups, (n for n in (1, 2, 3, 4) if env.num_envs % n == 0)),
        "threads": first(cpus if env.threads is None else env.threads, sorted({max(1, cpus // 2), cpus, cpus + 1})),
    }
    learner = getattr(settings, "learner", None)
    if isinstance(learner, vx.A3C):
        group = max(env.num_envs // max(env.groups, 1), 1)
        divisors = [n for n in range(1, group + 1) if group % n == 0 and n * learner.segment_length <= 512]
        if learner.micro_batch is None:  # its size is tried first anyway
            own = micro_batch_size(None, group, learner.segment_length)
            divisors = [n for n in divisors if n != own]
        found["micro_batch"] = first(learner.micro_batch, divisors[-4:])
        if settings.run.tune == "all":
            count = env.num_envs
            found["num_envs"] = first(count, (count // 2, 2 * count, 4 * count))
            found["segment_length"] = first(learner.segment_length, (5, 10, 20))
    return found


def first(value: Any, others: Iterable[Any]) -> tuple[Any, ...]:
    """A value, and the others that differ from it."""
    return (value, *(other for other in others if other != value))


def _make_changed(make: Make, settings: Any, **changes: Any) -> vx.Algorithm:
    return make(changed(settings, changes))[0]


def changed(settings: Any, changes: Mapping[str, Any]) -> Any:
    """Settings with other values, in whichever part of them the fields of these names are."""
    own = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    parts = {name: changed(value, changes) for name, value in own.items() if dataclasses.is_dataclass(value)}
    return dataclasses.replace(settings, **parts, **{name: changes[name] for name in own if name in changes})


def _values(settings: Any, names: Iterable[str]) -> dict[str, Any]:
    """The values of flags, in whichever part of the settings they are."""
    parts = [value for value in vars(settings).values() if dataclasses.is_dataclass(value)]
    found = {name: value for part in parts for name, value in _values(part, names).items()}
    return found | {name: value for name, value in vars(settings).items() if name in names}


def score(flags: Run, run: vx.Run, *, sampled: bool) -> None:
    """Plays fresh episodes with the result and at random; prints and writes all with 95% intervals."""
    env, count = run.algorithm.env, flags.score_episodes
    seed = flags.seed + 1_000_003  # other starts than those of training
    play = partial(vx.play, env, run.algorithm.policy, run.variables(), num_episodes=count, seed=seed)
    name = "elite" if run.algorithm.genome else "policy"
    scores = {name: play()}
    if sampled:
        scores[f"{name}, sampled"] = play(sampled=True)
    scores["random"] = vx.play_randomly(env, num_episodes=count, seed=seed)
    written = {}
    for name, result in scores.items():
        print(f"{name}: {result.mean:.1f} [{result.low:.1f}, {result.high:.1f}] over {count} episodes")
        written[name] = {
            "mean": result.mean,
            "interval_95": [result.low, result.high],
            "returns": result.returns.tolist(),
            "lengths": result.lengths.tolist(),
        }
    (Path(flags.run_dir) / "score.json").write_text(json.dumps(written, indent=1) + "\n")
