"""A peer: a learner of Stable-Baselines3, for learning curves.

    python benchmarks/peers/sb3.py --job JOB

`experiments/benchmark.py` makes the JOB, a JSON object, and the environment in which this script runs. The keys are
`algorithm` (PPO, A2C, TD3 or SAC), `settings` (its keyword arguments), `anneal` (the learning rate falls linearly to
0), `network`, `task`, `num_envs`, `timesteps`, `every` (timesteps between two evaluations), `episodes` (of an
evaluation), `seed`, `normalize_observations`, `normalize_rewards` and `threads` (of PyTorch). `network` is "mlp" with
the widths `hidden` and the activation `activation`, "minatar" for images `[10, 10, C]`, or "nature" for Atari.

The last line of the output is a JSON object: `timesteps` and mean `returns` of the evaluations, played with the
likeliest actions, and `seconds` of learning without evaluations.
"""

import argparse
import json
import time
from typing import Any

import gymnasium as gym
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize
from torch import nn


class GymnaxEnvs(VecEnv):
    """Environments of gymnax, one compiled step for all."""

    def __init__(self, task: str, num_envs: int, seed: int):
        import gymnax
        import jax
        import jax.numpy as jnp

        env, params = gymnax.make(task)
        self._limit, self._key = int(params.max_steps_in_episode), jax.random.key(seed)
        params = params.replace(max_steps_in_episode=self._limit + 1)  # truncation is not termination
        shape = env.observation_space(params).shape
        super().__init__(num_envs, gym.spaces.Box(0.0, 1.0, shape), gym.spaces.Discrete(env.num_actions))

        def reset(key: Any) -> Any:
            return jax.vmap(env.reset_env, (0, None))(jax.random.split(key, num_envs), params)

        def step(key: Any, state: Any, action: Any, elapsed: Any) -> Any:
            step_key, reset_key, key = jax.random.split(key, 3)
            keys = jax.random.split(step_key, num_envs)
            last, state, reward, terminated, _ = jax.vmap(env.step_env, (0, 0, 0, None))(keys, state, action, params)
            ended = terminated | (elapsed >= self._limit)
            choose = jax.vmap(lambda ended, new, old: jax.tree.map(lambda x, y: jnp.where(ended, x, y), new, old))
            observation, state = choose(ended, reset(reset_key), (last, state))
            return key, state, (observation, last, reward, terminated, ended)

        self._reset, self._step, self._split = jax.jit(reset), jax.jit(step), jax.jit(jax.random.split)

    def reset(self) -> np.ndarray:
        """Begins all episodes."""
        self._key, key = self._split(self._key)
        observation, self._state = self._reset(key)
        self._elapsed = np.zeros(self.num_envs, np.int32)
        return np.asarray(observation)

    def step_async(self, actions: np.ndarray) -> None:
        """Keeps the actions."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Takes a step."""
        self._elapsed += 1
        self._key, self._state, found = self._step(self._key, self._state, self._actions, self._elapsed)
        observation, last, reward, terminated, ended = map(np.asarray, found)
        self._elapsed = np.where(ended, 0, self._elapsed)
        infos: list[dict[str, Any]] = [{} for _ in ended]
        for i in np.flatnonzero(ended):
            infos[i] = {"terminal_observation": last[i], "TimeLimit.truncated": bool(~terminated[i])}
        return observation, reward, ended, infos

    def close(self) -> None:
        """Does nothing."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Returns None for each environment; there are no objects."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Does nothing."""

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Returns None for each environment."""
        return [None] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Returns False for each environment."""
        return [False] * self.num_envs


class MinAtarTorso(BaseFeaturesExtractor):
    """16@3x3, dense 128."""

    def __init__(self, observation_space: Any):
        super().__init__(observation_space, features_dim=128)
        height, width, channels = observation_space.shape
        features = 16 * (height - 2) * (width - 2)
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(features, 128), nn.ReLU())
        )

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Features `[B, 128]` of images `[B, H, W, C]`."""
        return self.layers(observation.permute(0, 3, 1, 2))


def make_envs(job: dict[str, Any], num_envs: int, seed: int, *, training: bool) -> VecEnv:
    """Makes environments. On Atari, lost lives end episodes, FIRE begins them, and only training clips rewards."""
    task = job["task"]
    if job["network"] == "minatar":
        return GymnaxEnvs(task, num_envs, seed)
    if job["network"] == "nature":
        import ale_py  # has the games of Atari

        gym.register_envs(ale_py)
        options = {"clip_reward": training}
        return VecFrameStack(make_atari_env(task, num_envs, seed, wrapper_kwargs=options), 4)
    return make_vec_env(task, num_envs, seed)


def evaluate(model: Any, envs: VecEnv) -> float:
    """Returns the mean return of the first episode or game of each environment, by likeliest actions."""
    normalizer, observation = model.get_vec_normalize_env(), envs.reset()
    returns, done = np.zeros(envs.num_envs), np.zeros(envs.num_envs, bool)
    while not done.all():
        observation = normalizer.normalize_obs(observation) if normalizer is not None else observation
        observation, reward, ended, infos = envs.step(model.predict(observation, deterministic=True)[0])
        returns += np.where(done, 0.0, reward)
        # `Monitor` adds "episode" at the end of a game of Atari, and not at a lost life.
        done |= ended & np.array(["lives" not in info or "episode" in info for info in infos])
    return float(returns.mean())


class Evaluations(BaseCallback):
    """Evaluates between an update and the next rollout."""

    def __init__(self, job: dict[str, Any]):
        super().__init__()
        self.job, self.every, self.envs = job, job["every"], None
        self.timesteps: list[int] = []
        self.returns: list[float] = []
        self.seconds = 0.0

    def _on_rollout_start(self) -> None:
        if self.num_timesteps // self.every > (self.timesteps[-1] if self.timesteps else 0) // self.every:
            self.add(self.model)

    def add(self, model: Any) -> None:
        """Adds an evaluation."""
        began = time.perf_counter()
        self.timesteps.append(model.num_timesteps)
        if self.envs is None:
            seed = self.job["seed"] + 1_003 * len(self.timesteps)
            self.envs = make_envs(self.job, self.job["episodes"], seed, training=False)
        self.returns.append(evaluate(model, self.envs))
        if self.job["network"] == "nature":  # a game of Atari cannot be reset before its end
            self.envs.close()
            self.envs = None
        self.seconds += time.perf_counter() - began

    def _on_step(self) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", type=json.loads, required=True)
    job = parser.parse_args().job
    torch.set_num_threads(job["threads"])
    envs = make_envs(job, job["num_envs"], job["seed"], training=True)
    normalize = {"norm_obs": job["normalize_observations"], "norm_reward": job["normalize_rewards"]}
    if any(normalize.values()):
        envs = VecNormalize(envs, **normalize, gamma=job["settings"]["gamma"])
    settings, policy = dict(job["settings"]), "CnnPolicy" if job["network"] == "nature" else "MlpPolicy"
    policy_kwargs: dict[str, Any] = {}
    if job["network"] == "mlp":
        activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[job["activation"]]
        policy_kwargs = {"net_arch": job["hidden"], "activation_fn": activation}
    elif job["network"] == "minatar":
        policy_kwargs = {"net_arch": [], "activation_fn": nn.ReLU, "features_extractor_class": MinAtarTorso}
    if job["anneal"]:
        # As in volvox, the first round has the whole rate. Stable-Baselines3 reduces it before the round's updates.
        rate, first = settings["learning_rate"], job["num_envs"] * settings["n_steps"] / job["timesteps"]
        settings["learning_rate"] = lambda remaining: rate * min(max(remaining + first, 0.0), 1.0)
    if "action_noise" in settings:
        size = envs.action_space.shape
        settings["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, settings["action_noise"]))
    make = getattr(stable_baselines3, job["algorithm"])
    model = make(policy, envs, policy_kwargs=policy_kwargs, seed=job["seed"], device="cpu", **settings)
    evaluations = Evaluations(job)
    began = time.perf_counter()
    model.learn(job["timesteps"], callback=evaluations)
    seconds = time.perf_counter() - began - evaluations.seconds
    if evaluations.timesteps[-1:] != [model.num_timesteps]:
        evaluations.add(model)
    versions = {"stable_baselines3": stable_baselines3.__version__, "torch": torch.__version__}
    found = {"timesteps": evaluations.timesteps, "returns": evaluations.returns, "seconds": seconds}
    print(json.dumps(found | {"versions": versions | {"gymnasium": gym.__version__}}))


if __name__ == "__main__":
    main()
