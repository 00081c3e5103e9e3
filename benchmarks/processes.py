"""The cost of dividing an actor-critic over processes: two of one core against one of two.

    python benchmarks/processes.py --game Pong --envs 64 --out processes.json

Both learn the same from as many environments. The sides take turns, each in new processes, and the result of a side is
the median of the frames per second of its iterations without the first.

For the model of `scaling.py` it also measures parts: emulators, networks and learning without overlap, in a process of
two cores and in two of one core that run at the same time without knowing of each other; and a sum over both processes
of as many numbers as a gradient has.
"""

import argparse
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHILD, EXCHANGE = "--child", "--exchange"


def child(settings: dict[str, Any]) -> dict[str, Any]:
    """Learns on the cores of one process."""
    import jax

    import volvox as vx

    if settings["join"] is not None:
        vx.distributed.initialize(*settings["join"])
    env = vx.envs.atari(settings["game"], num_envs=settings["envs"], groups=2)
    network = vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso())
    algorithm = vx.learn(vx.A3C(updates_per_iteration=settings["updates"]), network, env)
    state, rates, row, turns = algorithm.init(0), [], {}, None
    for _ in range(settings["iterations"]):
        state, row = algorithm.step(state)
        rates.append(row["frames_per_second"])
    if settings["join"] is None:
        assert algorithm.profile is not None
        turns = 1 / sum(algorithm.profile(state, 5.0))
    algorithm.close()
    return {
        "rates": rates[1:],
        "turns": turns,
        "timesteps_per_update": row["predictions_per_second"] / row["updates_per_second"],
        "num_parameters": sum(x.size for x in jax.tree.leaves(algorithm.variables(state))),
    }


def exchange(settings: dict[str, Any]) -> dict[str, Any]:
    """Sums arrays of all processes."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    import volvox as vx

    vx.distributed.initialize(*settings["join"])
    mesh = jax.make_mesh((jax.process_count(),), ("processes",))
    place = NamedSharding(mesh, PartitionSpec("processes"))
    given = jax.make_array_from_process_local_data(place, np.ones((1, settings["numbers"]), np.float32))
    sum_ = functools.partial(jax.lax.psum, axis_name="processes")
    add = jax.jit(jax.shard_map(sum_, mesh=mesh, in_specs=PartitionSpec("processes"), out_specs=PartitionSpec()))
    times = []
    for _ in range(200):
        began = time.perf_counter()
        jax.block_until_ready(add(given))
        times.append(time.perf_counter() - began)
    return {"seconds": statistics.median(times[20:])}


def side(processes: int, given: argparse.Namespace, *, joined: bool = True, what: str = CHILD, numbers: int = 0) -> Any:
    """Returns the results of each process; they share the cores, and run at the same time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    cores, run = sorted(os.sched_getaffinity(0))[:2], []
    share = len(cores) // processes
    for i in range(processes):
        settings = {
            "join": [address, processes, i] if joined and processes > 1 else None,
            "numbers": numbers,
            "game": given.game,
            "envs": given.envs // processes,
            "updates": given.updates,
            "iterations": given.iterations,
        }
        words = [sys.executable, __file__, what, json.dumps(settings)]
        pin = functools.partial(os.sched_setaffinity, 0, cores[i * share : (i + 1) * share])
        run.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=pin))
    printed = [one.communicate()[0] for one in run]
    if any(one.returncode for one in run):
        raise SystemExit("a process failed; see above")
    return [json.loads(text.splitlines()[-1]) for text in printed]


def main() -> None:
    """Measures both sides in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rates: dict[str, list[float]] = {"one of two cores": [], "two of one core": []}
    turns: dict[str, list[float]] = {"one of two cores": [], "each of two that know nothing of each other": []}
    known: dict[str, Any] = {}
    for _ in range(given.repeats):
        (one,), (known, _), apart = side(1, given), side(2, given), side(2, given, joined=False)
        rates["one of two cores"].append(statistics.median(one["rates"]))
        rates["two of one core"].append(statistics.median(known["rates"]))
        turns["one of two cores"].append(one["turns"])
        turns["each of two that know nothing of each other"] += [each["turns"] for each in apart]
        print({name: round(values[-1]) for name, values in rates.items()}, flush=True)
    ratio = statistics.median(rates["two of one core"]) / statistics.median(rates["one of two cores"])
    print(f"two processes of one core over one of two: {ratio:.3f}")
    sums, _ = side(2, given, what=EXCHANGE, numbers=known["num_parameters"])
    parts = {"timesteps_per_second_in_turns": turns, "exchange_seconds": sums["seconds"]}
    parts |= {name: known[name] for name in ("timesteps_per_update", "num_parameters")}
    if given.out is not None:
        from parts import machine

        written = {"about": machine(), "frames_per_second": rates, "ratio": ratio, "parts": parts}
        given.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] in ([CHILD], [EXCHANGE]):
        measure = child if sys.argv[1] == CHILD else exchange
        print(json.dumps(measure(json.loads(sys.argv[2]))), flush=True)
    else:
        main()
