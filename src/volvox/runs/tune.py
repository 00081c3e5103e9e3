"""Finds the settings that run fastest on this machine, by short measured trials."""

import json
import math
import multiprocessing
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from volvox._checks import number
from volvox.runs.profile import measure_speed
from volvox.types import Algorithm

_PAIRS = 2
_LIMIT = 900.0
"""Seconds of a trial, including compilation."""


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

    Settings are varied one after the other. Each other value and the best one so far are measured in alternation, and
    the value is accepted if it is faster in each pair and faster by `min_gain` on average. Each trial runs in its own
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
    number("seconds", seconds, above=0, high=_LIMIT / 3)
    number("min_gain", min_gain, low=0)
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
            gains: list[float] = []
            while len(gains) < _PAIRS and all(gain > 1 for gain in gains):
                gains.append(measure(candidate) / measure(best))  # NaN if the candidate cannot be run
            if all(gain > 1 for gain in gains) and statistics.mean(gains) >= 1 + min_gain:
                best = candidate
    rates = [trial["timesteps_per_second"] for trial in trials if trial["settings"] == best and "error" not in trial]
    return Tuned(best, statistics.median(rates), trials)


def _in_a_process(make: Callable[..., Algorithm], settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Measures settings in a new process, because the pools of envpool live as long as the process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, make, settings, seconds))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(_LIMIT) else {"error": f"no result after {_LIMIT:.0f} seconds"}
    except EOFError:
        process.join()
        return {"error": f"the process ended with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _measure(sender: Any, make: Callable[..., Algorithm], settings: dict[str, Any], seconds: float) -> None:
    try:
        sender.send({"timesteps_per_second": measure_speed(make(**settings), seconds)[1]})
    except (ValueError, TypeError, RuntimeError) as error:  # settings that do not fit together
        sender.send({"error": f"{type(error).__name__}: {error}"})
