"""Finds the settings that run fastest on this machine, by short measured trials."""

import json
import math
import multiprocessing
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from volvox._checks import number
from volvox.runs.profile import measure_speed
from volvox.types import Algorithm


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

    Settings are varied one after the other. Each other value and the best one so far are measured twice in alternation,
    and the value is accepted if it is faster both times and faster by `min_gain` on average. Each trial runs in its own
    process. Only speed is compared: groups, threads and micro-batches hardly change what is learned; the number of
    environments does.

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
    number("seconds", seconds, above=0)
    trials: list[dict[str, Any]] = []

    def measure(settings: dict[str, Any]) -> float:
        trials.append({"settings": settings, **_in_a_process(make, settings, seconds)})
        rate = trials[-1].get("timesteps_per_second", math.nan)
        if progress:
            print(f"tune: {json.dumps(settings)}: {trials[-1].get('error', f'{rate:,.0f} timesteps/s')}", flush=True)
        return rate

    best = {name: values[0] for name, values in choices.items()}
    if math.isnan(measure(best)):
        raise ValueError(f"{best} cannot be run: {trials[0]['error']}")
    for name, values in choices.items():
        for value in values[1:]:
            candidate = {**best, name: value}
            first = measure(candidate) / measure(best)  # NaN if the candidate cannot be run
            if first > 1:
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
