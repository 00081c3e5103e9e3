"""Finding the settings that run fastest on this machine: short measured trials, each in a process of its own.

The threads of a pool live as long as a compiled loop refers to it, and a new pool is a new compilation; so every trial
starts afresh.
"""

import contextlib
import ctypes
import hashlib
import json
import math
import multiprocessing
import os
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from volvox._arguments import said
from volvox._checks import number
from volvox.checkpoint import write_file
from volvox.provenance import processor, versions
from volvox.types import Algorithm, Interrupted

__all__ = ["Tuned", "tune"]

_PAIRS = 3
_CONFIDENCE = 0.9
_PATIENCE = 900.0
"""Seconds for a trial, compilation included."""
_SIGNAL_AT_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG of Linux

Settings = dict[str, Any]


class Tuned(NamedTuple):
    """The result of `tune`.

    Attributes:
      settings: The fastest: one value for each name in `choices`.
      timesteps_per_second: Of those settings, the median of their trials.
      trials: What was measured, in this order: `settings`, and `timesteps_per_second` or `error`.
    """

    settings: Settings
    timesteps_per_second: float
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
    """Finds the settings with which an algorithm makes the most timesteps a second on this machine.

        def make(num_envs, groups):
            env = vx.envs.atari("Pong", num_envs=num_envs, groups=groups)
            return vx.learn(vx.A3C(), vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso()), env)

        tuned = vx.tune(make, {"groups": [2, 3, 4], "num_envs": [48, 96, 192]})
        algorithm = make(**tuned.settings)

    One setting after the other, in the order of `choices`: each other value is tried against the best so far, in pairs
    of trials right after one another, in alternating order. A value that loses its first pair is dropped; one that wins
    is accepted if over three pairs its mean gain (of logarithms) exceeds `min_gain` and 1.9 standard errors, beyond
    which Student's t leaves 10%. Use the machine for nothing else meanwhile.

    Speed is all that is looked at. Groups, threads and micro-batches do not change what is learned, or hardly;
    environments and the length of segments do.

    Args:
      make: Makes the algorithm of settings by name. It travels to other processes, so it must be importable: a
        function at the top level of a module or script, or a `functools.partial` of one.
      choices: JSON values to try for each setting; the search begins with the first of each.
      seconds: Length of a trial, compilation not counted.
      min_gain: The smallest gain worth a change, as a fraction.
      cache: Folder in which results are kept, by machine, versions, choices and the algorithm's config where the search
        begins; None keeps none.
      progress: Print a line a trial.

    Returns:
      `Tuned`.

    Raises:
      ValueError: No choices, the first values cannot be run (the message says why), or a damaged result in the cache.
    """
    if not callable(make):
        raise TypeError(f"tune takes a function that makes an algorithm of settings; got {said(make)}")
    if not choices or any(len(values) == 0 for values in choices.values()):
        raise ValueError(f"choices={dict(choices)!r}: give at least one value for at least one setting.")
    number("seconds", seconds, above=0, high=_PATIENCE / 3)
    number("min_gain", min_gain, low=0)
    best = {setting: values[0] for setting, values in choices.items()}
    described = {} if cache is None else _in_a_process(_describe, make, best)
    path = None
    if cache is not None and "error" not in described:  # with an error, the first trial fails too, and says why
        described["choices"] = {setting: list(values) for setting, values in choices.items()}
        described["trials"] = {"seconds": seconds, "min_gain": min_gain, "fields": Tuned._fields}
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:24]
        path = Path(os.path.expanduser(cache), f"{digest}.json")  # without a home, ~ stays
        if path.exists():
            try:
                return Tuned(**json.loads(path.read_text())["result"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path} is no result of tuning any more ({error}); remove it.") from error

    trials: list[dict[str, Any]] = []
    if progress:
        tried = ", ".join(f"{name} {', '.join(map(str, values))}" for name, values in choices.items())
        print(f"tune: {tried}: trials of {seconds:g} s and their compilation, best and candidate in turn", flush=True)

    def measure(settings: Settings) -> float:
        """Returns timesteps a second; NaN if these settings cannot be run."""
        trials.append({"settings": settings, **_in_a_process(_trial, make, settings, seconds)})
        rate = trials[-1].get("timesteps_per_second", math.nan)
        if progress:
            print(f"tune: {settings}: {trials[-1].get('error', f'{rate:,.0f} timesteps/s')}", flush=True)
        return rate

    if math.isnan(measure(best)):
        raise ValueError(f"{best} cannot be run, where the search begins: {trials[0]['error']}")
    for setting, values in choices.items():
        for value in values[1:]:
            candidate = {**best, setting: value}
            if _is_faster(measure, best, candidate, min_gain):
                best = candidate
    rates = [trial["timesteps_per_second"] for trial in trials if trial["settings"] == best and "error" not in trial]
    tuned = Tuned(best, statistics.median(rates), trials)
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, json.dumps({"of": described, "result": tuned._asdict()}, indent=1) + "\n")
        except OSError as error:  # the trials took minutes
            warnings.warn(f"the result of tuning is not kept for the next time: {error}", UserWarning, stacklevel=2)
    return tuned


def measure_speed(algorithm: Algorithm, seconds: float) -> float:
    """Measures the timesteps a second of an algorithm from its beginning, compilation not counted.

    Args:
      algorithm: Its steps report `stepped`, the timesteps so far in a phase, to their monitor about once a second and
        when a phase ends.
      seconds: Length of the measurement.

    Returns:
      Timesteps per second; of a population, those of all slots, idle ones included.

    Raises:
      RuntimeError: After ten steps of the algorithm nothing could be measured.
    """
    stopwatch = _Stopwatch(seconds)
    state = algorithm.init(jax.random.key(0))
    with contextlib.suppress(Interrupted):
        while stopwatch.spent < seconds:  # a step's last call cannot interrupt it
            stopwatch.begin_step()
            state, _ = algorithm.step(state, monitor=stopwatch)
    return stopwatch.stepped / stopwatch.spent


class _Stopwatch:
    """A monitor that counts timesteps and time once everything is compiled.

    Attributes:
      stepped: Timesteps measured.
      spent: Seconds in which they were made.
    """

    def __init__(self, seconds: float):
        self.stepped, self.spent = 0, 0.0
        self._seconds, self._step, self._phase, self._called = seconds, 0, "", 0.0
        self._last: tuple[int, float] | None = None  # timesteps and time of the last call since which nothing compiled

    def begin_step(self) -> None:
        """Notes that a step of the algorithm begins."""
        if self.spent == 0 and self._step == 10:
            raise RuntimeError(
                "the algorithm reported no timesteps in ten steps: to be tuned, its step must call its monitor with "
                "`stepped`"
            )
        self._step, self._phase, self._called = self._step + 1, "", time.perf_counter()

    def __call__(self, progress: Mapping[str, Any]) -> bool:
        now, done = time.perf_counter(), int(progress.get("stepped", 0))
        if progress.get("phase") != self._phase:
            # All is compiled by the third step, so what is short enough for one call of this is measured whole.
            self._last = (0, self._called) if self._step > 2 and self._phase != "compiling" else None
            self._phase = str(progress.get("phase"))
        if self._last is not None and done > self._last[0]:
            self.stepped, self.spent = self.stepped + done - self._last[0], self.spent + now - self._last[1]
        self._last, self._called = (done, now), now
        return self.spent >= self._seconds


def _is_faster(measure: Callable[[Settings], float], best: Settings, candidate: Settings, min_gain: float) -> bool:
    gains: list[float] = []
    for pair in range(_PAIRS):
        order = (best, candidate) if pair % 2 == 0 else (candidate, best)
        rates = {id(settings): measure(settings) for settings in order}
        gains.append(math.log(rates[id(candidate)] / rates[id(best)]))
        if not gains[0] > 0:  # or NaN: the candidate cannot be run
            return False
    import scipy.stats  # half a second

    noise = float(scipy.stats.t.ppf(_CONFIDENCE, _PAIRS - 1) * scipy.stats.sem(gains))
    return statistics.mean(gains) > max(math.log1p(min_gain), noise)


def _in_a_process(target: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """Returns what `target(*args)` does in a fresh process, or `error`; this one leaves the devices' memory alone."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, target, args))  # a daemon could not have workers
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(_PATIENCE) else {"error": f"no result after {_PATIENCE:.0f} seconds"}
    except EOFError:
        process.join()
        return {"error": f"the process ended with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()
        receiver.close()


def _send(sender: Any, target: Callable[..., dict[str, Any]], args: tuple[Any, ...]) -> None:
    _end_with_parent()
    try:
        sender.send(target(*args))
    except (ValueError, TypeError, RuntimeError) as error:  # settings that do not fit; anything else ends the process
        sender.send({"error": f"{type(error).__name__}: {error}"})


def _end_with_parent() -> None:
    """Has the system end this process when the one that started it ends, were it by SIGKILL."""
    parent = multiprocessing.parent_process()
    ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL)
    if parent is not None and os.getppid() != parent.pid:  # it ended before
        os._exit(1)


def _describe(make: Callable[..., Algorithm], settings: Settings) -> dict[str, Any]:
    """What a result depends on, in JSON values."""
    return {
        "config": json.loads(json.dumps(dict(make(**settings).config), default=dict)),
        "processor": processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "devices": sorted({device.device_kind for device in jax.devices()}),
        "versions": versions(),
    }


def _trial(make: Callable[..., Algorithm], settings: Settings, seconds: float) -> dict[str, Any]:
    return {"timesteps_per_second": measure_speed(make(**settings), seconds)}
