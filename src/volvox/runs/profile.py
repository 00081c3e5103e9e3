"""Measures what bounds the speed of an algorithm.

print(vx.profile(algorithm))
"""

import time
from typing import Any, NamedTuple

from volvox import _checks
from volvox.types import Algorithm

_WARM_UP = 2
"""Steps that compile."""


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


def profile(algorithm: Algorithm, *, seconds: float = 10.0, seed: int = 0) -> Profile:
    """Measures the time of emulators, inference and learning or decoding, and the rate of the overlapped loop.

    Args:
      algorithm: The algorithm; it begins anew.
      seconds: Length of each of the two measurements; compilation is not counted.
      seed: Seed of the algorithm.

    Raises:
      ValueError: The algorithm cannot be profiled.
    """
    _checks.number("seconds", seconds, above=0)
    if algorithm.profile is None:
        raise ValueError("this algorithm cannot be profiled; those of vx.evolve and vx.learn can")
    state, rate = measure_speed(algorithm, seconds, seed=seed)
    _, times = algorithm.profile(state, seconds)
    emulators, inference, work = times
    work_name = "decoding" if algorithm.step_name == "generation" else "learning"
    return Profile(emulators, inference, work, work_name, rate)


def measure_speed(algorithm: Algorithm, seconds: float, *, seed: int = 0) -> tuple[Any, float]:
    """Measures the timesteps per second of whole steps after two that compile; returns (state, rate)."""
    state, frames, began = algorithm.init(_checks.typed_key(seed)), 0.0, 0.0
    step, end = 0, float("inf")
    while True:
        state, metrics = algorithm.step(state)
        step, now = step + 1, time.monotonic()
        done = float(metrics.get("total_frames", metrics.get("frames", 0))) - float(metrics.get("evaluation_frames", 0))
        if step == _WARM_UP:
            frames, began, end = done, now, now + seconds
        elif now >= end:
            return state, (done - frames) / algorithm.env.spec.frame_skip / (now - began)
