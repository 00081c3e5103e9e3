"""A peer: PPO of Stable-Baselines3 on CartPole, with CleanRL's constants, for speed.

    python -m venv sb3env && sb3env/bin/pip install stable-baselines3
    sb3env/bin/python benchmarks/peers/sb3_ppo.py --timesteps 50000

It steps the environments in its own process (`DummyVecEnv`), and computes with one thread.
"""

import argparse
import json
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=500_000)
    parser.add_argument("--num-envs", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)  # faster than two for networks of this size
    envs = make_vec_env("CartPole-v1", n_envs=options.num_envs, seed=0)
    minibatch = 128 * options.num_envs // 4
    model = PPO("MlpPolicy", envs, n_steps=128, batch_size=minibatch, n_epochs=4, ent_coef=0.01, device="cpu")
    model.learn(128 * options.num_envs)  # the first calls are slower
    began = time.perf_counter()
    model.learn(options.timesteps)
    seconds = (time.perf_counter() - began) * options.timesteps / model.num_timesteps
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
