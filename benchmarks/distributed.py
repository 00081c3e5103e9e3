"""Populations on Ray actors: the cost of the driver, and the efficiency of several actors.

    python benchmarks/distributed.py cost --json        # actors that return at once
    python benchmarks/distributed.py efficiency --json  # an actor per core, one actor, and no actor

`cost`: members per second that the driver hands out and takes in. `efficiency`: scored timesteps per second of training
in one generation; the three sides take turns.
"""

import argparse
import json
import pickle
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from parts import machine

import volvox as vx
from volvox.distributed.ray_evaluator import chunk_sizes, split
from volvox.rollout.evaluator import RolloutStatistics

CUTOFF = 400
"""Maximum number of timesteps of an episode."""


def start_ray(cores: int) -> None:
    """Starts a local cluster."""
    import ray

    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False)


class Instant:
    """An evaluator that returns at once."""

    def evaluate(self, population: vx.Population, num_episodes: int, **settings: Any) -> tuple[Any, RolloutStatistics]:
        """Returns ones."""
        shape = (population.seed.shape[0], num_episodes)
        fields: Any = (np.ones(shape, np.float32), np.ones(shape, np.int32), np.ones(shape, bool))
        total = int(population.episodes.sum())
        evaluation = vx.Evaluation(*fields, behaviors=jnp.zeros((*shape, 0)))
        return evaluation, RolloutStatistics(total, total, 1, 1)


def cost(sizes: list[int], slots: int, repeats: int) -> list[dict[str, Any]]:
    """Evaluates populations of several sizes on two actors that return at once."""
    start_ray(2)
    evaluator, found = vx.distributed.ray(num_actors=2).evaluator(Instant, slots), []
    for members in [100, *sizes]:  # the first starts the actors
        rows, seconds = np.arange(members, dtype=np.int32), []
        fields: Any = (rows % 21, rows, rows * 0.1, rows < 0, rows * 0 + 1, rows * 0.0)
        population = vx.Population({"kernel": np.zeros((21, 3), np.float32)}, *fields)
        for _ in range(repeats):
            began = time.perf_counter()
            evaluator.evaluate(population, 1, max_episode_steps=100, seed=0, pool_seed=0)
            seconds.append(time.perf_counter() - began)
        chunks = split(population, chunk_sizes(members, 2, slots), share_bases=True)
        moved = sum(len(pickle.dumps(chunk)) for chunk in chunks) / members
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        row = {"members": members, "seconds": seconds, "members_per_second": members / statistics.median(seconds)}
        found.append(row | {"bytes_sent_per_member": moved, "memory_mb": memory})
        rate = f"{row['members_per_second']:>9,.0f} members/s"
        say(f"{members:>8,} members: {rate}, {moved:.0f} bytes each, {memory:.0f} MB")
    evaluator.close()
    return found[1:]


def efficiency(given: argparse.Namespace) -> dict[str, Any]:
    """Plays generations without Ray, on one actor, and on an actor per core, in turns."""
    start_ray(2 * given.cores)  # two evaluators share the cluster; one computes at a time
    one = vx.distributed.ray(num_actors="nodes", num_cpus_per_actor=1)
    several = vx.distributed.ray(num_actors=given.cores)
    kinds = {"no actor": (1, None), "one actor": (1, one), "an actor a core": (given.cores, several)}
    sides, states = {}, {}
    for name, (divided, workers) in kinds.items():
        env = vx.envs.atari(given.game, num_envs=given.slots // divided, groups=2)  # actors share the slots
        network = vx.networks.DeepGA(env.spec.num_outputs, size=given.network)
        sides[name] = vx.evolve(
            vx.GA(population_size=given.members[0]),
            network,
            env,
            validation=vx.Validation(num_validation_episodes=1, num_elite_candidates=2),
            max_episode_steps=CUTOFF,
            workers=workers,
        )
        states[name], _ = sides[name].step(sides[name].init(jax.random.key(0)))  # compiles
        say(f"{name}: ready")
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(given.repeats):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            states[name], metrics = sides[name].step(states[name])
            rates[name].append(metrics["training_timesteps_per_second"])
        say("  ".join(f"{name}: {values[-1]:.0f} timesteps/s" for name, values in rates.items()))
    for side in sides.values():
        side.close()
    ratios = [two / one for one, two in zip(rates["one actor"], rates["an actor a core"], strict=True)]
    to_none = [one / none for one, none in zip(rates["one actor"], rates["no actor"], strict=True)]
    say(f"an actor a core over one actor: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "one_actor_over_none": statistics.median(to_none),
        "timesteps_per_second": rates,
    }


def say(text: str) -> None:
    """Prints progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Runs one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cost", "efficiency"))
    parser.add_argument("--members", type=int, nargs="+", default=None)
    parser.add_argument("--slots", type=int, default=32, help="of all actors together")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--game", default="Frostbite")
    parser.add_argument("--network", default="small")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, help="write it to a file")
    given = parser.parse_args()
    given.members = given.members or {"cost": [1_000, 10_000, 100_000]}.get(given.part, [96])
    found: Any = cost(given.members, given.slots, given.repeats) if given.part == "cost" else efficiency(given)
    settings = {name: value for name, value in vars(given).items() if name not in ("json", "out")}
    text = json.dumps({"part": given.part, "results": found, "settings": settings, **machine()})
    if given.json:
        print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
