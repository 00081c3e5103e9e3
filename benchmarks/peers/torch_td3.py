"""A peer: TD3's update in PyTorch, as one would write it there, for speed.

    python benchmarks/peers/torch_td3.py --observation 17 --action 6

Adam is the fused one, over both critics at once, targets move by one call for all, and batches are drawn from tensors
that hold the replay. The constants are those of the paper (Fujimoto et al. 2018, arXiv 1802.09477).
"""

import argparse
import copy
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import get_ema_multi_avg_fn

DISCOUNT, TARGET_RATE, POLICY_DELAY = 0.99, 0.005, 2
TARGET_NOISE, TARGET_NOISE_CLIP = 0.2, 0.5


def perceptron(inputs: int, outputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


class TD3:
    """Actor, critics, their targets and optimisers; `observation` and `action` are lengths."""

    def __init__(self, observation: int, action: int, *, width: int = 256, learning_rate: float = 3e-4):
        self.actor = perceptron(observation, action, width)
        self.critics = nn.ModuleList([perceptron(observation + action, 1, width) for _ in range(2)])
        self.target_actor, self.target_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=learning_rate, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=learning_rate, fused=True)
        self._targets = [*self.target_actor.parameters(), *self.target_critics.parameters()]
        self._sources = [*self.actor.parameters(), *self.critics.parameters()]
        self._move = get_ema_multi_avg_fn(1 - TARGET_RATE)

    def update(self, i: int, batch: list[torch.Tensor]) -> None:
        """Update `i` by observations, actions, rewards `[B, 1]`, terminations `[B, 1]` and next observations."""
        observation, action, reward, terminated, next_observation = batch
        with torch.no_grad():
            noise = (torch.randn_like(action) * TARGET_NOISE).clamp(-TARGET_NOISE_CLIP, TARGET_NOISE_CLIP)
            next_action = (torch.tanh(self.target_actor(next_observation)) + noise).clamp(-1, 1)
            after = torch.cat([next_observation, next_action], 1)
            values = torch.minimum(*(critic(after) for critic in self.target_critics))
            target = reward + DISCOUNT * (1 - terminated) * values
        both = torch.cat([observation, action], 1)
        loss = sum(functional.mse_loss(critic(both), target) for critic in self.critics)
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        if i % POLICY_DELAY == 0:
            self.critics.requires_grad_(False)  # only the gradient of the input is needed
            loss = -self.critics[0](torch.cat([observation, torch.tanh(self.actor(observation))], 1)).mean()
            self.actor_optimizer.zero_grad()
            loss.backward()
            self.actor_optimizer.step()
            self.critics.requires_grad_(True)
            self._move(self._targets, self._sources, 0)


def main(learner: Callable[..., Any]) -> None:
    """Prints the updates a second of `learner(observation, action, width=...)`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--observation", type=int, default=17)
    parser.add_argument("--action", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_float32_matmul_precision("high")  # as JAX multiplies on a GPU
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    rows = 100_000
    replay = [torch.randn(rows, options.observation), torch.rand(rows, options.action) * 2 - 1, torch.randn(rows, 1)]
    replay += [(torch.rand(rows, 1) < 0.01).float(), torch.randn(rows, options.observation)]
    made = learner(options.observation, options.action, width=options.width)
    torch.set_default_device(None)  # it slows every call
    times = []
    for _ in range(1 + options.repeats):
        began = time.perf_counter()
        for i in range(200):
            chosen = torch.randint(0, rows, (options.batch_size,), device=replay[0].device)
            made.update(i, [x[chosen] for x in replay])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    print(json.dumps({"updates_per_s": 200 / statistics.median(times[1:]), "torch": torch.__version__}))


if __name__ == "__main__":
    main(TD3)
