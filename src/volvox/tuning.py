"""Finding the settings that run fastest on this machine: short measured trials, each in a process of its own.

The threads of a pool live as long as a compiled loop refers to it, and a new pool is a new compilation; so every trial
starts afresh.
"""

import hashlib
import itertools
import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from volvox import _files as files
from volvox import _machine as machine
from volvox.types import Algorithm, Interrupted

_PAIRS = 3
_QUANTILE = 1.886
"""Of Student's t with `_PAIRS - 1` degrees of freedom: 10% lie above."""
_PATIENCE = 900.0
"""Seconds for a trial, compilation included."""


class Tuned(NamedTuple):
    """What `tune` found.

    Attributes:
      settings: The fastest: one value for each name in `choices`.
      steps_per_second: Of those settings, the median of their trials.
      trials: What was measured in which order: `settings`, and `steps_per_second` or `error`.
    """

    settings: dict[str, Any]
    steps_per_second: float
    trials: list[dict[str, Any]]


def tune(
    make: Callable[..., Algorithm],
    choices: Mapping[str, Sequence[Any]],
    *,
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
      choices: name -> JSON values; the first of each is where the search begins.
      seconds: of a trial, compilation not counted.
      min_gain: the smallest gain worth a change, as a fraction.
      cache: folder in which results are kept, by machine, versions, choices and the algorithm's config where the search
        begins; None keeps none.
      progress: print a line a trial.

    Returns:
      `Tuned`.

    Raises:
      ValueError: no choices, the first values cannot be run (the message says why), or a damaged result in the cache.
    """
    if not choices or any(len(values) == 0 for values in choices.values()):
        raise ValueError(f"choices={dict(choices)!r}: give at least one value for at least one setting.")
    if not 0 < seconds <= _PATIENCE / 3 or not 0 <= min_gain < math.inf:
        raise ValueError(
            f"seconds={seconds} must be positive and at most {_PATIENCE / 3:.0f}, and min_gain={min_gain} not negative."
        )
    best = {setting: values[0] for setting, values in choices.items()}
    described = _in_a_process(_describe, make, best)
    if "error" in described:
        raise ValueError(f"{best} cannot be run, where the search begins: {described['error']}")
    path = None
    if cache is not None:
        described["choices"] = {setting: list(values) for setting, values in choices.items()}
        described["trials"] = {"seconds": seconds, "min_gain": min_gain}
        path = Path(cache).expanduser() / f"{_digest(described)}.json"
        if path.exists():
            return _kept(path)
        path.parent.mkdir(parents=True, exist_ok=True)

    trials: list[dict[str, Any]] = []

    def measure(settings: dict[str, Any]) -> float | None:
        """Steps a second, or None if these settings cannot be run."""
        outcome = _in_a_process(_trial, make, settings, seconds)
        trials.append({"settings": settings, **outcome})
        if progress:
            print(f"tune: {settings}: {_said(outcome)}", flush=True)
        return outcome.get("steps_per_second")

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
        files.write(path, json.dumps({"of": described, "result": tuned._asdict()}, indent=1) + "\n")
    return tuned


def _kept(path: Path) -> Tuned:
    try:
        return Tuned(**json.loads(path.read_text())["result"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no result of tuning any more ({error}); remove it.") from error


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


def _in_a_process(target: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """What `target(*args)` returns in a fresh process, or `error`. This one leaves the devices' memory alone."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, target, args), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(_PATIENCE):
            return {"error": f"no result after {_PATIENCE:.0f} seconds"}
        return receiver.recv()
    except EOFError:
        process.join()
        return {"error": f"the process ended with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()
        receiver.close()


def _send(sender: Any, target: Callable[..., dict[str, Any]], args: tuple[Any, ...]) -> None:
    try:
        result = target(*args)
    except (ValueError, TypeError, RuntimeError) as error:  # settings that do not fit; anything else ends the process
        result = {"error": f"{type(error).__name__}: {error}"}
    sender.send(result)


def _describe(make: Callable[..., Algorithm], settings: dict[str, Any]) -> dict[str, Any]:
    """What a result depends on, in JSON values."""
    config = json.loads(json.dumps(dict(make(**settings).config), default=dict))
    return {
        "config": config,
        "processor": machine.processor(),
        "cpus": machine.num_cpus(),
        "devices": sorted({device.device_kind for device in jax.devices()}),
        "versions": machine.versions(),
    }


def _trial(make: Callable[..., Algorithm], settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    return {"steps_per_second": measured(make(**settings), seconds)}


def measured(algorithm: Algorithm, seconds: float) -> float:
    """Steps a second of an algorithm from its beginning, compilation not counted.

    Args:
      algorithm: its `monitor` is told `stepped`, steps so far in a phase, about once a second and when a phase ends.
      seconds: to measure.

    Returns:
      Steps (slot-steps of a population) per second.

    Raises:
      RuntimeError: after ten steps of the algorithm nothing could be measured.
    """
    last: tuple[int, float] | None = None
    """Steps so far and the time, since which nothing was compiled."""
    phase, called, number, stepped, spent = "", 0.0, 0, 0, 0.0

    def monitor(progress: Mapping[str, Any]) -> bool:
        nonlocal last, phase, called, stepped, spent
        now, done = time.perf_counter(), int(progress.get("stepped", 0))
        if progress.get("phase") != phase:
            # All is compiled by the third step, so what is short enough for one call of this is measured whole.
            last = (0, called) if number > 2 and phase != "compiling" else None
            phase = str(progress.get("phase"))
        if last is not None and done > last[0]:
            stepped, spent = stepped + done - last[0], spent + now - last[1]
        last, called = (done, now), now
        return spent >= seconds

    state = algorithm.init(jax.random.key(0))
    try:
        for number in itertools.count(1):
            phase, called = "", time.perf_counter()
            state, _ = algorithm.step(state, monitor=monitor)
            if spent >= seconds:  # a step's last call cannot interrupt it
                break
            if spent == 0 and number == 10:
                raise RuntimeError("the algorithm told no progress in ten steps")
    except Interrupted:
        pass
    return stepped / spent


def _said(outcome: dict[str, Any]) -> str:
    return outcome["error"] if "error" in outcome else f"{outcome['steps_per_second']:,.0f} steps/s"


def _digest(described: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:24]
