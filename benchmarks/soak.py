"""Whether a long run leaks: memory, threads, file descriptors and the rate of GA, A3C and TD3, over minutes.

    python benchmarks/soak.py                 # 30 minutes of each
    python benchmarks/soak.py --together      # all of them at once, in 30 minutes
    python benchmarks/soak.py --minutes 2     # a look

Each algorithm runs in a process of its own, on real emulators, with checkpoints, rows and TensorBoard files. A sample
is taken after a step, every five seconds or so. After `--settled` of the time (5 of 30 minutes), the last third is
compared with the first: the median of the memory in use must be the same within 2%, files as many, the median of
threads no more, and the rate the same within 5%. Memory in use is what programs hold of the allocator (glibc's
`mallinfo2`) after a collection of Python's garbage; what is in use before it is written too
(`megabytes_with_garbage`): a drawing of the learning curve, of which there is one a minute, leaves some 12 MB. So is
resident memory: it holds what the allocator keeps for later, and differs by some 5% from sample to sample. The rate is
in frames for each piece of fixed work that the processor could have done in their processor time, so that other work on
the machine hardly changes it; frames a second are written too.
Writes `soak.json`, and exits with 1 where one of these does not hold.
"""

import collections
import contextlib
import ctypes
import dataclasses
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from flax import linen as nn

import volvox as vx
from volvox.runs.provenance import provenance


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """A soak.

    Attributes:
      minutes: Minutes of each algorithm.
      settled: Share of the time that is left out at the beginning, when programs are compiled and buffers grow.
      only: Algorithms, by name.
      together: Whether the algorithms run at the same time and share the machine, instead of one after the other.
      out: File of the results.
    """

    minutes: float = 30.0
    settled: float = 1 / 6
    only: tuple[str, ...] = ("ga", "a3c", "td3")
    together: bool = False
    out: Path = Path("soak.json")


def ga() -> vx.Algorithm:
    env = vx.envs.atari("Pong", num_envs=16, groups=2)
    strategy = vx.GA(population_size=16, num_parents=4, num_elite_candidates=2, num_validation_episodes=2)
    network = vx.networks.DeepGA(env.spec.num_actions or 0, size="small")
    return vx.evolve(strategy, network, env, max_episode_steps=50, noise=vx.population.Table())


def a3c() -> vx.Algorithm:
    env = vx.envs.atari("Pong", num_envs=16, groups=2)
    network = vx.networks.ActorCritic(env.spec.num_actions or 0, vx.networks.SmallTorso())
    return vx.learn(vx.A3C(updates_per_iteration=10), network, env)


def td3() -> vx.Algorithm:
    env = vx.envs.mujoco("HalfCheetah", num_envs=4, groups=2)
    networks = vx.networks.ActorAndCritic(vx.networks.MLP(6, (64, 64), nn.relu), vx.networks.QNetwork((64, 64)))
    settings = vx.TD3(random_timesteps=1_000, replay_size=20_000, timesteps_per_iteration=1_000)
    return vx.learn(settings, networks, env)


SECONDS_BETWEEN = 5
"""Between two samples, at least: a collection takes a quarter of a second."""
SHOWN = ("megabytes", "megabytes_with_garbage", "resident_megabytes", "threads")
MAKERS: dict[str, Callable[[], vx.Algorithm]] = {"ga": ga, "a3c": a3c, "td3": td3}


class Mallinfo(ctypes.Structure):
    """What `mallinfo2` returns: bytes, in the order of its manual page."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def sample() -> dict[str, Any]:
    """Megabytes in use and resident, threads and open files of this process, and the time of a piece of fixed work."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallinfo2.restype = Mallinfo
    before = libc.mallinfo2()
    gc.collect()
    libc.malloc_trim(0)
    found, pages = libc.mallinfo2(), int(Path("/proc/self/statm").read_text().split()[1])
    numbers = np.random.default_rng(0).random(100_000)
    began = time.thread_time()
    numbers.sort()
    return {
        "work_seconds": time.thread_time() - began,
        "megabytes": (found.uordblks + found.hblkhd) / 2**20,
        "megabytes_with_garbage": (before.uordblks + before.hblkhd) / 2**20,
        "resident_megabytes": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "threads": len(names := _thread_names()),
        "thread_names": names,
        "files": len(os.listdir("/proc/self/fd")),
    }


def _thread_names() -> list[str]:
    """The names of this process's threads, as the system has them."""
    found = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended
            found.append(path.read_text().strip())
    return sorted(found)


def soak(name: str, minutes: float, out: Any) -> None:
    """Runs one algorithm, and sends its samples."""
    algorithm, samples = MAKERS[name](), []
    began, step = time.monotonic(), algorithm.step

    def sampled(state: Any, *, monitor: Any = None) -> Any:
        state, row = step(state, monitor=monitor)
        times = {"seconds": time.monotonic() - began, "processor_seconds": time.process_time()}
        if not samples or times["seconds"] >= samples[-1]["seconds"] + SECONDS_BETWEEN:
            samples.append({**times, "frames": row["frames"], **sample()})
        return state, row

    with tempfile.TemporaryDirectory() as folder:
        how = {"run_dir": Path(folder) / name, "stop_after": 60 * minutes, "progress": False}
        vx.train(algorithm._replace(step=sampled), seed=0, steps=10**9, **how)
    out.send(samples)


def judged(samples: list[dict[str, Any]], settled: float) -> dict[str, Any]:
    """What the samples say, after the time in which a run settles."""
    first = settled * samples[-1]["seconds"]
    names = [collections.Counter(one.pop("thread_names")) for one in samples if one["seconds"] >= first]
    kept = {name: np.array([one[name] for one in samples if one["seconds"] >= first]) for name in samples[-1]}
    third = len(kept["seconds"]) // 3
    ends = [slice(0, third + 1), slice(-third - 1, None)]
    rates = {
        clock: [float(np.ptp(kept["frames"][end]) / np.ptp(kept[clock][end])) for end in ends]
        for clock in ("seconds", "processor_seconds")
    }
    medians = {name: [float(np.median(values[end])) for end in ends] for name, values in kept.items()}
    pieces = [rate * seconds for rate, seconds in zip(rates["processor_seconds"], medians["work_seconds"], strict=True)]
    memory, threads = medians["megabytes"], medians["threads"]
    found = {
        "samples": len(kept["seconds"]),
        **{name: [round(x, 1) for x in medians[name]] for name in SHOWN},
        "resident_range": [round(float(x), 1) for x in np.percentile(kept["resident_megabytes"], (0, 100))],
        "megabytes_by_tenth": [round(float(np.median(x)), 1) for x in np.array_split(kept["megabytes"], 10)],
        "threads_by_tenth": [float(np.median(x)) for x in np.array_split(kept["threads"], 10)],
        "threads_begun": dict(names[-1] - names[0]),
        "threads_ended": dict(names[0] - names[-1]),
        "files": sorted({int(x) for x in kept["files"]}),
        "frames_per_second": [round(rate) for rate in rates["seconds"]],
        "frames_per_processor_second": [round(rate) for rate in rates["processor_seconds"]],
        "frames_per_piece_of_work": [round(rate, 3) for rate in pieces],
    }
    found["holds"] = {
        "memory within 2%": abs(memory[1] / memory[0] - 1) <= 0.02,
        "no more threads": threads[1] <= threads[0],
        "files constant": len(found["files"]) == 1,
        "rate within 5%": abs(pieces[1] / pieces[0] - 1) <= 0.05,
    }
    return found


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    context, found = multiprocessing.get_context("spawn"), {}
    for names in [settings.only] if settings.together else [(name,) for name in settings.only]:
        started = []
        for name in names:
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=soak, args=(name, settings.minutes, sending))
            process.start()
            sending.close()
            started.append((name, process, receiving))
        for name, process, receiving in started:
            try:
                samples = receiving.recv()
            except EOFError:
                process.join()
                raise SystemExit(f"the process of {name} ended with exit code {process.exitcode}; see above") from None
            process.join()
            found[name] = judged(samples, settings.settled)
            print(name, json.dumps(found[name]), flush=True)
    result = {
        **provenance(),
        "minutes": settings.minutes,
        "together": settings.together,
        "found": found,
    }
    settings.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(all(one["holds"].values()) for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
