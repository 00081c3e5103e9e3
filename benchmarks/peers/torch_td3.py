"""A peer: TD3's update in PyTorch, as one would write it there, for speed.

    python benchmarks/peers/torch_td3.py --observation 17 --action 6

Adam is the fused one, over both critics at once, targets move by one call for all, and batches are drawn from tensors
that hold the replay.
"""

import argparse
import json
import os
import statistics
import time

import torch
from torch import nn
from torch.nn import functional


def perceptron(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--observation", type=int, default=17)
    parser.add_argument("--action", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_float32_matmul_precision("high")  # as JAX multiplies on a GPU
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    o, a, w, n = options.observation, options.action, options.width, options.batch_size
    rows = 100_000
    replay = [torch.randn(rows, o), torch.rand(rows, a) * 2 - 1, torch.randn(rows, 1), torch.randn(rows, o)]
    ends = (torch.rand(rows, 1) < 0.01).float()
    actor, target_actor = perceptron(o, w, a), perceptron(o, w, a)
    critics, target_critics = ([perceptron(o + a, w, 1) for _ in range(2)] for _ in range(2))
    of_critics = [p for critic in critics for p in critic.parameters()]
    of_targets = [p for critic in target_critics for p in critic.parameters()]
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4, fused=True)
    critic_optimizer = torch.optim.Adam(of_critics, lr=3e-4, fused=True)

    def update(i: int) -> None:
        chosen = torch.randint(0, rows, (n,))
        seen, taken, reward, following = (x[chosen] for x in replay)
        with torch.no_grad():
            noise = (torch.randn_like(taken) * 0.2).clamp(-0.5, 0.5)
            after = torch.cat([following, (torch.tanh(target_actor(following)) + noise).clamp(-1, 1)], 1)
            wanted = reward + 0.99 * (1 - ends[chosen]) * torch.minimum(*(critic(after) for critic in target_critics))
        both = torch.cat([seen, taken], 1)
        loss = sum(functional.mse_loss(critic(both), wanted) for critic in critics)
        critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        critic_optimizer.step()
        if i % 2 == 0:
            for p in critics[0].parameters():
                p.requires_grad_(False)  # only the gradient of its input is needed
            loss = -critics[0](torch.cat([seen, torch.tanh(actor(seen))], 1)).mean()
            actor_optimizer.zero_grad(set_to_none=True)
            loss.backward()
            actor_optimizer.step()
            for p in critics[0].parameters():
                p.requires_grad_(True)
            with torch.no_grad():
                torch._foreach_lerp_(list(target_actor.parameters()), list(actor.parameters()), 0.005)
                torch._foreach_lerp_(of_targets, of_critics, 0.005)

    times = []
    for _ in range(8):
        began = time.perf_counter()
        for i in range(200):
            update(i)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    print(json.dumps({"updates_per_s": 200 / statistics.median(times[1:]), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
