"""The command line: what can be done with the directory of a run, and a check of this machine.

- volvox play runs/frostbite --episodes 30
- volvox compare ga=runs/ga es=runs/es --out comparison.png
- volvox export runs/frostbite policy.stablehlo
- volvox doctor
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from volvox import doctor as doctor_
from volvox._config import METRICS, PLOT, REPORT, VIDEO, read_config
from volvox._parts import env_of
from volvox.checkpoint import DamagedCheckpointError
from volvox.loading import load
from volvox.report import plots
from volvox.report.comparison import compare as compare_methods
from volvox.report.html import html_report
from volvox.report.rows import Row, numbers, read_metrics
from volvox.report.comparison import parse_methods
from volvox.report.html import flat_settings
from volvox.report.metrics import SCORES, atari_scores, format_duration, format_number, latest, task_of
from volvox.rollout import scoring
from volvox.rollout.scoring import Protocol
from volvox.runs import export as exported
from volvox.training import Run

RunDir = Annotated[Path, tyro.conf.arg(metavar="RUN")]
_REFUSED = (ValueError, OSError, ImportError, FloatingPointError, MemoryError, DamagedCheckpointError)
"""Answered in one line, unless a note says that the error comes from inside an environment or a step."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      arguments: Words of the command line; None takes those of this process.

    Returns:
      The exit code: 0; 1 if `doctor` found a problem; 2 for a command or a file that is refused, in one line on the
      standard error stream; 130 after Ctrl-C; 141 if nobody reads on, as `head` does after its lines.
    """
    commands = {f.__name__: f for f in (play, watch, plot, compare, export, info, report, doctor)}
    try:
        code = tyro.extras.subcommand_cli_from_dict(commands, prog="volvox", description=__doc__, args=arguments)
        sys.stdout.flush()  # here, where it is known what to do if nobody reads
    except BrokenPipeError:
        # Python flushes what is left when it ends, and would print another error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except _REFUSED as error:
        if isinstance(error, ValueError) and getattr(error, "__notes__", ()):
            raise
        print(f"error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 2
    return code or 0


def play(
    run: RunDir,
    /,
    *,
    episodes: int | None = None,
    which: Literal["best", "last"] | None = None,
    protocol: Protocol | None = None,
    seed: int = scoring.UNUSED_SEED,
) -> None:
    """Scores the policy on whole episodes.

    Args:
      run: The run directory, or a file of `volvox export` that ends in `.stablehlo`.
      episodes: Number of episodes; by default 100. The protocol "exact" always plays as many as there are starts.
      which: The best policy of a run so far (the default), or its last one.
      protocol: How the score is measured; by default on Atari with sticky actions and then exactly, otherwise in fresh
        episodes.
      seed: Seed of the environments and the actions; by default one that training is unlikely to use.
    """
    evaluate = _evaluation_of(run, which)
    score = evaluate(num_episodes=episodes, protocol=protocol, seed=seed)
    print(score, flush=True)
    if protocol is None and score.protocol == "sticky":
        print(evaluate(protocol="exact", seed=seed))


def _evaluation_of(run: Path, which: Literal["best", "last"] | None) -> Callable[..., scoring.Score]:
    """`Run.evaluate` of a run's policy, or the same of an exported one."""
    if not exported.is_exported(run):
        return partial(load(run).evaluate, which=which or "best")
    if which is not None:
        raise ValueError(f"{run} holds one policy, so that which={which!r} chooses nothing: leave it out.")
    policy = exported.load_exported(run)
    env = env_of(policy.header["config"].get("env") or {}, place="env")
    return partial(scoring.play, env, policy.policy, ())


def watch(run: RunDir, /, *, out: Path | None = None, seed: int = 0) -> None:
    """Films one episode of the policy.

    Args:
      run: The run directory.
      out: Where to write the MP4; by default `episode.mp4` in the run directory.
      seed: The environment's seed.
    """
    _loaded(run, "watch").watch(out, seed=seed)


def plot(run: RunDir, /, *, out: Path | None = None) -> None:
    """Draws the learning curve.

    Args:
      run: The run directory.
      out: Where to write the PNG; by default `learning_curve.png` in the run directory.
    """
    config, rows = _recorded(run, "plot")
    path, task = run / PLOT if out is None else out, task_of(config)
    plots.learning_curve(rows, path, title=task, random=_random(config))
    print(path)


def compare(
    runs: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME=]RUN")],
    /,
    *,
    metric: str | None = None,
    x: str = "frames",
    markdown: bool = False,
    out: Path | None = None,
) -> None:
    """Compares methods by their runs: interquartile means with intervals, and probabilities of improvement.

    Args:
      runs: Run directories, or directories of seeds (`seed-0`, `seed-1`, ...), each a method; those that begin with the
        same name, as in `ga=runs/a ga=runs/b`, are runs of one.
      metric: The metric that is compared; by default the most telling one that all runs have.
      x: What counts the expense: frames, seconds, step, or another metric.
      markdown: Print tables in Markdown.
      out: Where to write a PNG of the curves; by default nothing is written.
    """
    if not runs:
        raise ValueError("compare takes one or more run directories, such as ga=runs/ga es=runs/es.")
    plots.check_png(out)
    comparison = compare_methods(parse_methods(runs), metric=metric, x=x)
    print(comparison.markdown() if markdown else comparison)
    if out is not None:
        comparison.plot(out)
        print(f"\n{out}")


def export(
    run: RunDir, path: Annotated[Path, tyro.conf.arg(metavar="FILE")], /, *, which: Literal["best", "last"] = "best"
) -> None:
    """Writes the policy to one file that acts without the code of its network.

    Args:
      run: The run directory.
      path: Where to write; `.stablehlo` or `.onnx`.
      which: The best policy of the run so far, or its last one.
    """
    if path.suffix not in exported.SUFFIXES:  # loading takes seconds
        raise ValueError(f"{path}: the name must end in {' or '.join(exported.SUFFIXES)}")
    _loaded(run, "export").export(path, which=which)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def report(run: RunDir, /, *, out: Path | None = None) -> None:
    """Writes one HTML file with curves, rates, settings and the video, for a browser without a network.

    Args:
      run: The run directory.
      out: Where to write it; by default `report.html` in the run directory.
    """
    config, rows = _recorded(run, "report")
    path, task = run / REPORT if out is None else out, task_of(config)
    video = run / VIDEO if (run / VIDEO).exists() else None
    print(html_report(path, rows, config, title=task, video=video, random=_random(config)))


def info(run: RunDir, /) -> None:
    """Says what a run directory or an exported policy holds: how far it came, what it is of, then all settings.

    Args:
      run: The run directory, or a file of `volvox export`.
    """
    if exported.is_exported(run):
        _print_places(exported.load_exported(run).header)
        return
    config, rows = read_config(run), read_metrics(run / METRICS)
    algorithm, last = config["algorithm"], numbers(rows[-1]) if rows else {}
    known = latest(rows)
    result = [f"{name.replace('_', ' ')} {format_number(known[name])}" for name in SCORES if name in known]
    counts = [f"{format_number(last['frames'])} frames"] if "frames" in last else []
    counts += [format_duration(last["seconds"])] if "seconds" in last else []
    network = algorithm.get("network") or {}
    made_of = [_named(algorithm.get("strategy") or algorithm.get("settings") or algorithm.get("algorithm"))]
    made_of += [f"with {_named(network)}"] if network else []
    counted = isinstance(network, Mapping) and "num_parameters" in network
    made_of += [f"of {network['num_parameters']:,} parameters"] if counted else []
    print(f"result: {', '.join(result) or 'none yet'}")
    print(f"steps: {', '.join([str(len(rows)), *counts])}")
    print(f"task: {task_of(config)}")
    print(f"policy: {' '.join(made_of)}\n")
    _print_places(config)


def doctor() -> int:
    """Checks JAX, devices, envpool, cores, memory, ffmpeg and the disk, and says what to do where one is missing."""
    return doctor_.doctor()


def _loaded(path: Path, command: str) -> Run:
    """Loads a run; raises ValueError for an exported policy, which is less than a run."""
    _check_run(path, command)
    return load(path)


def _recorded(path: Path, command: str) -> tuple[dict[str, Any], list[Row]]:
    """Settings and metrics of a run, for which none of its code has to be there; raises ValueError likewise."""
    _check_run(path, command)
    return read_config(path), read_metrics(path / METRICS)


def _check_run(path: Path, command: str) -> None:
    if exported.is_exported(path):
        raise ValueError(f"{path} is an exported policy; {command} takes a run directory (play and info take both).")


def _random(config: Mapping[str, Any]) -> float | None:
    return atari_scores(config["algorithm"].get("env")).get("random")


def _named(described: Any) -> str:
    """The name of a class, of its description."""
    if isinstance(described, Mapping):  # runs of format 1 have the last two
        described = next((described[name] for name in ("type", "network", "kind") if name in described), "?")
    return str(described).rpartition(":")[2]


def _print_places(values: Mapping[str, Any]) -> None:
    """Prints nested settings, one a line, by their places such as `algorithm.env.task`."""
    for place, text in flat_settings(values).items():
        print(f"{place}: {text}")
