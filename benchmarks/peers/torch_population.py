"""A peer: different networks of the deep GA in PyTorch, by `torch.vmap` over their stacked parameters.

    python benchmarks/peers/torch_population.py --game Frostbite --num-envs 64

One synchronous pool of envpool; network i plays in environment i.
"""

import argparse
import json
import os
import time

import envpool
import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

CONVOLUTIONS = {"large": ((32, 8, 4), (64, 4, 2), (64, 3, 1)), "small": ((16, 8, 4), (32, 4, 2))}
HIDDEN = {"large": 512, "small": 256}


class DeepGA(nn.Module):
    """Convolutions with SAME padding, a hidden layer, and logits."""

    def __init__(self, num_actions: int, size: str):
        super().__init__()
        inputs, side = 4, 84
        self.convolutions, self.padding = nn.ModuleList(), []
        for features, kernel, stride in CONVOLUTIONS[size]:
            self.convolutions.append(nn.Conv2d(inputs, features, kernel, stride))
            out = -(-side // stride)
            total = max((out - 1) * stride + kernel - side, 0)
            self.padding.append((total // 2, total - total // 2) * 2)
            inputs, side = features, out
        self.hidden = nn.Linear(inputs * side * side, HIDDEN[size])
        self.output = nn.Linear(HIDDEN[size], num_actions)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Logits `[B, A]` of bytes `[B, 4, 84, 84]`."""
        x = observation.float() / 255
        for padding, convolution in zip(self.padding, self.convolutions, strict=True):
            x = torch.relu(convolution(functional.pad(x, padding)))
        return self.output(torch.relu(self.hidden(x.flatten(1))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--game", default="Frostbite")
    parser.add_argument("--size", default="large")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    threads, n = len(os.sched_getaffinity(0)), options.num_envs
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high")  # as JAX multiplies on a GPU
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    pool = envpool.make(f"{options.game}-v5", env_type="gymnasium", num_envs=n, num_threads=threads, seed=0)
    net = DeepGA(int(pool.action_space.n), options.size)
    params = {name: torch.randn(n, *x.shape) * 0.05 for name, x in net.named_parameters()}
    forward = torch.vmap(lambda params, row: functional_call(net, params, (row[None],))[0])
    torch.set_default_device(None)  # it slows every call
    seen, _ = pool.reset()
    began, steps = time.perf_counter(), -3
    with torch.no_grad():
        while steps < 1 or time.perf_counter() - began < options.seconds:
            if steps == 0:
                began = time.perf_counter()
            logits = forward(params, torch.from_numpy(seen).to(params["output.bias"].device))
            seen = pool.step(logits.argmax(-1).cpu().numpy().astype(np.int32))[0]
            steps += 1
    print(json.dumps({"steps_per_s": steps * n / (time.perf_counter() - began), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
