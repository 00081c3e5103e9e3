"""A peer: PPO in PyTorch on envpool, written from the paper (arXiv 1707.06347), as one would write it there, for speed.

    python -m venv torchenv && torchenv/bin/pip install torch envpool==1.2.5 gymnasium numpy
    torchenv/bin/python benchmarks/peers/torch_ppo.py --preset atari --task Pong
    python benchmarks/ppo.py --peers --python torchenv/bin/python

One synchronous pool, channels-last memory, observations kept as bytes until they are used, and the fused Adam where
there is one. PyTorch's threads and the size of the parts in which a minibatch's gradient is computed are tuned before
anything is timed.
"""

import argparse
import functools
import json
import math
import os
import statistics
import time
from collections.abc import Callable

import envpool
import numpy as np
import torch
from torch import nn


def layer(made: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """A layer with orthogonal weights."""
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Atari(nn.Module):
    """DQN's convolutions, logits and a value."""

    def __init__(self, num_actions: int):
        super().__init__()
        self.torso = nn.Sequential(
            *(layer(nn.Conv2d(4, 32, 8, 4)), nn.ReLU(), layer(nn.Conv2d(32, 64, 4, 2)), nn.ReLU()),
            *(layer(nn.Conv2d(64, 64, 3, 1)), nn.ReLU(), nn.Flatten(), layer(nn.Linear(64 * 7 * 7, 512)), nn.ReLU()),
        )
        self.policy, self.value = layer(nn.Linear(512, num_actions), 0.01), layer(nn.Linear(512, 1), 1.0)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(logarithms of probabilities `[B, A]`, values `[B]`) of bytes `[B, 4, 84, 84]`."""
        x = self.torso(observation.to(torch.float32, memory_format=torch.channels_last).div_(255))
        return self.policy(x).log_softmax(-1), self.value(x)[:, 0]

    def sample(self, output: torch.Tensor) -> torch.Tensor:
        """Draws actions."""
        return (output - torch.empty_like(output).exponential_().log_()).argmax(-1)

    def log_prob(self, output: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Logarithms of the probabilities of actions."""
        return output.gather(-1, action[:, None])[:, 0]

    def entropy(self, output: torch.Tensor) -> torch.Tensor:
        """Entropies."""
        return -(output.exp() * output).sum(-1)


class MuJoCo(nn.Module):
    """Two perceptrons, and deviations that are parameters."""

    def __init__(self, num_inputs: int, size: int):
        super().__init__()

        def perceptron(outputs: int, gain: float) -> nn.Module:
            hidden = (layer(nn.Linear(num_inputs, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh())
            return nn.Sequential(*hidden, layer(nn.Linear(64, outputs), gain))

        self.mean, self.value = perceptron(size, 0.01), perceptron(1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(size))

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(means `[B, A]`, values `[B]`) of observations `[B, n]`."""
        return self.mean(observation), self.value(observation)[:, 0]

    def sample(self, output: torch.Tensor) -> torch.Tensor:
        """Draws actions."""
        return output + self.log_std.exp() * torch.randn_like(output)

    def log_prob(self, output: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Logarithms of the probabilities of actions."""
        squares = (((action - output) * (-self.log_std).exp()) ** 2).sum(-1)
        return -0.5 * squares - self.log_std.sum() - 0.5 * math.log(2 * math.pi) * output.shape[-1]

    def entropy(self, output: torch.Tensor) -> torch.Tensor:
        """Entropies."""
        return (self.log_std.sum() + 0.5 * math.log(2 * math.pi * math.e) * output.shape[-1]).expand(len(output))


class Moments:
    """Running mean and variance of numbers `[n...]`."""

    def __init__(self, shape: tuple[int, ...]):
        self.num, self.mean, self.var = 1e-4, np.zeros(shape), np.ones(shape)

    def update(self, x: np.ndarray) -> None:
        """Adds numbers `[B, n...]`."""
        b, total = len(x), self.num + len(x)
        difference = x.mean(0) - self.mean
        squares = self.var * self.num + x.var(0) * b + difference**2 * self.num * b / total
        self.mean, self.var, self.num = self.mean + difference * b / total, squares / total, total


def gradient(net, clip: float, entropy_weight: float, data: tuple[torch.Tensor, ...], part: int) -> None:
    """Adds the gradient of a minibatch, in parts."""
    observation, action, old_log_prob, advantage, target, old_value, valid = data
    count = valid.sum().clamp(min=1)
    mean = (advantage * valid).sum() / count
    deviation = (((advantage - mean) ** 2 * valid).sum() / (count - 1).clamp(min=1)).sqrt()
    advantage = (advantage - mean) / (deviation + 1e-8)
    for i in range(0, len(action), part):
        x = slice(i, i + part)
        output, value = net(observation[x])
        ratio = (net.log_prob(output, action[x]) - old_log_prob[x]).exp()
        gain = torch.minimum(ratio * advantage[x], ratio.clamp(1 - clip, 1 + clip) * advantage[x])
        near = old_value[x] + (value - old_value[x]).clamp(-clip, clip)
        error = torch.maximum((value - target[x]) ** 2, (near - target[x]) ** 2)
        loss = -gain + 0.25 * error
        if entropy_weight:
            loss = loss - entropy_weight * net.entropy(output)
        ((loss * valid[x]).sum() / count).backward()


def tuned(
    net: nn.Module, data: tuple[torch.Tensor, ...], learn: Callable, batch: int, size: int
) -> tuple[int, int, int]:
    """Returns the fastest combination: (threads for acting, threads for learning, timesteps of a micro-batch).

    `batch` environments act at once, and `learn(data, chosen, part)` learns from `size` of the timesteps `data`.
    """

    def seconds(call: Callable[[], object]) -> float:
        times = []
        for _ in range(6):
            began = time.perf_counter()
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return statistics.median(times[1:])

    acting, learning = [], []
    for number in {1, len(os.sched_getaffinity(0))}:
        torch.set_num_threads(number)
        with torch.no_grad():
            acting.append((seconds(lambda: [net(data[0][:batch]) for _ in range(10)]), number))
        for part in sorted({p for p in (32, 64, 128, 256, size) if p <= size}):
            some = functools.partial(learn, data, torch.randperm(len(data[0]), device=data[0].device)[:size], part)
            learning.append((seconds(some), number, part))
    return min(acting)[1], *min(learning)[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="atari", choices=["atari", "mujoco"])
    parser.add_argument("--task", default="Pong")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--segment-length", type=int, default=128)
    parser.add_argument("--num-epochs", type=int, default=4)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high")  # as JAX multiplies on a GPU
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    atari, n, length = options.preset == "atari", options.num_envs, options.segment_length
    name = f"{options.task}-v5" if atari else options.task
    pool = envpool.make(name, env_type="gymnasium", num_envs=n, num_threads=threads, seed=0)
    shape = pool.observation_space.shape
    if atari:
        net = Atari(int(pool.action_space.n)).to(memory_format=torch.channels_last)
    else:
        net = MuJoCo(shape[0], pool.action_space.shape[0])
    clip, entropy_weight = (0.1, 0.01) if atari else (0.2, 0.0)
    optimizer = torch.optim.Adam(net.parameters(), lr=2.5e-4, eps=1e-5, fused=True)
    size = n * length // options.num_minibatches

    observations = torch.zeros((length, n, *shape), dtype=torch.uint8 if atari else torch.float32)
    actions = (
        torch.zeros((length, n), dtype=torch.long) if atari else torch.zeros((length, n, *pool.action_space.shape))
    )
    log_probs, values, rewards, valid = (torch.zeros((length, n)) for _ in range(4))
    terminations, truncations = (torch.zeros((length, n)) for _ in range(2))
    seen_moments, return_moments, running = Moments(shape), Moments(()), np.zeros(n)

    def given(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x).to(observations.device)

    def normalized(seen: np.ndarray) -> torch.Tensor:
        if atari:
            return given(seen)
        seen_moments.update(seen)
        scaled = (seen - seen_moments.mean) / np.sqrt(seen_moments.var + 1e-8)
        return given(np.clip(scaled, -10, 10).astype(np.float32))

    def learn(data: tuple[torch.Tensor, ...], chosen: torch.Tensor, part: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        gradient(net, clip, entropy_weight, tuple(x[chosen] for x in data), part)
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()

    shapes = (observations, actions, log_probs, log_probs, log_probs, values, values + 1)
    flat = tuple(x.flatten(0, 1) for x in shapes)
    torch.set_default_device(None)  # it slows every call
    acting_threads, learning_threads, part = tuned(net, flat, learn, n, size)
    seen = normalized(pool.reset()[0])
    dummy, lives = np.zeros(n, bool), np.zeros(n)  # envpool discards the action after an end
    began, rounds = time.perf_counter(), -1
    while rounds < 1 or time.perf_counter() - began < options.seconds:
        if rounds == 0:
            began = time.perf_counter()
        torch.set_num_threads(acting_threads)
        for t in range(length):
            observations[t] = seen
            with torch.no_grad():
                output, values[t] = net(seen)
                actions[t] = net.sample(output)
                log_probs[t] = net.log_prob(output, actions[t])
            action = actions[t].cpu().numpy()
            action = action.astype(np.int32) if atari else np.clip(action, -1, 1).astype(np.float64)
            raw, reward, terminated, truncated, info = pool.step(action)
            ended = terminated | truncated
            if atari:
                lost, lives = ~dummy & (info["lives"] < lives), info["lives"]
                terminated, reward = terminated | lost, np.clip(reward, -1, 1)
            else:
                running = np.where(dummy, running, running * 0.99 + reward)
                return_moments.update(running)
                running = np.where(terminated, 0.0, running)
                reward = np.clip(reward / np.sqrt(return_moments.var + 1e-8), -10, 10)
            rewards[t] = given(reward.astype(np.float32))
            terminations[t], truncations[t] = given(terminated), given(truncated)
            valid[t] = given(~dummy)
            dummy, seen = ended, normalized(raw)
        with torch.no_grad():
            following = net(seen)[1]
        advantages, gae = torch.zeros_like(values), torch.zeros_like(values[0])
        for t in reversed(range(length)):
            going_on = 0.99 * (1 - terminations[t])
            delta = rewards[t] + going_on * following - values[t]
            advantages[t] = gae = delta + going_on * 0.95 * (1 - truncations[t]) * gae
            following = values[t]
        rows = (observations, actions, log_probs, advantages, advantages + values, values, valid)
        flat = tuple(x.flatten(0, 1) for x in rows)
        torch.set_num_threads(learning_threads)
        for _ in range(options.num_epochs):
            for chosen in torch.randperm(n * length, device=values.device).split(size):
                learn(flat, chosen, part)
        rounds += 1
    rate = rounds * n * length / (time.perf_counter() - began)
    tuned_to = {"acting_threads": acting_threads, "learning_threads": learning_threads, "part": part}
    print(json.dumps({"steps_per_s": rate, **tuned_to, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
