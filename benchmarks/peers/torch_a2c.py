"""A peer: advantage actor-critic in PyTorch on envpool, as one would write it there, for speed.

    python benchmarks/peers/torch_a2c.py --game Pong --num-envs 64
    python benchmarks/peers/torch_a2c.py --gradients 320

One synchronous pool, GA3C's network in channels-last memory, observations kept as bytes until they are used, one
optimiser step a segment; the size of the micro-batches is tuned before anything is timed.
"""

import argparse
import json
import os
import statistics
import time

import envpool
import numpy as np
import torch
from torch import nn
from torch.nn import functional

SIZES = {"small": ((16, 8), (32, 4)), "large": ((32, 8), (32, 4), (64, 4))}


class Net(nn.Module):
    """GA3C's network: convolutions with SAME padding, a hidden layer of 256, logits and value."""

    def __init__(self, num_actions: int, size: str):
        super().__init__()
        channels, side, convolutions, self.padding = 4, 84, [], []
        for i, (features, window) in enumerate(SIZES[size]):
            stride = 4 if i == 0 else 2
            convolutions.append(nn.Conv2d(channels, features, window, stride))
            out = -(-side // stride)
            total = max((out - 1) * stride + window - side, 0)
            self.padding.append((total // 2, total - total // 2) * 2)
            channels, side = features, out
        self.convolutions = nn.ModuleList(convolutions)
        self.hidden = nn.Linear(channels * side * side, 256)
        self.policy = nn.Linear(256, num_actions)
        self.value = nn.Linear(256, 1)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits `[B, A]`, value `[B]`) of bytes `[B, 4, 84, 84]`."""
        x = observation.to(torch.float32, memory_format=torch.channels_last) / 128 - 1
        for padding, convolution in zip(self.padding, self.convolutions, strict=True):
            x = torch.relu(convolution(functional.pad(x, padding)))
        x = torch.relu(self.hidden(x.flatten(1)))
        return self.policy(x), self.value(x)[:, 0]


def gradient(net, observation, action, returns, valid, micro_batch: int) -> None:
    """Adds the gradient of the summed loss, in micro-batches."""
    for begin in range(0, len(action), micro_batch):
        part = slice(begin, begin + micro_batch)
        logits, value = net(observation[part])
        log_p = torch.log(torch.softmax(logits, -1) + 1e-6)
        advantage = returns[part] - value
        chosen = log_p.gather(1, action[part, None])[:, 0]
        entropy = -(log_p * log_p.exp()).sum(-1)
        each = -chosen * advantage.detach() - 0.01 * entropy + 0.5 * advantage**2
        (each * valid[part]).sum().backward()


def tuned(net, num_transitions: int) -> tuple[float, int]:
    """Seconds of a gradient, and the micro-batch with which it takes the least time."""
    shape = (num_transitions, 4, 84, 84)
    observation = torch.randint(0, 256, shape, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    action, returns = torch.zeros(num_transitions, dtype=torch.long), torch.zeros(num_transitions)
    torch.set_default_device(None)  # it slows every call
    best: tuple[float, int] | None = None
    for micro_batch in (16, 32, 64, 128, num_transitions):
        times = []
        for _ in range(8):
            began = time.perf_counter()
            gradient(net, observation, action, returns, returns + 1, micro_batch)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        net.zero_grad()
        best = min(filter(None, (best, (statistics.median(times[1:]), micro_batch))))
    assert best is not None
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--size", default="small")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--segment-length", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--gradients", type=int, help="only measure gradients of so many transitions")
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high")  # as JAX multiplies on a GPU
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    if options.gradients:
        net = Net(6, options.size).to(memory_format=torch.channels_last)
        seconds, micro_batch = tuned(net, options.gradients)
        rate = options.gradients / seconds
        print(json.dumps({"gradients_per_s": rate, "micro_batch": micro_batch, "torch": torch.__version__}))
        return
    n, length = options.num_envs, options.segment_length
    pool = envpool.make(f"{options.game}-v5", env_type="gymnasium", num_envs=n, num_threads=threads, seed=0)
    net = Net(int(pool.action_space.n), options.size).to(memory_format=torch.channels_last)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=3e-4, alpha=0.99, eps=0.1)
    observations = torch.empty((length, n, 4, 84, 84), dtype=torch.uint8)
    actions = torch.empty((length, n), dtype=torch.long)
    rewards, ends, valid = (torch.empty((length, n)) for _ in range(3))
    _, micro_batch = tuned(net, n * length)

    def given(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x).to(rewards.device)

    seen, _ = pool.reset()
    dummy = np.zeros(n, bool)  # envpool discards the action after an end
    began, updates = time.perf_counter(), -3
    while updates < 1 or time.perf_counter() - began < options.seconds:
        if updates == 0:
            began = time.perf_counter()
        for t in range(length):
            observations[t] = given(seen)
            with torch.no_grad():
                logits, _ = net(observations[t])
                actions[t] = torch.distributions.Categorical(logits=logits, validate_args=False).sample()
            seen, reward, terminated, truncated, _ = pool.step(actions[t].cpu().numpy().astype(np.int32))
            rewards[t] = given(np.clip(reward, -1, 1).astype(np.float32))
            valid[t] = given(~dummy)
            dummy = terminated | truncated
            ends[t] = given(dummy)
        with torch.no_grad():
            _, following = net(given(seen))
        returns = torch.empty_like(rewards)
        for t in reversed(range(length)):
            returns[t] = following = rewards[t] + 0.99 * (1 - ends[t]) * following
        optimizer.zero_grad(set_to_none=True)
        flat = observations.flatten(0, 1)
        gradient(net, flat, actions.flatten(), returns.flatten(), valid.flatten(), micro_batch)
        optimizer.step()
        updates += 1
    rate = updates * n * length / (time.perf_counter() - began)
    print(json.dumps({"steps_per_s": rate, "micro_batch": micro_batch, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
