"""Commands for run directories.

- volvox zoo
- volvox play zoo:frostbite-ga --video
- volvox play runs/frostbite --episodes 30
- volvox compare ga=runs/ga es=runs/es --out comparison.png
- volvox sweep-report runs/sweep
- volvox export runs/frostbite policy.stablehlo
- volvox profile runs/frostbite
- volvox doctor
"""

import os
import signal
import sys
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import imageio_ffmpeg
import jax
import tyro

from volvox import envs
from volvox.report import plots
from volvox.report.comparison import compare as compare_methods
from volvox.report.comparison import parse_methods
from volvox.report.files import METRICS, PLOT, read_config, read_metrics
from volvox.report.html import flat_settings, html_report, results
from volvox.report.metrics import atari_scores, task_of
from volvox.rollout import scoring
from volvox.rollout.scoring import Protocol
from volvox.runs import zoo as agents
from volvox.runs.checkpoint import DamagedCheckpointError
from volvox.runs.config import from_json
from volvox.runs.directory import processor, versions
from volvox.runs.export import is_exported
from volvox.runs.profile import profile as profile_algorithm
from volvox.runs.run import Which, load
from volvox.runs.sweep import Sweep

RunDir = Annotated[Path, tyro.conf.arg(metavar="RUN")]
RunName = Annotated[str, tyro.conf.arg(metavar="RUN")]
_ZOO = "zoo:"
"""What the name of an agent of the zoo begins with."""
_SHOWN = (ValueError, OSError, ImportError, FloatingPointError, MemoryError, DamagedCheckpointError)
_SHOWN += (gymnasium.error.Error, zipfile.BadZipFile)
"""Exceptions that are shown in one line, without a traceback."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      arguments: Words of the command line; None: `sys.argv[1:]`.

    Returns:
      The exit code: 0; 2 after an error, which is shown in one line; 130 after Ctrl-C;
      141 if the output is a closed pipe, as with `head`.
    """
    functions = (zoo, play, watch, plot, compare, sweep_report, export, info, report, profile, doctor)
    commands = {function.__name__.replace("_", "-"): function for function in functions}
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog="volvox", description=__doc__, args=arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes the rest at its end
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except _SHOWN as error:
        if getattr(error, "__notes__", ()):  # from inside an environment or a step: the traceback is needed
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def zoo() -> None:
    """Lists the trained agents that come with volvox; `volvox play zoo:NAME` plays one."""
    cards = agents.list()
    width = max(map(len, cards))
    for name, card in cards.items():
        interval = "" if card["low"] is None else f" [{card['low']:.1f}, {card['high']:.1f}]"
        print(f"{name:{width}}  {card['environment']}: {card['mean']:.1f}{interval} ({card['protocol']})")
    print("mean return [95% interval]; sticky: each action repeats with probability 0.25; fresh: starts of their own")


def play(
    run: RunName,
    /,
    *,
    episodes: int | None = None,
    which: Which = "best",
    protocol: Protocol | None = None,
    video: bool = False,
    seed: int = scoring.UNUSED_SEED,
) -> None:
    """Scores the policy on whole episodes.

    Args:
      run: The run directory, an agent as in zoo:frostbite-ga, or a file of `run.export` or `run.publish`, which ends in
        `.stablehlo` or `.safetensors`.
      episodes: Number of episodes; by default 100. The protocol "exact" plays one for each start.
      which: The best policy of a run so far, or its last one.
      protocol: How the score is measured; by default on Atari with sticky actions and then exactly, otherwise in fresh
        episodes.
      video: Record one episode instead, as `volvox watch` does.
      seed: Seed of the environments and the actions; training is unlikely to use the default.
    """
    if video:
        if episodes is not None or protocol is not None:
            raise ValueError("--video records one episode: leave --episodes and --protocol out")
        return watch(run, which=which, seed=seed)
    if Path(run).suffix == ".onnx":
        raise ValueError(f"{run}: this command plays runs and .stablehlo files; in Python, vx.load(file) acts")
    loaded: Any = _loaded(run, which)
    if is_exported(Path(run)):
        evaluate: Any = partial(scoring.play, from_json(loaded.header["config"]["env"]), loaded.policy, ())
    else:
        evaluate = partial(loaded.evaluate, which=which)
    score = evaluate(num_episodes=episodes, protocol=protocol, seed=seed)
    print(score, flush=True)
    if protocol is None and score.protocol == "sticky":
        print(evaluate(protocol="exact", seed=seed))


def _loaded(run: str, which: Which) -> Any:
    if which != "best" and (_is_agent(run) or is_exported(Path(run))):
        raise ValueError(f"{run} has one policy; leave --which out")
    return agents.load(run.removeprefix(_ZOO)) if _is_agent(run) else load(run)


def _is_agent(run: str) -> bool:
    return run.startswith(_ZOO) or run.endswith(agents.SUFFIX)


def watch(
    run: RunName, /, *, out: Path | None = None, which: Which = "best", members: int | None = None, seed: int = 0
) -> None:
    """Records a video of one episode.

    Args:
      run: The run directory, an agent as in zoo:frostbite-ga, or a file of `run.publish` that ends in `.safetensors`.
      out: The MP4 file; by default `episode.mp4` in the run directory, or `NAME.mp4` in this one.
      which: The best policy of the run so far, or its last one.
      members: Number of members of a population, or of several learners, that play side by side; by default one.
      seed: The environment's seed.
    """
    if out is None and _is_agent(run):
        out = Path(f"{Path(run.removeprefix(_ZOO)).stem}.mp4")
    _run_dir(Path(run))
    loaded = _loaded(run, which)
    print("playing an episode; the video is written at its end", file=sys.stderr)
    loaded.watch(out, which=which, members=members, seed=seed)


def plot(run: RunDir, /, *, out: Path | None = None) -> None:
    """Draws the learning curve.

    Args:
      run: The run directory.
      out: The PNG file; by default `learning_curve.png` in the run directory.
    """
    config = read_config(_run_dir(run))
    path, random = run / PLOT if out is None else out, atari_scores(config["algorithm"].get("env")).get("random")
    plots.learning_curve(read_metrics(run / METRICS), path, title=task_of(config), random=random)
    print(path)


def compare(
    runs: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME=]RUN")],
    /,
    *,
    metric: str | None = None,
    x: str = "frames",
    pairs: bool = False,
    out: Path | None = None,
) -> None:
    """Compares methods by their runs: interquartile means with intervals, and probabilities of improvement.

    Args:
      runs: Run directories, or directories of seeds (`seed-0`, `seed-1`, ...), each a method; several with the same
        name, as in `ga=runs/a ga=runs/b`, are runs of one method.
      metric: The metric that is compared; by default the most informative one that all runs have.
      x: Measure of the budget: frames, seconds, step, or another metric.
      pairs: Print the probabilities of improvement of all pairs.
      out: PNG file of the curves; by default none is written.
    """
    comparison = compare_methods(parse_methods(runs), metric=metric, x=x, pairs=pairs)
    print(comparison)
    if out is not None:
        comparison.plot(out)
        print(f"\n{out}")


def sweep_report(
    run: Annotated[Path, tyro.conf.arg(metavar="SWEEP")],
    /,
    *,
    again: int | None = None,
    storage: str | None = None,
    out: Path | None = None,
) -> None:
    """Prints the trials of a sweep and draws them, and trains the best settings again with another seed.

    The score of the best trial is too high, because it won; the score of the new run is not.

    Args:
      run: The directory of the sweep.
      again: Number of settings to train again, each as long as a trial. The runs are kept for the next time. Default:
        3, or 0 while trials are running.
      storage: URL of the Optuna storage, if it is not `study.db` in the directory.
      out: The PNG file; by default `sweep.png` in the directory.
    """
    sweep = Sweep(run, storage=storage)
    print(sweep, flush=True)
    path = run / "sweep.png" if out is None else out
    sweep.plot(path)
    print(f"\n{path}\n", flush=True)
    running = any(trial["state"] == "running" for trial in sweep.trials)
    for trial in sweep.again((0 if running else 3) if again is None else again):
        second = "diverged" if trial["score_again"] is None else f"{trial['score_again']:,.4g}"
        scores = f"{trial['score']:,.4g} in the sweep, {second} with another seed"
        print(f"trial {trial['trial']}: {sweep.metric} {scores}", flush=True)


def export(run: RunDir, path: Annotated[Path, tyro.conf.arg(metavar="FILE")], /, *, which: Which = "best") -> None:
    """Writes the policy to one file that acts without the code of its network.

    Args:
      run: The run directory.
      path: The file; its name ends in `.stablehlo` or `.onnx`.
      which: The best policy of the run so far, or its last one.
    """
    load(_run_dir(run)).export(path, which=which)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def report(run: RunDir, /, *, out: Path | None = None) -> None:
    """Writes one HTML file with curves, rates, settings and the video, for a browser without a network.

    Args:
      run: The run directory.
      out: The file; by default `report.html` in the run directory.
    """
    print(html_report(_run_dir(run), out))


def info(run: RunDir, /) -> None:
    """Prints scores, steps and all settings of a run, or the header of an exported policy.

    Args:
      run: The run directory, or a file of `volvox export`.
    """
    if is_exported(run):
        shown = flat_settings(load(run).header)
    else:
        config = read_config(run)
        shown = {"task": task_of(config), **results(read_metrics(run / METRICS)), **flat_settings(config)}
    print("\n".join(f"{name}: {text}" for name, text in shown.items()))


def profile(run: RunDir, /, *, seconds: float = 10.0) -> None:
    """Measures the time of emulators, inference and learning or decoding of a run's algorithm.

    It plays at least three generations or iterations, which may take minutes.

    Args:
      run: The run directory. The algorithm begins anew; the run does not change.
      seconds: Length of each of the two measurements, after compilation.
    """
    algorithm = load(_run_dir(run)).algorithm
    print("playing at least three generations or iterations", file=sys.stderr)
    print(profile_algorithm(algorithm, seconds=seconds))


def doctor() -> None:
    """Prints versions and devices, and checks that JAX, envpool and ffmpeg work."""
    print(", ".join(f"{name} {version}" for name, version in versions().items()))
    print(f"{processor()}, {len(os.sched_getaffinity(0))} cores; JAX computes on {', '.join(map(str, jax.devices()))}")
    (group,) = envs.atari("Pong", num_envs=1, groups=1).make(0, host=True)
    group.recv(group.init())
    group.close()
    print(f"envpool plays Pong; ffmpeg {imageio_ffmpeg.get_ffmpeg_version()} is found")


def _run_dir(path: Path) -> Path:
    if is_exported(path):
        raise ValueError(f"{path} is an exported policy, and this command needs a run directory")
    return path


if __name__ == "__main__":
    sys.exit(main())
