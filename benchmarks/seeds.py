"""Whether several learners of TD3 are faster side by side in one program than one after the other.

    python benchmarks/seeds.py --json

Iterations of one learner and of several with as many environments each take turns. `side_by_side_over_in_turn` is
above 1 where one program for all learners takes less time than as many runs of one.
"""

import dataclasses
import statistics
import time
from typing import Annotated, Any

import tyro
from parts import machine, show

import volvox as vx

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class Options:
    """TD3 with the reference settings."""

    task: str = "HalfCheetah"
    num_learners: tuple[int, ...] = (3, 5)
    num_envs: Annotated[int, Flag(help="of each learner")] = 4
    width: Annotated[int, Flag(help="of the two hidden layers")] = 256
    iterations: Annotated[int, Flag(help="of 1 000 timesteps of each learner, measured")] = 9
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def make_algorithm(options: Options, num_learners: int) -> vx.Algorithm:
    """TD3 that learns from its first timesteps on."""
    env = vx.envs.mujoco(options.task, num_envs=options.num_envs, groups=2)
    (action,) = env.spec.action_shape or (0,)
    networks = vx.networks.ActorAndCritic.mlp(action, (options.width, options.width))
    sizes: Any = {"random_timesteps": 1_000, "replay_size": 100_000, "timesteps_per_iteration": 1_000}
    return vx.learn(vx.TD3(**sizes), networks, env, num_learners=num_learners)


def measure(options: Options) -> dict[str, Any]:
    """Seconds of an iteration, by number of learners, and the ratios of the same turn."""
    algorithms = {count: make_algorithm(options, count) for count in (1, *options.num_learners)}
    states = {count: algorithm.init(0) for count, algorithm in algorithms.items()}
    seconds: dict[int, list[float]] = {count: [] for count in algorithms}
    done = 0
    while len(seconds[1]) < options.iterations:
        for count, algorithm in algorithms.items():
            began = time.perf_counter()
            states[count], _ = algorithm.step(states[count])
            if done > 1:  # after compilation
                seconds[count].append(time.perf_counter() - began)
        done += 1
    for algorithm in algorithms.values():
        algorithm.close()
    found: dict[str, Any] = {
        "seconds_per_iteration": {n: [statistics.median(s), min(s), max(s)] for n, s in seconds.items()}
    }
    ratios = {n: [n * one / s for one, s in zip(seconds[1], seconds[n], strict=True)] for n in options.num_learners}
    found["side_by_side_over_in_turn"] = {n: [statistics.median(r), min(r), max(r)] for n, r in ratios.items()}
    return {**dataclasses.asdict(options), **machine(), **found}


if __name__ == "__main__":
    options = tyro.cli(Options, description=__doc__)
    show(measure(options), options.json)
