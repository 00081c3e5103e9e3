"""A peer: PQN in PyTorch on envpool's Atari, written from the paper (arXiv 2407.04811) and for speed.

    torchenv/bin/python benchmarks/peers/torch_pqn.py --task Pong      # torch_ppo.py says how to install torchenv
    python benchmarks/ppo.py --preset pqn --lag 0 --peers --python torchenv/bin/python
    torchenv/bin/python benchmarks/peers/torch_pqn.py --desktop --task Breakout --timesteps 2_500_000 --out curve.json

One synchronous pool, channels-last memory, observations kept as bytes until they are used. PyTorch's threads and the
size of the parts in which a minibatch's gradient is computed are tuned before anything is timed. With `--timesteps` it
learns, with the schedules of `experiments/atari_pqn.py`, and `--desktop` has the other settings of that preset; here
it learns from observations that are normalised by the newest moments.
"""

import argparse
import collections
import copy
import json
import os
import time
from pathlib import Path

import envpool
import numpy as np
import torch
from torch import nn
from torch_ppo import Moments, tuned


class Normalized(nn.Module):
    """Layer normalisation over the channels of `[B, C, ...]`."""

    def __init__(self, size: int):
        super().__init__()
        self.norm = nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape; images with channels last in memory are not copied."""
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


def layer(made: nn.Module, size: int) -> tuple[nn.Module, ...]:
    """An orthogonal layer, normalisation and activation."""
    nn.init.orthogonal_(made.weight, 2**0.5)
    nn.init.zeros_(made.bias)
    return made, Normalized(size), nn.ReLU()


class Values(nn.Module):
    """DQN's convolutions, or GA3C's small ones, with layer normalisation, and the values of all actions.

    Attributes:
      moments: (mean, inverse deviation) `[1, 4, 84, 84]` of observations; None: bytes are divided by 255.
    """

    def __init__(self, num_actions: int, small: bool):
        super().__init__()
        self.moments: tuple[torch.Tensor, torch.Tensor] | None = None
        if small:
            pads: tuple[tuple[nn.Module, ...], ...] = ((nn.ZeroPad2d(2),), (nn.ZeroPad2d((1, 2, 1, 2)),))
            convolutions, inputs, width = ((4, 16, 8, 4), (16, 32, 4, 2)), 32 * 11 * 11, 256
        else:
            pads, inputs, width = ((), (), ()), 64 * 7 * 7, 512
            convolutions = ((4, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
        layers: list[nn.Module] = []
        for pad, sizes in zip(pads, convolutions, strict=True):
            layers += [*pad, *layer(nn.Conv2d(*sizes), sizes[1])]
        dense = layer(nn.Linear(inputs, width), width)
        self.layers = nn.Sequential(*layers, nn.Flatten(), *dense, nn.Linear(width, num_actions))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Values `[B, A]` of bytes `[B, 4, 84, 84]`."""
        x = observation.to(torch.float32, memory_format=torch.channels_last)
        if self.moments is None:
            return self.layers(x.div_(255))
        mean, inverse = self.moments
        return self.layers(x.sub_(mean).mul_(inverse).clamp_(-10, 10))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="Pong")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--segment-length", type=int, default=128)
    parser.add_argument("--num-epochs", type=int, default=4)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--trace-decay", type=float, default=0.65)
    parser.add_argument("--epsilon", type=float, default=0.01)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--timesteps", type=int, default=0, help="timesteps to learn from, instead of measuring")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--desktop", action="store_true", help="settings of the preset desktop")
    parser.add_argument("--out", help="JSON file for the learning curve")
    options = parser.parse_args()
    if options.out and not options.timesteps:
        parser.error("--out needs --timesteps")
    if options.desktop:
        options.num_envs, options.segment_length, options.num_epochs = 16, 32, 2
    threads = len(os.sched_getaffinity(0))
    torch.set_float32_matmul_precision("high")  # as JAX multiplies on a GPU
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    n, length = options.num_envs, options.segment_length
    torch.manual_seed(options.seed)
    seed = 1_003 * options.seed
    pool = envpool.make(f"{options.task}-v5", env_type="gymnasium", num_envs=n, num_threads=threads, seed=seed)
    num_actions, shape = int(pool.action_space.n), pool.observation_space.shape
    net = Values(num_actions, small=options.desktop).to(memory_format=torch.channels_last)
    initial, seen_moments = copy.deepcopy(net.state_dict()), Moments(shape)
    optimizer = torch.optim.RAdam(net.parameters(), lr=2.5e-4)
    size = n * length // options.num_minibatches
    observations = torch.zeros((length, n, *shape), dtype=torch.uint8)
    actions = torch.zeros((length, n), dtype=torch.long)
    best, rewards, going_on, truncations, valid = (torch.zeros((length, n)) for _ in range(5))

    def given(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x).to(observations.device)

    def learn(data: tuple[torch.Tensor, ...], chosen: torch.Tensor, part: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        observation, action, target, weight = (x[chosen] for x in data)
        count = weight.sum().clamp(min=1)
        for i in range(0, len(action), part):
            x = slice(i, i + part)
            value = net(observation[x]).gather(-1, action[x, None])[:, 0]
            ((0.5 * (value - target[x]) ** 2 * weight[x]).sum() / count).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()

    flat = tuple(x.flatten(0, 1) for x in (observations, actions, rewards, valid))
    torch.set_default_device(None)  # it slows every call
    acting_threads, learning_threads, part = tuned(net, flat, learn, n, size)
    net.load_state_dict(initial)  # tuning has learned
    optimizer.state.clear()

    def see(raw: np.ndarray) -> torch.Tensor:
        if options.desktop:
            seen_moments.update(raw)
            numbers = (seen_moments.mean, 1 / np.sqrt(seen_moments.var + 1e-8))
            net.moments = tuple(  # pyright: ignore[reportAttributeAccessIssue]
                given(x[None].astype(np.float32)).contiguous(memory_format=torch.channels_last) for x in numbers
            )
        return given(raw)

    seen = see(pool.reset()[0])
    dummy, lives = np.zeros(n, bool), np.zeros(n)  # envpool discards the action after an end
    returns, games, curve = np.zeros(n), collections.deque(maxlen=100), []
    total, exploring = options.timesteps // (n * length), 200_000 if options.desktop else options.timesteps / 10
    began, rounds, epsilon = time.perf_counter(), 0 if total else -1, options.epsilon

    def goes_on() -> bool:
        return rounds < total if total else rounds < 1 or time.perf_counter() - began < options.seconds

    while goes_on():
        if rounds == 0:  # the round before is not measured
            began = time.perf_counter()
        if total:
            epsilon = 1 + (options.epsilon - 1) * min(rounds * n * length / exploring, 1.0)
            optimizer.param_groups[0]["lr"] = 2.5e-4 * (1 - rounds / total)
        torch.set_num_threads(acting_threads)
        for t in range(length):
            observations[t] = seen
            with torch.no_grad():
                best[t], greedy = net(seen).max(-1)
            random = torch.rand_like(best[t]) < epsilon
            actions[t] = torch.where(random, torch.randint_like(greedy, num_actions), greedy)
            raw, reward, terminated, truncated, info = pool.step(actions[t].cpu().numpy().astype(np.int32))
            lost, lives = ~dummy & (info["lives"] < lives), info["lives"]
            rewards[t] = given(np.clip(reward, -1, 1).astype(np.float32))
            going_on[t] = given((0.99 * ~(terminated | lost)).astype(np.float32))
            truncations[t], valid[t] = given(truncated), given(~dummy)
            returns = np.where(dummy, 0.0, returns + reward)
            dummy, seen = terminated | truncated, see(raw)
            games.extend(returns[dummy])
        with torch.no_grad():
            following = net(seen).max(-1)[0]
        targets, target, decay = torch.zeros_like(rewards), following, options.trace_decay
        for t in reversed(range(length)):
            target = torch.where(truncations[t] > 0, following, decay * target + (1 - decay) * following)
            targets[t] = target = rewards[t] + going_on[t] * target
            following = best[t]
        flat = tuple(x.flatten(0, 1) for x in (observations, actions, targets, valid))
        torch.set_num_threads(learning_threads)
        for _ in range(options.num_epochs):
            for chosen in torch.randperm(n * length, device=rewards.device).split(size):
                learn(flat, chosen, part)
        rounds += 1
        if total and games and rounds % max(total // 50, 1) == 0:
            curve.append((rounds * n * length, float(np.mean(games))))
            print(*curve[-1], flush=True)
    rate = rounds * n * length / (time.perf_counter() - began)
    tuned_to = {"acting_threads": acting_threads, "learning_threads": learning_threads, "part": part}
    found = {"steps_per_s": rate, **tuned_to, "torch": torch.__version__}
    if options.out:
        settings = {name: value for name, value in vars(options).items() if name != "out"}
        found |= {"settings": settings, "timesteps": [x for x, _ in curve], "training_mean": [x for _, x in curve]}
        Path(options.out).write_text(json.dumps(found) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
