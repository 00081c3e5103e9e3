"""Speed: what bounds it, and which settings are the fastest on this machine.

print(vx.profile(algorithm))
print(vx.tune(make_algorithm, {"groups": [2, 3, 4]}).settings)
"""

import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import jax

from volvox import _checks
from volvox.types import Algorithm


class Profile(NamedTuple):
    """Where the time of an algorithm goes. Times are seconds per timestep of one environment.

    The parts are called from Python to be timed, which takes some tenths of a millisecond for a group of environments.
    For small networks and fast environments this is longer than the parts themselves.

    Attributes:
      emulators: Time of the emulators alone.
      inference: Time of the networks that act.
      work: Time of learning, or of decoding for a population.
      work_name: "learning" or "decoding".
      timesteps_per_second: Rate of the loop in which the parts overlap.
    """

    emulators: float
    inference: float
    work: float
    work_name: str
    timesteps_per_second: float

    @property
    def bound(self) -> str:
        """The part that bounds the rate: "emulators" or "device"."""
        return "emulators" if self.emulators > self.inference + self.work else "device"

    def __str__(self) -> str:
        parts = {"emulators": self.emulators, "inference": self.inference, self.work_name: self.work}
        total = sum(parts.values())
        lines = [f"{'part':<12}{'us/timestep':>12}{'share':>8}"]
        lines += [f"{name:<12}{1e6 * value:>12.2f}{value / total:>8.0%}" for name, value in parts.items()]
        lines += [f"{'in turn':<12}{1e6 * total:>12.2f}{1 / total:>14,.0f} timesteps/s"]
        rate = self.timesteps_per_second
        lines += [f"{'overlapped':<12}{1e6 / rate:>12.2f}{rate:>14,.0f} timesteps/s"]
        lines += [f"bound by the {self.bound}; overlapping is {rate * total:.2f} times as fast as taking turns"]
        return "\n".join(lines)


def profile(algorithm: Algorithm, *, seconds: float = 10.0) -> Profile:
    """Measures the time of emulators, inference and learning or decoding, and the rate of the overlapped loop.

    Args:
      algorithm: The algorithm; it begins anew.
      seconds: Length of each of the two measurements; compilation and evaluations are not counted.

    Raises:
      ValueError: The algorithm cannot be profiled, or there are several processes.
    """
    _checks.number("seconds", seconds, above=0)
    if algorithm.profile is None or jax.process_count() > 1:
        raise ValueError("this algorithm cannot be profiled; those of vx.evolve and vx.learn can, in one process")
    state, rate = measure_speed(algorithm, seconds)
    emulators, inference, work = algorithm.profile(state, seconds)
    work_name = "decoding" if algorithm.step_name == "generation" else "learning"
    return Profile(emulators, inference, work, work_name, rate)


def measure_speed(algorithm: Algorithm, seconds: float) -> tuple[Any, float]:
    """Returns (state, timesteps per second) of whole steps without their evaluations.

    Two steps that compile, and the random actions before an off-policy learner's first update, are not measured.
    """

    def frames(metrics: Mapping[str, Any]) -> float:
        return float(metrics.get("total_frames", metrics.get("frames", 0)))

    state, metrics = algorithm.step(algorithm.init(_checks.typed_key(0)))
    state, metrics = algorithm.step(state)
    for _ in range(100):  # a learner may never make an update
        if metrics.get("update") != 0:
            break
        state, metrics = algorithm.step(state)
    frames_before, elapsed = frames(metrics), 0.0
    while elapsed < seconds:
        began = time.monotonic()
        state, metrics = algorithm.step(state)
        elapsed += time.monotonic() - began - metrics.get("evaluation_seconds", 0.0)
    return state, (frames(metrics) - frames_before) / algorithm.env.spec.frame_skip / elapsed


class Tuned(NamedTuple):
    """The result of `tune`.

    Attributes:
      settings: The fastest settings: one value for each name in `choices`.
      timesteps_per_second: Median rate of these settings.
      trials: All measurements in order: `settings`, and `timesteps_per_second` or `error`.
    """

    settings: dict[str, Any]
    timesteps_per_second: float
    trials: list[dict[str, Any]]


def tune(
    make: Callable[..., Algorithm],
    choices: Mapping[str, Sequence[Any]],
    *,
    seconds: float = 10.0,
    min_gain: float = 0.05,
    progress: bool = True,
) -> Tuned:
    """Finds the settings with which an algorithm makes the most timesteps per second.

        def make(num_envs, groups):
            env = vx.envs.atari("Pong", num_envs=num_envs, groups=groups)
            return vx.learn(vx.A3C(), vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso()), env)

        tuned = vx.tune(make, {"groups": [2, 3, 4], "num_envs": [48, 96, 192]})
        algorithm = make(**tuned.settings)

    Settings are varied one after the other. Each other value and the best one so far are measured in alternation, twice
    if the value is faster at first, and it is accepted if it is faster both times and by `min_gain` on average. Each
    trial runs in its own process. Trials compare speed alone. Groups, threads and micro-batches make little difference
    to learning, but the number of environments does.

    Args:
      make: Makes the algorithm. It is sent to other processes, so it must be a function at the top level of a module,
        or a `functools.partial` of one.
      choices: Values to try for each setting; the first ones are the beginning.
      seconds: Length of a trial; compilation is not counted.
      min_gain: Smallest accepted gain, as a fraction.
      progress: Print one line for each trial.

    Raises:
      ValueError: There are no choices, or the first values cannot be run.
    """
    if not choices or any(len(values) == 0 for values in choices.values()):
        raise ValueError(f"choices={dict(choices)!r}: give at least one value for at least one setting")
    _checks.number("seconds", seconds, above=0)
    trials: list[dict[str, Any]] = []

    def measure(settings: dict[str, Any]) -> float:
        trials.append({"settings": settings, **_in_a_process(make, settings, seconds)})
        rate = trials[-1].get("timesteps_per_second", math.nan)
        if progress:
            print(f"tune: {settings}: {trials[-1].get('error', f'{rate:,.0f} timesteps/s')}", flush=True)
        return rate

    best = {name: values[0] for name, values in choices.items()}
    if math.isnan(measure(best)):
        raise ValueError(f"{best} cannot be run: {trials[0]['error']}")
    for name, values in choices.items():
        for value in values[1:]:
            candidate = {**best, name: value}
            if math.isnan(rate := measure(candidate)):  # it cannot be run
                continue
            if (first := rate / measure(best)) > 1:
                second = measure(candidate) / measure(best)
                if second > 1 and (first + second) / 2 >= 1 + min_gain:
                    best = candidate
    rates = [trial["timesteps_per_second"] for trial in trials if trial["settings"] == best and "error" not in trial]
    return Tuned(best, statistics.median(rates), trials)


def _in_a_process(make: Callable[..., Algorithm], settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Measures settings in a new process, because the pools of envpool live as long as the process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        try:
            return {"timesteps_per_second": executor.submit(_measure, make, settings, seconds).result()}
        except (ValueError, TypeError, RuntimeError) as error:  # settings that do not fit together, or a crash
            return {"error": f"{type(error).__name__}: {error}"}


def _measure(make: Callable[..., Algorithm], settings: dict[str, Any], seconds: float) -> float:
    return measure_speed(make(**settings), seconds)[1]
