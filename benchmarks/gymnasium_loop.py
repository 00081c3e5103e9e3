"""How fast PPO learns in a user's own Gymnasium environment, beside envpool, pure JAX and Stable-Baselines3.

    python benchmarks/gymnasium_loop.py --json
    python benchmarks/gymnasium_loop.py --sides workers0 sb3 --python sb3env/bin/python --json

The task is CartPole with CleanRL's constants of PPO: segments of 128, four epochs of four minibatches, perceptrons of
64 and 64 units. The bound of all sides that step Gymnasium's environments is `stepping`: Gymnasium's `SyncVectorEnv`
alone. Compilation, and PyTorch's import, are not counted.
"""

import dataclasses
import sys
import time
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import tyro
from parts import machine, run_peer, show

import volvox as vx

Flag = tyro.conf.arg
Side = Literal["stepping", "workers0", "workers2", "envpool", "jax", "sb3"]


@dataclasses.dataclass(frozen=True)
class Options:
    """The benchmark of the loop that is driven from Python."""

    sides: Annotated[tuple[Side, ...], Flag(help="what is measured")] = (
        "stepping",
        "workers0",
        "workers2",
        "envpool",
        "jax",
    )
    timesteps: Annotated[int, Flag(help="timesteps of a measurement")] = 500_000
    num_envs: int = 8
    groups: int = 1
    lag: int = 1
    python: Annotated[str, Flag(help="Python that has stable_baselines3, for its side")] = sys.executable
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def stepping(options: Options) -> float:
    """Seconds in which Gymnasium alone makes the timesteps, with random actions."""
    envs = gymnasium.make_vec("CartPole-v1", options.num_envs, vectorization_mode="sync")
    envs.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 2, (options.timesteps // options.num_envs, options.num_envs))
    began = time.perf_counter()
    for action in actions:
        envs.step(action)
    return time.perf_counter() - began


def learning(options: Options, side: Side) -> float:
    """Seconds in which PPO makes the timesteps and learns from them, after an iteration that is not timed."""
    sizes: Any = {"num_envs": options.num_envs, "groups": options.groups}
    if side == "jax":
        env = vx.envs.cartpole(**sizes)
    elif side == "envpool":
        env = vx.envs.envpool("CartPole-v1", **sizes)
    else:
        env = vx.envs.gymnasium("CartPole-v1", **sizes, workers=int(side.removeprefix("workers")))
    settings = vx.PPO(anneal_timesteps=options.timesteps, lag=options.lag)
    algorithm = vx.learn(settings, vx.networks.CategoricalMLP(2, (64, 64)), env)
    state, _ = algorithm.step(algorithm.init(0))
    before, began = state.timesteps, time.perf_counter()
    while state.timesteps < before + options.timesteps:
        state, _ = algorithm.step(state)
    seconds = time.perf_counter() - began
    algorithm.close()
    return seconds * options.timesteps / (state.timesteps - before)


def measure(options: Options) -> dict[str, float]:
    """Seconds of each side."""
    flags = {"timesteps": options.timesteps, "num-envs": options.num_envs}
    seconds = {}
    for side in options.sides:
        if side == "stepping":
            seconds[side] = stepping(options)
        elif side == "sb3":
            seconds[side] = run_peer("sb3_ppo", flags, options.python)["seconds"]
        else:
            seconds[side] = learning(options, side)
    return seconds


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    seconds = {f"{side}_seconds": x for side, x in measure(options).items()}
    show(seconds | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
