"""Learning against policy lag: the same actor-critic, acting with parameters that are 0, 1, 2, ... updates old.

    python experiments/lag_a3c.py --task HalfCheetah --lags 0 1 2 4 8 16 --seeds 3 --run-dir runs/lag

The lag is exact, by the schedule (`lag` of `volvox.A3C`). Each lag but 0 is trained with V-trace too (`--ways`). Every
run has a directory of its own; Ctrl-C saves it, and the same call with --resume continues it. The script writes
`lag.json` and `lag.png`: the mean return of the last 100 training episodes, and the curve, of each seed.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from launch import exit_code, once
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scores import made_with

import volvox as vx
from volvox._checks import integers
from volvox.report.files import write_file
from volvox.runs.train import run_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Learning against lag.

    Attributes:
      task: Name of a MuJoCo task.
      lags: Rounds between acting and learning; each round is an update.
      ways: Ways to compute returns; at lag 0 V-trace has nothing to correct.
      seeds: Runs of each lag.
      frames: Simulator frames of a run (about).
      iterations: Iterations of a run, and so points of its curve.
      num_envs: Environments.
      segment_length: Timesteps of a segment.
      learning_rate: Learning rate of Adam.
      run_dir: Directory of the result.
      resume: Continue the runs in `run_dir`.
    """

    task: str = "HalfCheetah"
    lags: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    ways: tuple[Literal["V-trace", "plain returns"], ...] = ("V-trace", "plain returns")
    seeds: int = 3
    frames: int = 10_000_000
    iterations: int = 20
    num_envs: int = 32
    segment_length: int = 20
    learning_rate: float = 3e-4
    run_dir: str = "runs/lag"
    resume: bool = False

    def __post_init__(self):
        integers(self, "seeds", "iterations", low=1)


def make_algorithm(settings: Settings, lag: int, vtrace: bool) -> vx.Algorithm:
    """The actor-critic of one lag. Raises ValueError for bad settings."""
    env = vx.envs.mujoco(settings.task, num_envs=settings.num_envs, groups=2)
    learner = dataclasses.replace(
        vx.A3C.mujoco(),
        lag=lag,
        vtrace=vtrace,
        segment_length=settings.segment_length,
        learning_rate=settings.learning_rate,
    )
    rounds = settings.frames // (learner.schedule(env).beats_per_round * env.num_envs * env.spec.frame_skip)
    updates = rounds // (learner.rounds_per_update * settings.iterations)
    if updates < 1 or updates * settings.iterations < 2 * lag:
        raise ValueError(f"frames={settings.frames} are too few for iterations={settings.iterations} and lag={lag}")
    learner = dataclasses.replace(learner, updates_per_iteration=updates)
    return vx.learn(learner, vx.networks.GaussianMLP(env.spec.num_outputs), env)


def learned(algorithm: vx.Algorithm, settings: Settings, folder: Path, seed: int) -> dict[str, Any]:
    """Trains or resumes one run.

    Returns:
      `return`, the mean of the last 100 training episodes, or None if learning diverged; `frames` and `training_mean`,
      the curve; `lag_max`, the measured lag; `seconds` of training.
    """
    run_dir, resume = folder / f"seed-{seed}", settings.resume
    how = {"run_dir": run_dir, "resume": resume, "progress": False, "loggers": ()}
    try:
        with once(run_dir, resume=resume):
            run = vx.train(algorithm, seed=seed, steps=settings.iterations, **how)
    except FloatingPointError:
        return {"return": None}
    finally:
        algorithm.close()
    if run.interrupted:
        raise SystemExit(run.exit_code)
    if "training_mean" not in run.metrics[-1]:
        raise ValueError(f"frames={settings.frames} are too few: no episode has ended; give more.")
    curve = {name: [row.get(name) for row in run.metrics] for name in ("frames", "training_mean")}
    last = run.metrics[-1]
    return {"return": last["training_mean"], **curve, "lag_max": last["lag_max"], "seconds": last["seconds"]}


def draw(settings: Settings, runs: dict[str, dict[str, list[dict[str, Any]]]]) -> Figure:
    """Mean over seeds with its range, against lag, and each way's curves; seeds that diverged are left out."""
    figure = Figure(figsize=(5 + 4 * len(runs), 4), layout="constrained")
    against_lag, *curves = figure.subplots(1, 1 + len(runs), sharey=True)
    for (way, by_lag), axes in zip(runs.items(), curves, strict=True):
        axes.set(title=f"{way}: mean over seeds", xlabel="frames")
        for lag, seeds in by_lag.items():
            kept = [seed for seed in seeds if seed["return"] is not None]
            if not kept:
                continue
            final = np.array([seed["return"] for seed in kept])
            spread = [[final.mean() - final.min()], [final.max() - final.mean()]]
            color = f"C{list(runs).index(way)}"
            against_lag.errorbar(settings.lags.index(int(lag)), final.mean(), spread, fmt="o", capsize=3, color=color)
            frames, means = (np.array([seed[name] for seed in kept], float) for name in ("frames", "training_mean"))
            axes.plot(frames.mean(0), means.mean(0), label=f"lag {lag}")
        axes.legend()
    against_lag.set_xticks(range(len(settings.lags)), [str(lag) for lag in settings.lags])
    against_lag.set(xlabel="lag (updates between acting and learning)", ylabel="return, last 100 training episodes")
    against_lag.set_title("at the end: mean and range")
    figure.suptitle(f"{settings.task}, {settings.frames:,} frames, {settings.seeds} seeds")
    against_lag.legend([Line2D([], [], marker="o", color=f"C{i}") for i in range(len(runs))], list(runs))
    return figure


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    for lag in settings.lags:
        algorithm = make_algorithm(settings, lag, False)
        settings = dataclasses.replace(settings, task=algorithm.env.spec.name)  # with its version
    folder = run_path(settings.run_dir)
    if folder.exists() and any(folder.iterdir()) and not settings.resume:
        raise FileExistsError(f"{folder} already holds files; give another --run-dir, or --resume.")
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {way: {} for way in settings.ways}
    for lag in settings.lags:
        for way, by_lag in runs.items():
            if way == "V-trace" and lag == 0:
                continue  # nothing to correct
            place, seeds = folder / f"{way}, lag {lag}".replace(", ", "_").replace(" ", "_"), []
            by_lag[str(lag)] = seeds
            for seed in range(settings.seeds):
                seeds.append(learned(make_algorithm(settings, lag, way == "V-trace"), settings, place, seed))
                said = "diverged" if seeds[-1]["return"] is None else f"{seeds[-1]['return']:.1f}"
                print(f"lag {lag}, {way}, seed {seed}: {said}", flush=True)
                text = json.dumps({**made_with(settings), "runs": runs})
                write_file(folder / "lag.json", text + "\n")
    draw(settings, runs).savefig(folder / "lag.png", dpi=100)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
