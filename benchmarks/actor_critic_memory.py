"""Whether the actor-critic's memory grows: peak resident memory after many updates over that after a few.

MALLOC_ARENA_MAX=1 python benchmarks/actor_critic_memory.py --json

Without that setting the C library keeps freed blocks apart for each thread, and the peak also counts how often a thread
could not use what another had freed.
"""

import dataclasses
import os
import resource
from typing import Annotated

import jax
import tyro
from parts import machine, show

import volvox as vx

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class Options:
    """The memory of a long run."""

    game: str = "Pong"
    num_envs: int = 16
    updates_per_step: Annotated[int, Flag(help="updates between two looks at the memory")] = 20
    few: Annotated[int, Flag(help="updates; a multiple of updates_per_step")] = 200
    many: Annotated[int, Flag(help="updates; a multiple of updates_per_step")] = 2_000
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def peak() -> float:
    """Peak resident memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    each = options.updates_per_step
    if each < 1 or options.few < each or options.few % each or options.many % each or options.many < options.few:
        raise SystemExit(f"few={options.few}, many={options.many}: give multiples of {each}, few the smaller.")
    env = vx.envs.atari(options.game, num_envs=options.num_envs, groups=2)
    assert env.spec.num_actions is not None  # Atari's actions are discrete
    network = vx.networks.GA3C(env.spec.num_actions)
    algorithm = vx.learn(dataclasses.replace(vx.A3C.ga3c(), updates_per_iteration=each), network, env)
    state, peaks = algorithm.init(jax.random.key(0)), {}
    while int(state.learning.update) < options.many:
        state, _ = algorithm.step(state)
        peaks[int(state.learning.update)] = peak()
    algorithm.close()
    figures = {
        "peak_mb_after_few": peaks[options.few],
        "peak_mb_after_many": peaks[options.many],
        "growth": peaks[options.many] / peaks[options.few],
        "malloc_arena_max": os.environ.get("MALLOC_ARENA_MAX", "not set"),
    }
    show(figures | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
