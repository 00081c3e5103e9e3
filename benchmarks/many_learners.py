"""Several learners in one program against the same number of runs in turn.

    python benchmarks/many_learners.py --json                  # 64 of PPO, 10 of TD3, 4 of A3C
    python benchmarks/many_learners.py --parts ppo --rejax /tmp/rejax/bin/python

- ppo: learners with two layers of 64 on pure-JAX CartPole, 51,200 timesteps each. Runs in turn compile one after the
  other here, as runs in processes of their own do; within one process they share the program.
- td3: learners with two layers of 256 on HalfCheetah of envpool, one update for each timestep. The matmuls of
  updates alone, of one learner after the other, are measured too (`td3.py`).
- a3c: learners with 16 environments each on Pong of envpool against one learner with the environments of all. The
  parts of both are timed by `vx.profile`.
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
from td3 import Options as TD3Options
from td3 import floor

import volvox as vx

Flag = tyro.conf.arg
PEER = Path(__file__).parent / "peers" / "rejax_learners.py"


@dataclasses.dataclass(frozen=True)
class Options:
    """Learners in one program, and in turn."""

    parts: tuple[Literal["ppo", "td3", "a3c"], ...] = ("ppo", "td3", "a3c")
    ppo_learners: int = 64
    td3_learners: int = 10
    td3_width: Annotated[int, Flag(help="of the hidden layers of TD3")] = 256
    a3c_learners: int = 4
    rounds: Annotated[int, Flag(help="of PPO in a run, and of A3C in a turn")] = 50
    timesteps: Annotated[int, Flag(help="of each TD3 learner in a turn")] = 500
    seconds: Annotated[float, Flag(help="of each measurement of the parts of A3C")] = 10.0
    turns: Annotated[int, Flag(help="measured runs of both")] = 5
    rejax: Annotated[str | None, Flag(help="a Python with rejax; measures it too")] = None
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def ppo(options: Options, num_learners: int) -> vx.Algorithm:
    env = vx.envs.cartpole(num_envs=8)
    settings = vx.PPO(num_epochs=4, num_minibatches=4, learning_rate=5e-4, rounds_per_iteration=options.rounds)
    network = vx.networks.CategoricalMLP(env.spec.num_outputs, (64, 64))
    return vx.learn(settings, network, env, num_learners=num_learners)


def td3(options: Options, num_learners: int) -> vx.Algorithm:
    env = vx.envs.mujoco("HalfCheetah", num_envs=4, groups=2)
    networks = vx.networks.ActorAndCritic.mlp(env.spec.num_outputs, (options.td3_width,) * 2)
    sizes: Any = {"random_timesteps": options.timesteps, "timesteps_per_iteration": options.timesteps}
    return vx.learn(vx.TD3(**sizes, replay_size=50_000), networks, env, num_learners=num_learners)


def a3c(options: Options, num_learners: int) -> vx.Algorithm:
    env = vx.envs.atari("Pong", num_envs=16 * options.a3c_learners // num_learners, groups=2)
    network = vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso())
    return vx.learn(vx.A3C(updates_per_iteration=options.rounds), network, env, num_learners=num_learners)


def measure(make: Callable[[Options, int], vx.Algorithm], options: Options, count: int) -> dict[str, Any]:
    """Rates and first runs of one learner and of all, and the ratio of the rates."""
    made, states, first = {"one": make(options, 1), "all": make(options, count)}, {}, {}
    for name, algorithm in made.items():
        began = time.perf_counter()
        states[name], _ = algorithm.step(algorithm.init(0))
        first[name] = time.perf_counter() - began
        states[name], _ = algorithm.step(states[name])
    rates: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(options.turns):
        for name, algorithm in made.items():
            began, before = time.perf_counter(), states[name].timesteps
            states[name], _ = algorithm.step(states[name])
            rates[name].append((states[name].timesteps - before) / (time.perf_counter() - began))
    for algorithm in made.values():
        algorithm.close()
    ratios = [every / one for one, every in zip(rates["one"], rates["all"], strict=True)]
    return {
        "num_learners": count,
        **{f"timesteps_per_s_{name}": statistics.median(x) for name, x in rates.items()},
        **{f"first_run_s_{name}": x for name, x in first.items()},
        "all_over_one": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
    }


def measure_in_turn(make: Callable[[Options, int], vx.Algorithm], options: Options, count: int) -> dict[str, Any]:
    """The same, where the learners in turn have the rate of one; and the ratio of the first runs."""
    found = measure(make, options, count)
    first = count * found["first_run_s_one"] / found["first_run_s_all"]
    return found | {"in_turn_over_one_program_with_compilation": first}


def profiles(options: Options) -> dict[str, Any]:
    """Seconds a timestep of the parts of A3C, and which of them bounds its rate."""
    found = {}
    for name, count in (("one", 1), ("all", options.a3c_learners)):
        algorithm = a3c(options, count)
        profile = vx.profile(algorithm, seconds=options.seconds)
        algorithm.close()
        found[name] = profile._asdict() | {"bound": profile.bound}
    return found


def measure_all(options: Options) -> dict[str, Any]:
    figures = {}
    if "ppo" in options.parts:
        figures["ppo"] = measure_in_turn(ppo, options, options.ppo_learners)
    if "ppo" in options.parts and options.rejax is not None:
        command = [options.rejax, str(PEER), str(options.ppo_learners)]
        figures["rejax"] = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        figures["ppo_over_rejax"] = figures["ppo"]["timesteps_per_s_all"] / figures["rejax"]["timesteps_per_s_all"]
    if "td3" in options.parts:
        matmuls = floor(TD3Options(width=options.td3_width), observation=17, action=6)
        floors = [matmuls() for _ in range(options.turns)]
        figures["td3"] = measure_in_turn(td3, options, options.td3_learners)
        floors += [matmuls() for _ in range(options.turns)]
        figures["td3"] |= {"floor_updates_per_s": statistics.median(floors), "floor_range": [min(floors), max(floors)]}
    if "a3c" in options.parts:
        figures["a3c"] = measure(a3c, options, options.a3c_learners) | {"profiles": profiles(options)}
    return figures


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    show(measure_all(options) | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
