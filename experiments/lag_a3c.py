"""Learning against policy lag: the same actor-critic, acting with parameters that are 0, 1, 2, ... updates old.

    python experiments/lag_a3c.py --task HalfCheetah --lags 0 1 2 4 8 16 --seeds 3 --run-dir runs/lag

The lag is exact, by the schedule (`lag` of `volvox.A3C`). Each lag but 0 is trained with V-trace too (`--ways`).
Writes `lag.json` and `lag.png`: the mean return of the last 100 training episodes, and of each seed.
"""

import dataclasses
import json
import sys
from typing import Any, Literal

import numpy as np
import tyro
from launch import exit_code
from matplotlib.figure import Figure

import volvox as vx
from volvox.training import run_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Learning against lag.

    Attributes:
      task: Name of a MuJoCo task.
      lags: Rounds between acting and learning; each round is an update.
      ways: How returns are computed; at lag 0 there is nothing for V-trace to correct.
      seeds: Runs of each lag. There are no directories `seed-N`: one file has the returns of all seeds.
      frames: Simulator frames of a run (about).
      num_envs: Environments.
      segment_length: Timesteps of a segment.
      learning_rate: Learning rate of Adam.
      run_dir: Directory of the result.
    """

    task: str = "HalfCheetah"
    lags: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    ways: tuple[Literal["V-trace", "plain returns"], ...] = ("V-trace", "plain returns")
    seeds: int = 3
    frames: int = 10_000_000
    num_envs: int = 32
    segment_length: int = 20
    learning_rate: float = 3e-4
    run_dir: str = "runs/lag"


def make_algorithm(settings: Settings, lag: int, vtrace: bool) -> vx.Algorithm:
    """The actor-critic of one lag; its one iteration is the whole run. Raises ValueError for bad settings."""
    env = vx.envs.mujoco(settings.task, num_envs=settings.num_envs, groups=2)
    (components,) = env.spec.action_shape or (0,)
    learner = dataclasses.replace(
        vx.A3C.mujoco(),
        lag=lag,
        vtrace=vtrace,
        segment_length=settings.segment_length,
        learning_rate=settings.learning_rate,
    )
    frames_per_update = learner.frames_per_update(env)
    episode = env.spec.max_episode_steps * env.num_envs * env.spec.frame_skip
    if settings.frames < 2 * max(episode, frames_per_update * lag):
        raise ValueError(f"frames={settings.frames}: episodes must end, and updates be more than the lag; give more.")
    learner = dataclasses.replace(learner, updates_per_iteration=settings.frames // frames_per_update)
    return vx.learn(learner, vx.networks.GaussianMLP(components), env)


def final_return(algorithm: vx.Algorithm, lag: int, seed: int) -> float | None:
    """Mean return of the last 100 training episodes; None if learning diverged."""
    try:
        run = vx.train(algorithm, seed=seed, steps=1, progress=False)
    except FloatingPointError:
        return None
    finally:
        algorithm.close()
    if run.interrupted:
        raise SystemExit(run.exit_code)
    assert run.metrics[-1]["lag_max"] == lag
    return run.metrics[-1]["training_mean"]


def draw(settings: Settings, results: dict[str, dict[str, list[float | None]]]) -> Figure:
    """Mean over seeds with its range, against lag; seeds that diverged are left out."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, by_lag in results.items():
        if not by_lag:
            continue
        places = [settings.lags.index(int(lag)) for lag in by_lag]
        values = np.array(list(by_lag.values()), float)
        mean = np.nanmean(values, axis=1)
        spread = [mean - np.nanmin(values, axis=1), np.nanmax(values, axis=1) - mean]
        axes.errorbar(places, mean, yerr=spread, marker="o", capsize=3, label=name)
    axes.set_xticks(range(len(settings.lags)), [str(lag) for lag in settings.lags])
    axes.set_xlabel("lag (updates between acting and learning)")
    axes.set_ylabel("return, last 100 training episodes")
    axes.set_title(f"{settings.task}, {settings.frames:,} frames, {settings.seeds} seeds: mean and range")
    axes.legend()
    return figure


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    for lag in settings.lags:
        make_algorithm(settings, lag, False)
    folder = run_path(settings.run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, list[float | None]]] = {way: {} for way in settings.ways}
    for lag in settings.lags:
        for name in results:
            if name == "V-trace" and lag == 0:
                continue  # nothing to correct
            returns: list[float | None] = []
            results[name][str(lag)] = returns
            for seed in range(settings.seeds):
                returns.append(final_return(make_algorithm(settings, lag, name == "V-trace"), lag, seed))
                said = "diverged" if returns[-1] is None else f"{returns[-1]:.1f}"
                print(f"lag {lag}, {name}, seed {seed}: {said}", flush=True)
                written: dict[str, Any] = {"settings": dataclasses.asdict(settings), "returns": results}
                (folder / "lag.json").write_text(json.dumps(written, indent=1) + "\n")
    draw(settings, results).savefig(folder / "lag.png", dpi=100)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
