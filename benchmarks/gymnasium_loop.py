"""How fast PPO learns in a user's own Gymnasium environment, beside envpool, pure JAX and Stable-Baselines3.

    python benchmarks/gymnasium_loop.py --json
    python benchmarks/gymnasium_loop.py --variants workers0 sb3 --python sb3env/bin/python --json

The task is CartPole with CleanRL's constants of PPO: segments of 128, four epochs of four minibatches, perceptrons of
64 and 64 units. `stepping` is the upper bound for variants on Gymnasium: `SyncVectorEnv` with random actions;
`stepping2` is that of `workers2`: `AsyncVectorEnv` over two processes, with random actions.
Compilation, and PyTorch's import, are not counted. `experiments/benchmark.py` installs Stable-Baselines3 in the
directory `reference` of its run directory.
"""

import dataclasses
import json
import sys
import time
from typing import Annotated, Any, Literal

import gymnasium
import numpy as np
import tyro
from parts import machine, run_peer, show

import volvox as vx

Flag = tyro.conf.arg
Variant = Literal["stepping", "stepping2", "workers0", "workers2", "envpool", "jax", "sb3"]


@dataclasses.dataclass(frozen=True)
class Options:
    """The benchmark of the loop that is driven from Python."""

    variants: Annotated[tuple[Variant, ...], Flag(help="variants to measure")] = (
        "stepping",
        "stepping2",
        "workers0",
        "workers2",
        "envpool",
        "jax",
    )
    timesteps: Annotated[int, Flag(help="timesteps of a measurement")] = 500_000
    num_envs: int = 8
    groups: int = 1
    lag: int = 1
    python: Annotated[str, Flag(help="Python with stable_baselines3, for the variant sb3")] = sys.executable
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


def stepping_workers(options: Options) -> float:
    """Seconds in which two worker processes make the timesteps, with random actions."""
    (group,) = vx.envs.gymnasium("CartPole-v1", num_envs=options.num_envs, workers=2).make(seed=0, host=True)
    actions = np.random.default_rng(0).integers(0, 2, (options.timesteps // options.num_envs, options.num_envs))
    state, _ = group.recv(group.init())
    began = time.perf_counter()
    for action in actions.astype(np.int32):
        state, _ = group.recv(group.send(state, action))
    seconds = time.perf_counter() - began
    group.close()
    return seconds


def learning(options: Options, variant: Variant) -> float:
    """Seconds in which PPO makes the timesteps and learns from them, after an iteration that is not timed."""
    sizes: Any = {"num_envs": options.num_envs, "groups": options.groups}
    if variant == "jax":
        env = vx.envs.cartpole(**sizes)
    elif variant == "envpool":
        env = vx.envs.envpool("CartPole-v1", **sizes)
    else:
        env = vx.envs.gymnasium("CartPole-v1", **sizes, workers=int(variant.removeprefix("workers")))
    settings = vx.PPO(num_epochs=4, num_minibatches=4, anneal_timesteps=options.timesteps, lag=options.lag)
    algorithm = vx.learn(settings, vx.networks.CategoricalMLP(2, (64, 64)), env)
    state, _ = algorithm.step(algorithm.init(0))
    before, began = state.timesteps, time.perf_counter()
    while state.timesteps < before + options.timesteps:
        state, _ = algorithm.step(state)
    seconds = time.perf_counter() - began
    algorithm.close()
    return seconds * options.timesteps / (state.timesteps - before)


def stable_baselines(options: Options) -> float:
    """Seconds in which PPO of Stable-Baselines3 makes the timesteps and learns from them, with the same constants."""
    job = {
        "algorithm": "PPO",
        "settings": {
            "n_steps": 128,
            "batch_size": 32 * options.num_envs,
            "n_epochs": 4,
            "ent_coef": 0.01,
            "vf_coef": 0.25,  # of the squared error; volvox halves it
            "learning_rate": 2.5e-4,
        },
        "anneal": True,
        "network": "mlp",
        "hidden": [64, 64],
        "activation": "tanh",
        "task": "CartPole-v1",
        "num_envs": options.num_envs,
        "timesteps": options.timesteps,
        "every": 2 * options.timesteps,  # one evaluation, after the run
        "episodes": 1,
        "normalize_observations": False,
        "normalize_rewards": False,
        "threads": 1,  # faster than two for networks of this size
        "seed": 0,
    }
    found = run_peer("sb3", {"job": json.dumps(job)}, options.python)
    return found["seconds"] * options.timesteps / found["timesteps"][-1]


def measure(options: Options) -> dict[str, float]:
    """Seconds of each variant."""
    seconds = {}
    for variant in options.variants:
        if variant == "stepping":
            seconds[variant] = stepping(options)
        elif variant == "stepping2":
            seconds[variant] = stepping_workers(options)
        elif variant == "sb3":
            seconds[variant] = stable_baselines(options)
        else:
            seconds[variant] = learning(options, variant)
    return seconds


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    seconds = {f"{variant}_seconds": x for variant, x in measure(options).items()}
    show(seconds | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
