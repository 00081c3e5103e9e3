"""Updates a second of TD3 with wide networks, densely connected ones, and ones on learned features (arXiv 2102.07920).

    python benchmarks/td3_networks.py --json

Each is the learner's updates in a compiled loop, from batches drawn from the replay of a run. All networks take turns;
medians, and times relative to the plain network of the same width.
"""

import dataclasses
import statistics
from collections.abc import Callable
from typing import Annotated, Any

import jax
import tyro
from parts import machine, show
from td3 import alone

import volvox as vx

Flag = tyro.conf.arg
_NETWORKS = {
    "plain": (False, False),
    "densely connected": (True, False),
    "features": (False, True),
    "both": (True, True),
}
"""Whether layers are densely connected, and whether they take features."""


@dataclasses.dataclass(frozen=True)
class Options:
    """TD3 with the reference settings, which has batches of 256, and two hidden layers."""

    task: str = "HalfCheetah"
    widths: Annotated[tuple[int, ...], Flag(help="of both hidden layers")] = (256, 512, 1024)
    repeats: Annotated[int, Flag(help="of 200 updates, measured")] = 7
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def updates(task: str, width: int, densely_connected: bool, features: bool) -> Callable[[], float]:
    """Updates a second of one kind of networks; compiled before."""
    env = vx.envs.mujoco(task, num_envs=4, groups=2)
    (action,), hidden = env.spec.action_shape or (0,), (width, width)
    representation = vx.networks.NextObservationNetwork() if features else None
    networks = vx.networks.ActorAndCritic.mlp(action, hidden, representation, densely_connected=densely_connected)
    # The replay is filled by random actions, and nothing is learned on the way.
    settings = vx.TD3(random_timesteps=1_000, replay_size=100_000, timesteps_per_iteration=1_000)
    algorithm = vx.learn(settings, networks, env)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    algorithm.close()
    return alone((settings, networks, env), state)["updates"]


def measure(options: Options) -> dict[str, Any]:
    """Everything; JSON values."""
    figures = {}
    for width in options.widths:
        calls = {name: updates(options.task, width, *kind) for name, kind in _NETWORKS.items()}
        rates: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(options.repeats):
            for name, call in calls.items():
                rates[name].append(call())
        figures[str(width)] = {
            name: {
                "updates_per_s": (middle := statistics.median(found)),
                "lowest": min(found),
                "highest": max(found),
                "time_over_plain": statistics.median(rates["plain"]) / middle,
            }
            for name, found in rates.items()
        }
    return figures


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    show({"widths": measure(options), "settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
