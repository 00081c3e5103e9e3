"""How fast PPO learns in thousands of environments on the device, beside rejax on the same environments.

    python benchmarks/jax_envs.py --json --python rejaxenv/bin/python
    python benchmarks/jax_envs.py --json --suite playground --task CartpoleBalance
    python benchmarks/jax_envs.py --json --suite cartpole

Both use separate perceptrons of 64 and 64 units for policy and value, and the same segments, epochs and minibatches.
They are measured in turns, compilation not counted, and the figures are medians. `peers/rejax_ppo.py` says how to
install rejax, which knows the tasks of gymnax.
"""

import dataclasses
import statistics
import time
from typing import Annotated, Any, Literal

import jax
import tyro
from parts import machine, run_peer, show

import volvox as vx

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class Options:
    """The benchmark of environments on the device."""

    suite: Annotated[Literal["gymnax", "brax", "playground", "cartpole"], Flag(help="cartpole: volvox's own")] = (
        "gymnax"
    )
    task: Annotated[str, Flag(help="of the suite")] = "CartPole-v1"
    num_envs: int = 2_048
    segment_length: int = 32
    num_epochs: int = 4
    num_minibatches: int = 4
    seconds: Annotated[float, Flag(help="length of each measurement")] = 10.0
    turns: Annotated[int, Flag(help="how often both are measured")] = 5
    python: Annotated[str | None, Flag(help="Python that has rejax; default: rejax is not measured")] = None
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def learner(options: Options) -> vx.Algorithm:
    """PPO in the environments of the task."""
    if options.suite == "cartpole":
        env = vx.envs.cartpole(num_envs=options.num_envs)
    else:
        env = getattr(vx.envs, options.suite)(options.task, num_envs=options.num_envs)
    names = ("segment_length", "num_epochs", "num_minibatches")
    settings = vx.PPO(**{name: getattr(options, name) for name in names}, lag=1, rounds_per_iteration=4)
    network = vx.networks.GaussianMLP if env.spec.num_actions is None else vx.networks.CategoricalMLP
    return vx.learn(settings, network(env.spec.num_outputs), env)


def measure(options: Options) -> dict[str, Any]:
    """All figures in one run."""
    algorithm = learner(options)
    state, row = algorithm.step(algorithm.init(jax.random.key(0)))  # compilation
    flags = {"task": options.task, "num-envs": options.num_envs, "segment-length": options.segment_length}
    flags |= {"num-epochs": options.num_epochs, "num-minibatches": options.num_minibatches, "seconds": options.seconds}
    rates, peers = [], []
    for _ in range(options.turns):
        began, before = time.perf_counter(), int(state.timesteps)
        while time.perf_counter() - began < options.seconds:
            state, row = algorithm.step(state)
        rates.append((int(state.timesteps) - before) / (time.perf_counter() - began))
        if options.python is not None:
            peers.append(run_peer("rejax_ppo", flags, options.python)["steps_per_s"])
    algorithm.close()
    figures = {"steps_per_s": statistics.median(rates), "all_steps_per_s": rates, "training_mean": row["training_mean"]}
    if peers:
        ratios = [ours / theirs for ours, theirs in zip(rates, peers, strict=True)]
        figures |= {"rejax_steps_per_s": statistics.median(peers), "all_rejax_steps_per_s": peers}
        figures |= {"speedup_vs_rejax": statistics.median(ratios), "all_speedups": ratios}
    return figures


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    show(measure(options) | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
