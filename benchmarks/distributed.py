"""Populations on actors of Ray: what handing out costs, what a machine less costs, and how long actors wait.

    python benchmarks/distributed.py cost --json            # (a) stub actors, which answer at once
    python benchmarks/distributed.py efficiency --json      # (b) two actors of one core against one of two
    python benchmarks/distributed.py idle --json            # (c) with and without repeated portions
    python benchmarks/distributed.py parts --json           # emulators, networks and decoding alone, for scaling.py
    python benchmarks/distributed.py cost --members 1000 10000 100000 --out cost.json

(a) Seconds of a generation, and memory, of the process that hands out, by members of the population. (b) Timesteps a
second, of those that count, of two actors with a core each over those of one actor with both, and of this process
without Ray; all are started first, and play a generation each in turns, so that an hour that is slow is slow for all.
(c) The share of a phase's time in which actors had nothing to do, where episodes differ in length and one actor is
three times slower. (parts) What (b) is made of: of one process with all cores, and of as many processes as there are
cores, one on each, which are measured at the same time. Two cores are meant; with `--cores 4`, (b) compares four actors
with one of four cores.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from parts import env_steps_per_s, machine

import volvox as vx
from volvox.distributed.player import RayPlayer
from volvox.evolution.pools import Place, Request
from volvox.population.decoding import Member
from volvox.report.files import write_file
from volvox.rollout.slots import slot_variables

CUTOFF = 400
"""Timesteps after which an episode of (b) is cut."""


def stub(seconds: float):
    """The class of actors that play nothing: a member takes so many seconds, times one to three."""

    class Stub:
        def describe(self):
            import os
            import socket

            from volvox.distributed.actor import installed

            cpus = sorted(os.sched_getaffinity(0))
            about = {"machine": socket.gethostname(), "host": socket.gethostname(), "node": "", "process": os.getpid()}
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
        say(f"{members:>8,} members: {rate:>9,.0f} members/s, {moved:.0f} bytes each, {megabytes():.0f} MB")
    one.close()
    ended(made)
    return found


class Side:
    """A process that measures what it is told to: every line that it is sent is answered by a line of JSON."""

    def __init__(self, *arguments: Any, cores: list[int] | None = None):
        pin = None if cores is None else partial(os.sched_setaffinity, 0, cores)
        command = [sys.executable, __file__, *map(str, arguments)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, preexec_fn=pin)

    def tell(self, what: str) -> None:
        """Sends a line."""
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)

    def hear(self) -> Any:
        """Waits for the next line of JSON, and leaves out what others print."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"a process that measures ended with {self._process.wait()}")

    def close(self) -> None:
        """Ends the process in order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def answer(functions: dict[str, Any]) -> None:
    """What a `Side` runs: reads names of functions, and prints what they return."""
    print("{}", flush=True)  # it is ready
    for line in sys.stdin:
        print(json.dumps(functions[line.strip()]()), flush=True)


def parts_of(given: argparse.Namespace) -> tuple[Any, Any]:
    """Environment and network of (b); `--slots` of all actors together."""
    env = vx.envs.atari(given.game, num_envs=given.slots // given.divided, groups=2)
    return env, vx.networks.DeepGA(env.spec.num_actions or 0, size=given.network)


def play(given: argparse.Namespace) -> None:
    """One side of (b): `--divided` actors, or none; plays a generation whenever it is told to."""
    made = cluster(*[given.cores // given.divided] * given.divided) if given.actors else None
    env, network = parts_of(given)
    strategy = vx.GA(population_size=given.members[0], num_validation_episodes=1, num_elite_candidates=2)
    workers = None if made is None else vx.distributed.ray(address=made.address)
    algorithm = vx.evolve(strategy, network, env, max_episode_steps=CUTOFF, workers=workers)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))  # compiles

    def generation() -> dict[str, Any]:
        nonlocal state
        state, metrics = algorithm.step(state)
        assert algorithm.log is not None
        assert algorithm.log is not None
        rate, lengths = metrics["training_timesteps_per_second"], algorithm.log(state)["length"]
        return {"timesteps_per_second": rate, "occupancy": metrics["occupancy"], "lengths": lengths.tolist()}

    answer({"generation": generation})
    algorithm.close()
    if made is not None:
        ended(made)


def efficiency(given: argparse.Namespace) -> dict[str, Any]:
    """Part (b)."""
    common = ["--members", given.members[0], "--slots", given.slots, "--cores", given.cores]
    common += ["--game", given.game, "--network", given.network]
    divided = {"no actor": (1, 0), "one actor": (1, 1), "an actor a core": (given.cores, 1)}
    sides, rows = {}, []
    for name, (number, actors) in divided.items():
        sides[name] = Side("play", *common, "--divided", number, "--actors", actors)
        sides[name].hear()
        say(f"{name}: ready")
    for turn in range(given.repeats):
        row = {}
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            sides[name].tell("generation")
            row[name] = sides[name].hear()
        say("  ".join(f"{name}: {row[name]['timesteps_per_second']:.0f} timesteps/s" for name in sides))
        rows.append(row)
    for side in sides.values():
        side.close()
    rates = {name: [row[name]["timesteps_per_second"] for row in rows] for name in sides}
    ratios = [two / one for one, two in zip(rates["one actor"], rates["an actor a core"], strict=True)]
    to_none = [one / none for one, none in zip(rates["one actor"], rates["no actor"], strict=True)]
    say(f"an actor a core over one actor: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "one_actor_over_none": statistics.median(to_none),
        "timesteps_per_second": rates,
        "occupancy": {name: [row[name]["occupancy"] for row in rows] for name in sides},
        "lengths": {name: [row[name]["lengths"] for row in rows] for name in sides},
    }


def measure(given: argparse.Namespace) -> None:
    """One side of the parts: emulators, networks and decoding of one process, whenever it is told to."""
    env, network = parts_of(given)
    genotype = vx.networks.genotype(network, env.spec)
    code, size = vx.population.encoding(genotype, vx.population.Table()), env.num_envs // 2
    keys = jax.random.split(jax.random.key(0), size)
    params = jax.jit(jax.vmap(lambda key: genotype.prepare(genotype.policy.init(key))))(keys)
    observation = jnp.zeros((size, 1, *env.spec.observation_shape), env.spec.observation_dtype)

    @jax.jit
    def forward(params, observation, times):
        def body(i, actions):
            # The observation depends on the last action, as it does in the loop.
            seen = observation + (actions[0] + i).astype(observation.dtype)
            output, _ = jax.vmap(lambda v, o: genotype.policy.apply(v, o, ()))(params, seen)
            return jnp.argmax(output[:, 0], axis=-1).astype(jnp.int32)

        return jax.lax.fori_loop(0, times, body, jnp.zeros(size, jnp.int32))

    @jax.jit
    def decoded(code, bases, times):
        def body(i, total):
            member = Member(i % 2, i * 1_000, jnp.float32(0.1), jnp.bool_(False))
            return total + sum(leaf.sum() for leaf in jax.tree.leaves(slot_variables(genotype, code, bases, member)))

        return jax.lax.fori_loop(0, times, body, jnp.float32(0))

    def emulators() -> dict[str, float]:
        return {"steps_per_s": env_steps_per_s(env.make(0, max_episode_steps=CUTOFF), seconds=given.seconds)}

    def networks() -> dict[str, float]:
        return {"steps_per_s": size * per_second(lambda: forward(params, observation, 10), given.seconds, 10)}

    def decoding() -> dict[str, float]:
        return {"seconds": 1 / per_second(lambda: decoded(code, code.zeros(2), 10), given.seconds / 3, 10)}

    answer({"emulators": emulators, "networks": networks, "decoding": decoding})


def per_second(run: Any, seconds: float, times: int) -> float:
    """How often a second something happens that a compiled function does so many times."""
    jax.block_until_ready(run())
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        jax.block_until_ready(run())
        count += times
    return count / (time.perf_counter() - began)


def parts(given: argparse.Namespace) -> dict[str, Any]:
    """What an actor with all cores, and an actor a core, are made of; the latter at the same time."""
    common = ["--slots", given.slots, "--cores", given.cores, "--game", given.game, "--network", given.network]
    common += ["--seconds", given.seconds]
    cores = sorted(os.sched_getaffinity(0))[: given.cores]
    whole = [Side("measure", *common, cores=cores)]
    divided = [Side("measure", *common, "--divided", given.cores, cores=[core]) for core in cores]
    for side in whole + divided:
        side.hear()
    found: dict[str, dict[str, list[Any]]] = {"one actor": {}, "an actor a core": {}}
    for _ in range(given.repeats):
        for name, sides in zip(found, (whole, divided), strict=True):
            for part in ("emulators", "networks", "decoding"):
                for side in sides:
                    side.tell(part)
                heard = statistics.mean(next(iter(side.hear().values())) for side in sides)
                found[name].setdefault(part, []).append(heard)
                say(f"{name}, {part}: {heard:.4g}")
    for side in whole + divided:
        side.close()
    about = "emulators and networks: steps a second of one actor; decoding: seconds of a member"
    return {"about": about} | {
        name: {part: statistics.median(x) for part, x in of.items()} for name, of in found.items()
    }


def idle(members: int, slots: int, repeats: int) -> dict[str, Any]:
    """Part (c)."""
    made, shares = cluster(1, 1, 1), {}
    players = {}
    for name, duplicates in (("once", False), ("repeated", True)):
        workers = vx.distributed.ray(address=made.address, num_actors=3, duplicates=duplicates)
        shares[name] = {"seconds": [], "idle": [], "repeated_portions": []}
        players[name] = one = RayPlayer(workers, {}, slots, 1.0, actor=stub(0.01))
        one.play(request(slots), lambda progress: False)
        one._actors._remotes[0].handle.slow.remote(3.0)
        one.figures()
        for _ in range(repeats):
            began = time.perf_counter()
            one.play(request(members), lambda progress: False)
            figures = one.figures()
            shares[name]["seconds"].append(time.perf_counter() - began)
            shares[name]["idle"].append(figures["actors_idle"])
            shares[name]["repeated_portions"].append(figures["repeated_portions"])
        one.close()
        middle = {part: statistics.median(values) for part, values in shares[name].items()}
        say(f"duplicates={duplicates}: {middle['seconds']:.2f} s, idle {middle['idle']:.1%}")
    ended(made)
    return shares


def say(text: str) -> None:
    """Tells a reader how far it is."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Runs one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cost", "efficiency", "idle", "parts", "play", "measure"))
    parser.add_argument("--members", type=int, nargs="+", default=None)
    parser.add_argument("--slots", type=int, default=32, help="of all actors together")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--divided", type=int, default=1, help="actors among which slots and cores are divided")
    parser.add_argument("--actors", type=int, default=1, help="0: this process plays")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each of the parts")
    parser.add_argument("--game", default="Frostbite")
    parser.add_argument("--network", default="small")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, help="write it to a file")
    given = parser.parse_args()
    given.members = given.members or {"cost": [1_000, 10_000, 100_000], "idle": [600]}.get(given.part, [96])
    if given.part in ("play", "measure"):
        (play if given.part == "play" else measure)(given)
        return
    if given.part == "cost":
        found: Any = cost(given.members, given.slots, given.repeats)
    elif given.part == "idle":
        found = idle(given.members[0], given.slots, given.repeats)
    else:
        found = (efficiency if given.part == "efficiency" else parts)(given)
    settings = {name: value for name, value in vars(given).items() if name not in ("json", "out", "actors", "divided")}
    told = json.dumps({"part": given.part, "results": found, "settings": settings, **machine()})
    if given.json:
        print(told)
    if given.out is not None:
        write_file(given.out, told + "\n")


if __name__ == "__main__":
    main()
