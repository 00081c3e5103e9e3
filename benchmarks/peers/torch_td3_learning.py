"""A peer: TD3 in PyTorch on one environment, to compare learning at equal timesteps.

    python -m venv /tmp/torch && /tmp/torch/bin/pip install torch "gymnasium[mujoco]"
    /tmp/torch/bin/python benchmarks/peers/torch_td3_learning.py --seeds 0 1 2 --out curves.json

The loop of the authors' code (github.com/sfujim/TD3), with the constants of the paper (Fujimoto et al. 2018, arXiv
1802.09477): one update after each timestep that follows the random ones. Networks are two layers of 256 units.
"""

import argparse
import json
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import nn
from torch_td3 import TD3

EXPLORATION_NOISE, EPISODES = 0.1, 10


def evaluate(actor: nn.Module, env: gymnasium.Env, seed: int) -> float:
    returns = 0.0
    for episode in range(EPISODES):
        observation, ended = env.reset(seed=seed + episode)[0], False
        while not ended:
            with torch.no_grad():
                action = torch.tanh(actor(torch.as_tensor(observation, dtype=torch.float32))).numpy()
            observation, reward, terminated, truncated, _ = env.step(action)
            returns, ended = returns + float(reward), terminated or truncated
    return returns / EPISODES


def train(options: argparse.Namespace, seed: int) -> dict:
    torch.manual_seed(seed)
    random, began = np.random.default_rng(seed), time.perf_counter()
    env, evaluation_env = gymnasium.make(options.task), gymnasium.make(options.task)
    o, a = env.observation_space.shape[0], env.action_space.shape[0]  # actions are in [-1, 1]
    td3 = TD3(o, a, learning_rate=options.learning_rate)
    # Observation, action, reward, terminated, next observation.
    replay = [np.zeros((options.timesteps, size), np.float32) for size in (o, a, 1, 1, o)]

    evaluations, observation = {}, env.reset(seed=seed)[0]
    for t in range(options.timesteps):
        if t < options.random_timesteps:
            action = random.uniform(-1, 1, a).astype(np.float32)
        else:
            with torch.no_grad():
                action = torch.tanh(td3.actor(torch.as_tensor(observation, dtype=torch.float32))).numpy()
            action = np.clip(action + random.normal(0, EXPLORATION_NOISE, a), -1, 1).astype(np.float32)
        following, reward, terminated, truncated, _ = env.step(action)
        for rows, row in zip(replay, (observation, action, reward, terminated, following), strict=True):
            rows[t] = row
        observation = env.reset()[0] if terminated or truncated else following
        if t >= options.random_timesteps:
            chosen = random.integers(t + 1, size=options.batch_size)
            td3.update(t - options.random_timesteps + 1, [torch.from_numpy(x[chosen]) for x in replay])
        if (t + 1) % options.evaluate_every == 0:
            evaluations[t + 1] = evaluate(td3.actor, evaluation_env, 1_000_003 + seed * 1_000 + t)
    return {"seed": seed, "evaluations": evaluations, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--task", default="HalfCheetah-v5")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--timesteps", type=int, default=40_000)
    parser.add_argument("--random-timesteps", type=int, default=10_000)
    parser.add_argument("--evaluate-every", type=int, default=5_000)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="JSON file; seeds that it has are not run again")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    runs = json.loads(options.out.read_text())["runs"] if options.out.exists() else []
    settings = {name: value for name, value in vars(options).items() if name not in ("seeds", "out", "threads")}
    for seed in options.seeds:
        if all(run["seed"] != seed for run in runs):
            runs.append(train(options, seed))
            print(runs[-1], flush=True)
            versions = {"torch": torch.__version__, "gymnasium": gymnasium.__version__}
            options.out.write_text(json.dumps({"settings": settings, "versions": versions, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
