"""Primal-dual π learning and the one-step actor-critic on CartPole-v1 (Cho & Wang 2017, arXiv 1712.02467).

    python experiments/cartpole_primal_dual.py primal-dual --penalty 10 --name dual --rates 1e-3
    python experiments/cartpole_primal_dual.py actor-critic --name td --rates 1e-3
    python experiments/compare_runs.py --runs dual=runs/cartpole/dual_rate_0.001 td=runs/cartpole/td_rate_0.001 \
        --out runs/comparison

Ctrl-C saves the run in progress, and the same call with --resume goes on with it.
"""

import dataclasses
import math
import sys
from pathlib import Path

from launch import exit_code, read

import volvox as vx
from volvox._checks import integers
from volvox.runs.train import run_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """One learner on CartPole, with several seeds at each learning rate.

    Attributes:
      name: What to call the learner.
      rates: Learning rates of Adam, each in place of --learning-rate.
      seeds: Runs at each rate.
      iterations: Iterations of each run.
      num_envs: Environments whose transitions share an update.
      run_dir: Where the runs of all calls go, those of a learner and a rate in a directory of their own.
      resume: Go on with the runs in `run_dir`.
    """

    learner: vx.learners.PrimalDual
    name: str
    rates: tuple[float, ...] = (3e-3, 1e-3, 3e-4, 1e-4)
    seeds: int = 10
    iterations: int = 30
    num_envs: int = 1
    run_dir: str = "runs/cartpole"
    resume: bool = False

    def __post_init__(self):
        integers(self, "seeds", "iterations", "num_envs", low=1)


DUAL, TD = (vx.learners.PrimalDual(critic=critic, timesteps_per_iteration=2_000) for critic in ("lagrangian", "td"))
PRESETS = {"primal-dual": ("The relaxed Lagrangian.", Settings(learner=DUAL, name="primal-dual"))}
PRESETS["actor-critic"] = ("One-step targets.", Settings(learner=TD, name="actor-critic"))


def learn(settings: Settings, algorithm: vx.Algorithm, place: Path, seed: int) -> int:
    """Trains one run, or goes on with it; prints what it learned. Returns its exit code, 1 where learning diverged."""
    how = {"run_dir": place / f"seed-{seed}", "resume": settings.resume, "progress": False, "loggers": ()}
    try:
        run = vx.train(algorithm, seed=seed, steps=settings.iterations, **how)
    except FloatingPointError as error:
        print(place.name, f"seed {seed} diverged: {error}", flush=True)
        return 1
    finally:
        algorithm.close()
    if not run.interrupted:
        print(place.name, f"seed {seed}: {run.metrics[-1].get('training_mean', math.nan):.1f}", flush=True)
    return run.exit_code


def main() -> int:
    settings = read(PRESETS, __doc__)
    learners = {rate: dataclasses.replace(settings.learner, learning_rate=rate) for rate in settings.rates}
    folder, failed = run_path(settings.run_dir), 0
    for rate, learner in learners.items():
        place = folder / f"{settings.name}, rate {rate:g}".replace(", ", "_").replace(" ", "_")
        for seed in range(settings.seeds):
            env = vx.envs.cartpole(num_envs=settings.num_envs)
            algorithm = vx.learn(learner, vx.networks.CategoricalMLP(2), env)
            code = learn(settings, algorithm, place, seed)
            if code > 1:  # an interrupt
                return code
            failed |= code
    return failed


if __name__ == "__main__":
    sys.exit(exit_code(main))
