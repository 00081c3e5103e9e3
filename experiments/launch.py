"""What the experiment scripts share: running an algorithm in a run directory, and scoring what came of it."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import tyro

import volvox as vx
from volvox._machine import num_cpus
from volvox.training import check_unused

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Flags that every script has."""

    run_dir: Annotated[str, Flag(help="where config, metrics, checkpoints, picture and video go")]
    seed: Annotated[int, Flag(help="fixes all random numbers but the emulators' history")] = 0
    resume: Annotated[bool, Flag(help="go on with the run in --run-dir")] = False
    minutes: Annotated[float | None, Flag(help="begin no further step after so many minutes")] = None
    checkpoint_every: Annotated[int, Flag(help="steps (rows of metrics) between checkpoints")] = 1
    log: Annotated[
        bool,
        Flag(help="keep each generation's members in --run-dir/log, for volvox.report.population; populations only"),
    ] = False
    video: Annotated[bool, Flag(help="film what was learned, where observations are images")] = True
    score_episodes: Annotated[
        int, Flag(help="at the end, play so many fresh episodes with what was learned and at random; 0: none")
    ] = 0
    tune: Annotated[
        Literal["off", "machine", "all"],
        Flag(
            help="first find what runs fastest here, in some minutes of trials; machine: settings that hardly change "
            "learning; all: the rest too. A resumed run keeps what was found"
        ),
    ] = "off"


class Choices(NamedTuple):
    """Values to try for `--tune`, the first of each to begin with; names are flags."""

    machine: dict[str, tuple[Any, ...]]
    """Of flags that hardly change what is learned."""
    others: dict[str, tuple[Any, ...]]


def launch(
    make_algorithm: Callable[..., tuple[vx.types.Algorithm, int]],
    settings: Any,
    choices: Choices,
    *,
    learned: str,
    sampled: bool = False,
) -> int:
    """Trains, scores and films; returns what the script should exit with: 2 for bad settings, after one line.

    Args:
      make_algorithm: settings -> (algorithm, its steps in all); raises ValueError for bad settings. At the script's top
        level.
      settings: the script's flags; those that every script has are in `settings.run`.
      choices: for `--tune`.
      learned: what the result is called beside random play, e.g. "elite".
      sampled: score it with drawn actions too, not only with the likeliest.
    """
    run_settings: RunSettings = settings.run
    try:
        if run_settings.score_episodes < 0:
            raise ValueError(f"score_episodes={run_settings.score_episodes}: give their number, or 0 for none.")
        if run_settings.minutes is not None and not run_settings.minutes > 0:
            raise ValueError(f"minutes={run_settings.minutes}: give a positive number of minutes, or leave it out.")
        if run_settings.checkpoint_every < 1:
            raise ValueError(f"checkpoint_every={run_settings.checkpoint_every}: give a positive number of steps.")
        if not run_settings.resume:
            check_unused(run_settings.run_dir)  # making the algorithm may take a while
        tuned = _tuned(make_algorithm, settings, choices)
        algorithm, steps = make_algorithm(changed(settings, tuned))
        if tuned:
            algorithm = algorithm._replace(
                config={**algorithm.config, "tuned": tuned, "given": _flags(settings, tuned)}
            )
        run = vx.train(
            algorithm,
            jax.random.key(run_settings.seed),
            steps=steps,
            run_dir=run_settings.run_dir,
            resume=run_settings.resume,
            checkpoint_every=run_settings.checkpoint_every,
            log=run_settings.log,
            stop_after=None if run_settings.minutes is None else 60 * run_settings.minutes,
        )
    except (ValueError, FileExistsError, BlockingIOError, vx.checkpoint.DamagedCheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    if not run.interrupted and run.metrics:
        algorithm.close()
        if run_settings.score_episodes:
            score(run_settings, run, learned, sampled=sampled)
        if run_settings.video and len(run.algorithm.env.spec.observation_shape) == 3:
            run.watch()
    return run.exit_code


def _tuned(
    make_algorithm: Callable[..., tuple[vx.types.Algorithm, int]], settings: Any, choices: Choices
) -> dict[str, Any]:
    """What tuning changes: as the run in the directory has it, or found now; nothing if it is off."""
    config = Path(settings.run.run_dir) / "config.json"
    if config.exists():
        saved = json.loads(config.read_text())["algorithm"]
        given = _flags(settings, saved.get("tuned", {}))
        # A flag that is not what it was is not overridden, so that `train` refuses it by name.
        return {
            name: value for name, value in saved.get("tuned", {}).items() if given.get(name) == saved["given"][name]
        }
    if settings.run.tune == "off":
        return {}
    algorithm, _ = make_algorithm(settings)  # refuses bad settings before minutes of trials
    if settings.run.log and algorithm.log is None:
        raise ValueError("--log: this algorithm has nothing to log.")
    if any(config.with_name(name).exists() for name in ("metrics.jsonl", "checkpoints")):
        raise ValueError(f"{settings.run.run_dir} holds a run without its config.json; give another --run-dir.")
    values = choices.machine | (choices.others if settings.run.tune == "all" else {})
    tuned = vx.tune(partial(_make_changed, make_algorithm, settings), values)
    print(f"tuned: {tuned.settings}: {tuned.steps_per_second:,.0f} steps/s")
    return tuned.settings


def _flags(settings: Any, names: Iterable[str]) -> dict[str, Any]:
    """The values of flags, wherever in the settings they are."""
    inner = [value for value in vars(settings).values() if dataclasses.is_dataclass(value)]
    found = {name: value for part in inner for name, value in _flags(part, names).items()}
    return found | {name: value for name, value in vars(settings).items() if name in names}


def _make_changed(make_algorithm: Callable[..., tuple[vx.types.Algorithm, int]], settings: Any, **changes: Any):
    return make_algorithm(changed(settings, changes))[0]


def changed(settings: Any, changes: dict[str, Any]) -> Any:
    """Flags with other values, wherever in the settings they are."""
    own = {field.name for field in dataclasses.fields(settings)}
    inner = {
        name: changed(getattr(settings, name), changes)
        for name in own
        if dataclasses.is_dataclass(getattr(settings, name))
    }
    return dataclasses.replace(settings, **inner, **{name: value for name, value in changes.items() if name in own})


def machine_choices(num_envs: int, groups: int, threads: int | None) -> dict[str, tuple[Any, ...]]:
    """Groups and emulator threads to try."""
    cpus = num_cpus()
    return {
        "groups": first(groups, (n for n in (1, 2, 3, 4) if num_envs % n == 0)),
        "threads": first(cpus if threads is None else threads, sorted({max(1, cpus // 2), cpus, cpus + 1})),
    }


def first(value: Any, others: Iterable[Any]) -> tuple[Any, ...]:
    """A value, and the others that differ from it."""
    return (value, *(other for other in others if other != value))


def score(settings: RunSettings, run: vx.Run, learned: str, *, sampled: bool) -> None:
    """Plays fresh episodes with what was learned and at random; prints and writes all with 95% intervals."""
    env = run.algorithm.env
    seed = settings.seed + 1_000_003  # episodes that training has not seen
    count = settings.score_episodes
    scores = {learned: vx.loop.play(env, run.algorithm.network, run.policy(), num_episodes=count, seed=seed)}
    if sampled:
        scores[f"{learned}, sampled"] = vx.loop.play(
            env, run.algorithm.network, run.policy(), num_episodes=count, sampled=True, seed=seed
        )
    scores["random"] = vx.loop.play_randomly(env, num_episodes=count, seed=seed)
    written = {}
    for name, result in scores.items():
        print(f"{name}: {result.mean:.1f} [{result.low:.1f}, {result.high:.1f}] over {count} episodes")
        written[name] = {
            "mean": result.mean,
            "interval_95": [result.low, result.high],
            "returns": result.returns.tolist(),
            "lengths": result.lengths.tolist(),
        }
    (Path(settings.run_dir) / "score.json").write_text(json.dumps(written, indent=1) + "\n")
