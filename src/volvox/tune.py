"""Finding the settings that run fastest on this machine: short measured trials, each in a process of its own.

Emulator pools do not go away inside a process, and a new pool is a new compilation; so every trial starts afresh.
"""

import hashlib
import json
import math
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax

from volvox import files
from volvox.types import Algorithm, Interrupted

_PAIRS = 3
_QUANTILE = 1.886
"""Of Student's t with `_PAIRS - 1` degrees of freedom: 10% lie above."""
_SECONDS_TO_COMPILE = 600.0


class Tuned(NamedTuple):
    """What `tune` found."""

    settings: dict[str, Any]
    """The fastest: one value for each name in `choices`."""
    steps_per_second: float
    """Of those settings, the median of their trials."""
    trials: list[dict[str, Any]]
    """What was measured in which order: `settings`, and `steps_per_second` or `error`."""


def tune(
    make: Callable[..., Algorithm],
    choices: Mapping[str, Sequence[Any]],
    *,
    name: str,
    seconds: float = 10.0,
    min_gain: float = 0.02,
    cache: str | os.PathLike[str] | None = "~/.cache/volvox/tune",
    progress: bool = True,
) -> Tuned:
    """Finds the settings with which an algorithm makes the most steps a second on this machine.

    One setting after the other, in the order of `choices`: each other value is tried against the best so far, in pairs
    of trials right after one another, in alternating order. A value that loses its first pair is dropped; one that wins
    is accepted if over three pairs its mean gain (of logarithms) exceeds `min_gain` and 1.9 standard errors. Use the
    machine for nothing else meanwhile.

    Speed is all that is looked at. Groups, threads and micro-batches do not change what is learned, or hardly;
    environments and the length of segments do.

    Args:
      make: settings by name -> the algorithm. It travels to other processes, so it must be importable: a function at
        the top level of a module or script, or a `functools.partial` of one.
      choices: name -> values; the first of each is where the search begins.
      name: of what is tuned, for the cache: the script, the game, the network.
      seconds: of a trial, compilation not counted.
      min_gain: the smallest gain worth a change, as a fraction.
      cache: folder in which results are kept, by machine, versions, name and choices; None keeps none.
      progress: print a line a trial.

    Returns:
      `Tuned`.

    Raises:
      ValueError: no choices, or the first values cannot be run; the message says why.
    """
    if not choices or any(len(values) == 0 for values in choices.values()):
        raise ValueError(f"choices={dict(choices)!r}: give at least one value for at least one setting.")
    if not seconds > 0 or min_gain < 0:
        raise ValueError(f"seconds={seconds} must be positive, and min_gain={min_gain} must not be negative.")
    path = None if cache is None else Path(cache).expanduser() / f"{_key(name, choices)}.json"
    if path is not None and path.exists():
        return Tuned(**json.loads(path.read_text())["result"])

    trials: list[dict[str, Any]] = []

    def measure(settings: dict[str, Any]) -> float | None:
        """Steps a second, or None if these settings cannot be run."""
        outcome = _in_a_process(make, settings, seconds)
        trials.append({"settings": settings, **outcome})
        if progress:
            print(f"tune: {settings}: {_said(outcome)}", flush=True)
        return outcome.get("steps_per_second")

    best = {setting: values[0] for setting, values in choices.items()}
    if measure(best) is None:
        raise ValueError(f"{best} cannot be run, where the search begins: {trials[-1]['error']}")
    for setting, values in choices.items():
        for value in values[1:]:
            candidate = {**best, setting: value}
            if _is_faster(measure, best, candidate, min_gain):
                best = candidate
    rates = [trial["steps_per_second"] for trial in trials if trial["settings"] == best and "error" not in trial]
    tuned = Tuned(best, statistics.median(rates), trials)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, json.dumps({"name": name, "machine": _machine(), "result": tuned._asdict()}, indent=1) + "\n")
    return tuned


def _is_faster(
    measure: Callable[[dict[str, Any]], float | None], best: dict[str, Any], candidate: dict[str, Any], min_gain: float
) -> bool:
    gains: list[float] = []
    for pair in range(_PAIRS):
        order = (best, candidate) if pair % 2 == 0 else (candidate, best)
        rates = {id(settings): measure(settings) for settings in order}
        new, old = rates[id(candidate)], rates[id(best)]
        if new is None or old is None:
            return False
        gains.append(math.log(new / old))
        if pair == 0 and gains[0] <= 0:
            return False
    noise = _QUANTILE * statistics.stdev(gains) / math.sqrt(len(gains))
    return statistics.mean(gains) > max(math.log1p(min_gain), noise)


def _in_a_process(make: Callable[..., Algorithm], settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_trial, args=(make, settings, seconds, sender), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds + _SECONDS_TO_COMPILE):
            return {"error": f"no result after {seconds + _SECONDS_TO_COMPILE:.0f} seconds"}
        return receiver.recv()
    except EOFError:
        process.join()
        return {"error": f"the process ended with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()
        receiver.close()


def _trial(make: Callable[..., Algorithm], settings: dict[str, Any], seconds: float, sender: Any) -> None:
    try:
        algorithm = make(**settings)
        rate = measured(algorithm, seconds)
    except (ValueError, TypeError, RuntimeError) as error:  # settings that do not fit; anything else ends the process
        sender.send({"error": f"{type(error).__name__}: {error}"})
        return
    sender.send({"steps_per_second": rate})
    algorithm.close()


def measured(algorithm: Algorithm, seconds: float) -> float:
    """Steps a second of an algorithm from its beginning, compilation not counted.

    Args:
      algorithm: its `monitor` is told `steps` (so far in a phase) about once a second.
      seconds: to measure.

    Returns:
      Steps (slot-steps of a population) per second.
    """
    last: tuple[str, int, float] | None = None
    steps, spent, calls = 0, 0.0, 0

    def monitor(progress: Mapping[str, Any]) -> bool:
        nonlocal last, steps, spent, calls
        phase, done, now = str(progress.get("phase")), int(progress.get("steps", 0)), time.perf_counter()
        if last is not None and last[0] == phase and done > last[1] > 0:
            calls += 1
            if calls > 1:  # the first interval may hold the growth of chunks
                steps, spent = steps + done - last[1], spent + now - last[2]
        last = (phase, done, now)
        return spent >= seconds

    state = algorithm.init(jax.random.key(0))
    try:
        while spent < seconds:
            state, _ = algorithm.step(state, monitor=monitor)
            last = None  # between steps other things happen, which count for nothing here
    except Interrupted:
        pass
    return steps / spent


def _said(outcome: dict[str, Any]) -> str:
    return outcome["error"] if "error" in outcome else f"{outcome['steps_per_second']:,.0f} steps/s"


def _key(name: str, choices: Mapping[str, Sequence[Any]]) -> str:
    what = {"name": name, "choices": {key: list(values) for key, values in choices.items()}, "machine": _machine()}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def _machine() -> dict[str, Any]:
    """What a result depends on."""
    information = Path("/proc/cpuinfo")
    models = {line for line in information.read_text().splitlines() if line.startswith("model name")}
    return {
        "processor": sorted(models)[0].partition(":")[2].strip() if models else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "devices": sorted({device.device_kind for device in jax.devices()}),
        "versions": {package: version(package) for package in ("volvox", "jax", "envpool")},
    }
