"""Populations on actors of Ray: what handing out costs, what a machine less costs, and how long actors wait.

    python benchmarks/distributed.py cost                   # (a) stub actors, which answer at once
    python benchmarks/distributed.py efficiency             # (b) two actors of one core against one of two
    python benchmarks/distributed.py idle                   # (c) with and without repeated portions
    python benchmarks/distributed.py cost --members 1000 10000 100000 --out cost.json

(a) Seconds of a generation, and memory, of the process that hands out, by members of the population. (b) Members a
second of two actors with a core each, over those of one actor with both: on a quiet machine, in turns. (c) The share of
a phase's time in which actors had nothing to do, where episodes differ in length and one actor is three times slower.
"""

import argparse
import json
import os
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import volvox as vx
from volvox.distributed.player import RayPlayer
from volvox.evolution.pools import Place, Request
from volvox.provenance import provenance


def stub(seconds: float):
    """The class of actors that play nothing: a member takes so many seconds, times one to three."""

    class Stub:
        def describe(self):
            import os
            import socket

            from volvox.distributed.actor import installed

            cpus = sorted(os.sched_getaffinity(0))
            about = {"machine": socket.gethostname(), "host": socket.gethostname(), "process": os.getpid()}
            return about | {"cpus": cpus, "versions": installed()}

        def prepare(self, *given):
            self._slow, self._dropped = 1.0, -1

        def slow(self, factor):
            self._slow = factor

        def play(self, order, given):
            import time

            from volvox.distributed.actor import Answer
            from volvox.distributed.work import Results

            rows = order.rows
            for member in rows.member if seconds else ():
                if self._dropped == order.portion:
                    return Answer(order.portion)
                time.sleep(seconds * self._slow * (1 + member % 3))
            count = rows.seed.size
            results = Results(rows.seed.astype(np.float32), rows.member, np.zeros((count, 0), np.float32))
            return Answer(order.portion, results, (), count, count, 1)

        def progress(self):
            return (-1, 0, 0)

        def drop(self, portion):
            self._dropped = portion

    return Stub


def request(members: int) -> Request:
    """A generation of so many members, each with one episode."""
    rows = np.arange(members, dtype=np.int32)
    zeros = np.zeros(members, np.float32)
    bases = {"kernel": np.zeros((21, 3), np.float32)}
    fields: Any = (rows % 21, rows, zeros + 0.1, rows < 0, rows * 0 + 1, zeros)  # NumPy's
    return Request(vx.Population(bases, *fields), 1, Place(False, 100, False), 0, 0)


def cluster(*cpus: int) -> Any:
    """A cluster of local processes, one a machine with so many CPUs."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 * 2**20})
    for count in cpus:
        made.add_node(num_cpus=count, object_store_memory=80 * 2**20)
    return made


def ended(made: Any) -> None:
    """Ends a cluster, and the connection to it."""
    import ray

    ray.shutdown()
    made.shutdown()


def megabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cost(sizes: list[int], slots: int, repeats: int) -> list[dict[str, Any]]:
    """Part (a)."""
    made, found = cluster(1, 1), []
    one = RayPlayer(vx.distributed.ray(address=made.address), {}, slots, 1.0, actor=stub(0.0))
    one.play(request(100), lambda progress: False)  # starts the actors
    for members in sizes:
        seconds = []
        for _ in range(repeats):
            asked = request(members)
            began = time.perf_counter()
            evaluation, _ = one.play(asked, lambda progress: False)
            seconds.append(time.perf_counter() - began)
            assert bool(evaluation.valid.all())
        figures = one.figures()
        rate, moved = members / min(seconds), (figures["bytes_sent"] + figures["bytes_received"]) / repeats / members
        found.append(
            {
                "members": members,
                "seconds": seconds,
                "members_per_second": rate,
                "bytes_per_member": moved,
                "memory_mb": megabytes(),
            }
        )
        print(
            f"{members:>8,} members: {rate:>9,.0f} members/s, {moved:.0f} bytes each, {megabytes():.0f} MB", flush=True
        )
    one.close()
    ended(made)
    return found


def efficiency(game: str, members: int, generations: int, repeats: int) -> dict[str, Any]:
    """Part (b)."""
    rates: dict[str, list[float]] = {"one": [], "two": []}
    for _ in range(repeats):
        for name, cpus in (("one", (2,)), ("two", (1, 1))):
            made = cluster(*cpus)
            env = vx.envs.atari(game, num_envs=32 // len(cpus), groups=2)
            network = vx.networks.DeepGA(env.spec.num_actions or 0, size="small")
            strategy = vx.GA(population_size=members, num_validation_episodes=1, num_elite_candidates=2)
            workers = vx.distributed.ray(address=made.address)
            algorithm = vx.evolve(strategy, network, env, max_episode_steps=300, workers=workers)
            state = algorithm.init(jax.random.key(0))
            state, _ = algorithm.step(state)  # compiles
            for _ in range(generations):
                state, metrics = algorithm.step(state)
                rates[name].append(members / metrics["training_seconds"])
            algorithm.close()
            ended(made)
    ratio = statistics.median(rates["two"]) / statistics.median(rates["one"])
    print(f"two actors of one core over one of two: {ratio:.3f}  {rates}")
    return {"game": game, "members": members, "members_per_second": rates, "ratio": ratio}


def idle(members: int, slots: int, repeats: int) -> dict[str, Any]:
    """Part (c)."""
    made, shares = cluster(1, 1, 1), {}
    for duplicates in (False, True):
        workers = vx.distributed.ray(address=made.address, duplicates=duplicates)
        one = RayPlayer(workers, {}, slots, 1.0, actor=stub(0.01))
        one.play(request(slots), lambda progress: False)
        one._actors._remotes[0].handle.slow.remote(3.0)
        one.figures()
        seconds, share = [], []
        for _ in range(repeats):
            began = time.perf_counter()
            one.play(request(members), lambda progress: False)
            seconds.append(time.perf_counter() - began)
            share.append(one.figures()["actors_idle"])
        one.close()
        shares["repeated" if duplicates else "once"] = {"seconds": seconds, "idle": share}
        print(f"duplicates={duplicates}: {min(seconds):.2f} s, idle {statistics.median(share):.1%}", flush=True)
    ended(made)
    return shares


def main() -> None:
    """Runs one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cost", "efficiency", "idle"))
    parser.add_argument("--members", type=int, nargs="+", default=None)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--game", default="Frostbite")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.part == "cost":
        found: Any = cost(given.members or [1_000, 10_000, 100_000], given.slots, given.repeats)
    elif given.part == "efficiency":
        found = efficiency(given.game, (given.members or [256])[0], 3, given.repeats)
    else:
        found = idle((given.members or [600])[0], given.slots, given.repeats)
    if given.out is not None:
        about = {"part": given.part, "cpus": len(os.sched_getaffinity(0)), **provenance()}
        given.out.write_text(json.dumps({"about": about, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
