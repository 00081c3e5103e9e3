"""Tunes PPO on CartPole: 12 settings with 4 seeds each, 48 learners in one program.

    python experiments/cartpole_sweep.py runs/cartpole_sweep          # once more: continues, or prints what was found

Beside the table and the picture (sweep.png), the time is written to `time.json` in the directory.
"""

import json
import sys
import time
from pathlib import Path

import optax

import volvox as vx


def make(settings):
    env, network = vx.envs.cartpole(num_envs=8), vx.networks.CategoricalMLP(2, (64, 64))
    ppo = vx.PPO(segment_length=64, num_minibatches=4, optimizer=optax.adam, **settings)
    return vx.learn(ppo, network, env, num_learners=4, evaluate_every=20_000)


if __name__ == "__main__":
    began, run_dir = time.perf_counter(), Path(sys.argv[1])
    space = {"learning_rate": vx.space.log(1e-4, 3e-2), "entropy_coefficient": vx.space.log(1e-4, 1e-1)}
    trials = {"num_trials": 12, "num_learners": 12, "max_timesteps": 40_000}
    sweep = vx.sweep(make, space, **trials, run_dir=run_dir, resume=True)
    sweep.plot(run_dir / "sweep.png")
    print(sweep)
    (run_dir / "time.json").write_text(json.dumps({"seconds": round(time.perf_counter() - began, 1)}) + "\n")
