"""What it costs to divide an actor-critic over processes: two of one core against one of two.

    python benchmarks/processes.py --game Pong --envs 64 --out processes.json

Both learn the same from as many environments. Sides take turns, each in processes of its own, and a side's figure is
the median of the frames a second of its iterations, without the first and those with the stopwatch. The target is a
ratio of 0.9.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

CHILD = "--child"


def child(settings: dict[str, Any]) -> None:
    """One process: learns on its cores, and prints the frames a second of all processes."""
    os.sched_setaffinity(0, settings["cores"])  # before JAX counts them
    import volvox as vx

    if settings["join"] is not None:
        vx.distributed.initialize(*settings["join"])
    env = vx.envs.atari(settings["game"], num_envs=settings["envs"], groups=2)
    network = vx.networks.ActorCritic(env.spec.num_actions or 0, vx.networks.SmallTorso())
    algorithm = vx.learn(vx.A3C(updates_per_iteration=settings["updates"]), network, env)
    state, rates = algorithm.init(0), []
    for _ in range(settings["iterations"]):
        state, row = algorithm.step(state)
        if "share_learning" not in row:
            rates.append(row["frames_per_second"])
    algorithm.close()
    print(json.dumps(rates[1:]), flush=True)


def side(processes: int, cores: list[int], given: argparse.Namespace) -> float:
    """Frames a second of all processes, which share the cores."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    share, run = len(cores) // processes, []
    for i in range(processes):
        settings = {
            "cores": cores[i * share : (i + 1) * share],
            "join": None if processes == 1 else [address, processes, i],
            "game": given.game,
            "envs": given.envs // processes,
            "updates": given.updates,
            "iterations": given.iterations,
        }
        words = [sys.executable, __file__, CHILD, json.dumps(settings)]
        run.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
    printed = [one.communicate()[0] for one in run]
    if any(one.returncode for one in run):
        raise SystemExit("a process failed; see above")
    return statistics.median(json.loads(printed[0].splitlines()[-1]))


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
    cores = sorted(os.sched_getaffinity(0))[:2]
    rates: dict[str, list[float]] = {"one of two cores": [], "two of one core": []}
    for _ in range(given.repeats):
        rates["one of two cores"].append(side(1, cores, given))
        rates["two of one core"].append(side(2, cores, given))
        print({name: round(values[-1]) for name, values in rates.items()}, flush=True)
    ratio = statistics.median(rates["two of one core"]) / statistics.median(rates["one of two cores"])
    print(f"two processes of one core over one of two: {ratio:.3f}")
    if given.out is not None:
        from volvox.provenance import provenance

        written = {"about": provenance(), "frames_per_second": rates, "ratio": ratio}
        given.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(json.loads(sys.argv[2]))
    else:
        main()
