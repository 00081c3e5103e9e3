"""The cost of dividing an actor-critic over processes: two of one core against one of two.

    python benchmarks/processes.py --game Pong --envs 64 --out processes.json

Both learn the same from as many environments. The sides take turns, each in new processes, and the result of a side is
the median of the frames per second of its iterations without the first.
"""

import argparse
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

CHILD = "--child"


def child(settings: dict[str, Any]) -> list[float]:
    """Learns on the cores of one process; returns the frames per second of its iterations without the first."""
    import volvox as vx

    if settings["join"] is not None:
        vx.distributed.initialize(*settings["join"])
    env = vx.envs.atari(settings["game"], num_envs=settings["envs"], groups=2)
    network = vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso())
    algorithm = vx.learn(vx.A3C(updates_per_iteration=settings["updates"]), network, env)
    state, rates = algorithm.init(0), []
    for _ in range(settings["iterations"]):
        state, row = algorithm.step(state)
        rates.append(row["frames_per_second"])
    algorithm.close()
    return rates[1:]


def side(processes: int, given: argparse.Namespace) -> float:
    """Returns the median rate of the first of these processes, which share the cores."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    cores, run = sorted(os.sched_getaffinity(0))[:2], []
    share = len(cores) // processes
    for i in range(processes):
        settings = {
            "join": [address, processes, i] if processes > 1 else None,
            "game": given.game,
            "envs": given.envs // processes,
            "updates": given.updates,
            "iterations": given.iterations,
        }
        words = [sys.executable, __file__, CHILD, json.dumps(settings)]
        pin = functools.partial(os.sched_setaffinity, 0, cores[i * share : (i + 1) * share])
        run.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=pin))
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
    rates: dict[str, list[float]] = {"one of two cores": [], "two of one core": []}
    for _ in range(given.repeats):
        rates["one of two cores"].append(side(1, given))
        rates["two of one core"].append(side(2, given))
        print({name: round(values[-1]) for name, values in rates.items()}, flush=True)
    ratio = statistics.median(rates["two of one core"]) / statistics.median(rates["one of two cores"])
    print(f"two processes of one core over one of two: {ratio:.3f}")
    if given.out is not None:
        from parts import machine

        written = {"about": machine(), "frames_per_second": rates, "ratio": ratio}
        given.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        print(json.dumps(child(json.loads(sys.argv[2]))), flush=True)
    else:
        main()
