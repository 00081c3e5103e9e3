"""Primal-dual π learning and the one-step actor-critic on CartPole-v1 (Cho & Wang 2017, arXiv 1712.02467).

python experiments/cartpole_primal_dual.py primal-dual --penalty 10 --name "primal-dual c 10"
python experiments/cartpole_primal_dual.py actor-critic --name actor-critic
python experiments/compare_runs.py --runs dual=runs/cartpole/DUAL td=runs/cartpole/TD --out runs/comparison
"""

import dataclasses
import sys

from launch import exit_code, read

import volvox as vx
from volvox.training import run_path


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
    """

    learner: vx.learners.PrimalDual
    name: str
    rates: tuple[float, ...] = (3e-3, 1e-3, 3e-4, 1e-4)
    seeds: int = 10
    iterations: int = 30
    num_envs: int = 1
    run_dir: str = "runs/cartpole"


DUAL, TD = (vx.learners.PrimalDual(critic=critic, timesteps_per_iteration=2_000) for critic in ("lagrangian", "td"))
PRESETS = {"primal-dual": ("The relaxed Lagrangian.", Settings(learner=DUAL, name="primal-dual"))}
PRESETS["actor-critic"] = ("One-step targets.", Settings(learner=TD, name="actor-critic"))


def main() -> int:
    given = read(PRESETS, __doc__)
    folder = run_path(given.run_dir)
    for rate in given.rates:
        learner = dataclasses.replace(given.learner, learning_rate=rate)
        place = folder / f"{given.name}, rate {rate:g}".replace(", ", "_").replace(" ", "_")
        for seed in range(given.seeds):
            algorithm = vx.learn(learner, vx.networks.CategoricalMLP(2), vx.envs.cartpole(num_envs=given.num_envs))
            how = {"run_dir": place / f"seed-{seed}", "resume": True, "progress": False, "loggers": ()}
            run = vx.train(algorithm, seed=seed, steps=given.iterations, **how)
            algorithm.close()
            print(place.name, f"seed {seed}:", round(run.metrics[-1]["training_mean"], 1), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
