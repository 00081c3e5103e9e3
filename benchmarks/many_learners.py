"""Several learners in one program against the same number of runs in turn.

    python benchmarks/many_learners.py --json                  # 64 of PPO on CartPole, 10 of TD3 on HalfCheetah
    python benchmarks/many_learners.py --parts ppo --rejax /tmp/rejax/bin/python

- ppo: learners with two layers of 64 on pure-JAX CartPole, 51,200 timesteps each. Runs in turn compile one after the
  other here, as runs in processes of their own do; within one process they share the program.
- td3: learners with two layers of 256 on HalfCheetah of envpool, one update for each timestep.
- rejax: rejax's PPO by vmap with the same settings, in the Python given.

Ratios without compilation are medians over turns in which one learner and all learners run.
"""

import dataclasses
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from parts import machine, show

import volvox as vx

Flag = tyro.conf.arg
PEER = Path(__file__).parent / "peers" / "rejax_learners.py"


@dataclasses.dataclass(frozen=True)
class Options:
    """Learners in one program, and in turn."""

    parts: tuple[Literal["ppo", "td3"], ...] = ("ppo", "td3")
    ppo_learners: int = 64
    td3_learners: int = 10
    rounds: Annotated[int, Flag(help="of PPO in a run")] = 50
    timesteps: Annotated[int, Flag(help="of each TD3 learner in a turn")] = 500
    turns: Annotated[int, Flag(help="measured runs of both")] = 5
    rejax: Annotated[str | None, Flag(help="a Python with rejax; measures it too")] = None
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def ppo(options: Options, num_learners: int) -> vx.Algorithm:
    env = vx.envs.cartpole(num_envs=8)
    settings = vx.PPO(num_epochs=4, learning_rate=5e-4, rounds_per_iteration=options.rounds)
    network = vx.networks.CategoricalMLP(env.spec.num_outputs, (64, 64))
    return vx.learn(settings, network, env, num_learners=num_learners)


def td3(options: Options, num_learners: int) -> vx.Algorithm:
    env = vx.envs.mujoco("HalfCheetah", num_envs=4, groups=2)
    networks = vx.networks.ActorAndCritic.mlp(env.spec.num_outputs)
    sizes: Any = {"random_timesteps": options.timesteps, "timesteps_per_iteration": options.timesteps}
    return vx.learn(vx.TD3(**sizes, replay_size=50_000), networks, env, num_learners=num_learners)


def measure(make: Callable[[Options, int], vx.Algorithm], options: Options, count: int) -> dict[str, Any]:
    """Rates and compilation of one learner and of all, and the times of runs in turn over those of one program."""
    made, states, first, row = {"one": make(options, 1), "all": make(options, count)}, {}, {}, {}
    for name, algorithm in made.items():
        began = time.perf_counter()
        states[name], _ = algorithm.step(algorithm.init(0))
        first[name] = time.perf_counter() - began
        states[name], _ = algorithm.step(states[name])
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(options.turns):
        for name, algorithm in made.items():
            began = time.perf_counter()
            states[name], row = algorithm.step(states[name])
            seconds[name].append(time.perf_counter() - began)
    for algorithm in made.values():
        algorithm.close()
    run = {name: statistics.median(x) for name, x in seconds.items()}
    ratios = [count * one / every for one, every in zip(seconds["one"], seconds["all"], strict=True)]
    timesteps = row["timesteps"] / (options.turns + 2)  # of each learner in a turn
    return {
        "num_learners": count,
        "timesteps_per_s_one": timesteps / run["one"],
        "timesteps_per_s_all": count * timesteps / run["all"],
        "first_run_s_one": first["one"],
        "first_run_s_all": first["all"],
        "in_turn_over_one_program": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
        "in_turn_over_one_program_with_compilation": count * first["one"] / first["all"],
    }


def measure_all(options: Options) -> dict[str, Any]:
    figures = {}
    if "ppo" in options.parts:
        figures["ppo"] = measure(ppo, options, options.ppo_learners)
    if "ppo" in options.parts and options.rejax is not None:
        command = [options.rejax, str(PEER), str(options.ppo_learners)]
        figures["rejax"] = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        figures["ppo_over_rejax"] = figures["ppo"]["timesteps_per_s_all"] / figures["rejax"]["timesteps_per_s_all"]
    if "td3" in options.parts:
        figures["td3"] = measure(td3, options, options.td3_learners)
    return figures


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    show(measure_all(options) | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
