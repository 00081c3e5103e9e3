"""Model of the speed of actors on several machines, from measured parts; all figures are predictions.

    python benchmarks/scaling.py                # reads benchmarks/results, and prints
    python benchmarks/scaling.py --json

An actor takes 1 / emulators + 1 / networks seconds for a timestep of a slot, because both share the cores; a group is
stepped until its last slot is idle; a member that begins is decoded. Actors pull portions of the sizes that volvox
hands out, in the population's order, and the process of the script is busy for a while with each member. No machine
fails, none is faster than the others, and nothing waits for the network.

First it predicts what `distributed.py efficiency` measured, from what `distributed.py parts` measured, and what
`processes.py` measured of a learner that is divided over processes, from parts measured there. Then it predicts larger
clusters, from the loop of `population_rollout.py` on two cores: as if 16 cores were eight times as fast as two. Nothing
was measured on a GPU: there it predicts the bound that the emulators set.
"""

import argparse
import dataclasses
import heapq
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from volvox.distributed.ray_evaluator import chunk_sizes

RESULTS = Path(__file__).parent / "results"
FRAMES, FRAME_SKIP = 10**9, 4
TRAINING, CANDIDATES, VALIDATION = 1_000, 10, 30
"""Members of a generation, those that play for elite, and the validation episodes of each (Such et al. 2017)."""
MEAN_LENGTH, LONGEST = 1_000, 5_000
"""Timesteps of an episode, by assumption: exponentially distributed, and cut."""

SLOTS = (32, 64, 128)
"""Slots of a machine of 16 cores, of which the best number is taken; with fewer, a group has less than one a core."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Actor:
    """What one actor does.

    Attributes:
      step: Seconds of a timestep of a slot.
      slots: Environments.
      decoding: Seconds of a member.
      call: Seconds of a portion, whatever is in it.
      groups: Of environments.
    """

    step: float
    slots: int
    decoding: float = 0.0
    call: float = 0.0
    groups: int = 2

    def seconds(self, lengths: Sequence[float]) -> float:
        """Seconds of a portion of episodes of these lengths, in timesteps."""
        ends = [(0.0, slot) for slot in range(self.slots)]
        beats = [0.0] * self.groups
        for length in lengths:
            begin, slot = heapq.heappop(ends)
            end = begin + length + 1  # the observation that begins it
            beats[slot % self.groups] = max(beats[slot % self.groups], end)
            heapq.heappush(ends, (end, slot))
        return sum(beats) * self.slots / self.groups * self.step + len(lengths) * self.decoding + self.call


def phase(lengths: Sequence[float], actor: Actor, actors: int) -> float:
    """Seconds in which so many actors play episodes of these lengths."""
    free, begin = [0.0] * actors, 0
    for size in chunk_sizes(len(lengths), actors, actor.slots):
        heapq.heappush(free, heapq.heappop(free) + actor.seconds(lengths[begin : begin + size]))
        begin += size
    return max(free)


def predicted(parts: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Rates of part (b), by the model, and their ratios over what was measured."""
    settings, found = measured["settings"], {}
    cores, slots = settings["cores"], settings["slots"]
    for name, part, actors in (("one actor", "one actor", 1), ("an actor a core", "an actor a core", cores)):
        of = parts["results"][part]
        step = 1 / of["emulators"] + 1 / of["networks"]
        actor = Actor(step=step, slots=slots // actors, decoding=of["decoding"])
        rates = [sum(lengths) / phase(lengths, actor, actors) for lengths in measured["results"]["lengths"][name]]
        was = statistics.median(measured["results"]["timesteps_per_second"][name])
        found[name] = {"predicted": statistics.median(rates), "measured": was}
    ratio = found["an actor a core"]["predicted"] / found["one actor"]["predicted"]
    was = measured["results"]["ratio"]
    return found | {"ratio": {"predicted": ratio, "measured": was, "predicted_over_measured": ratio / was}}


def divided(found: dict[str, Any]) -> dict[str, Any]:
    """The ratio of part (d), by the model: parts in turns, and an exchange for each update."""
    parts = found["parts"]
    whole, each = (statistics.median(rates) for rates in parts["timesteps_per_second_in_turns"].values())
    second = 1 / (2 * each) + parts["exchange_seconds"] / parts["timesteps_per_update"]  # of a timestep of both
    ratio = 1 / second / whole
    return {"predicted": ratio, "measured": found["ratio"], "predicted_over_measured": ratio / found["ratio"]}


def lengths_of(rng: np.random.Generator, episodes: int) -> np.ndarray:
    """Draws lengths of episodes, in timesteps."""
    return np.minimum(rng.exponential(MEAN_LENGTH, episodes), LONGEST).round()


def shares(draws: int = 10) -> dict[str, float]:
    """Share of the time in which two actors of 32 slots are busy with 1 000 members, and one process without actors.

    An expected length is the length multiplied or divided by 1.65, one standard deviation of its logarithm.
    """
    rng, actor = np.random.default_rng(0), Actor(step=1.0, slots=32)
    found: dict[str, list[float]] = {}
    for _ in range(draws):
        lengths = lengths_of(rng, TRAINING)
        expected = lengths * np.exp(0.5 * rng.standard_normal(TRAINING))
        orders = {"as they come": lengths, "longest expected first": lengths[np.argsort(-expected)]}
        rows = {
            f"two actors, {name}": order.sum() / (2 * phase(order.tolist(), actor, 2)) for name, order in orders.items()
        }
        for name, share in {**rows, "one process": lengths.sum() / actor.seconds(lengths.tolist())}.items():
            found.setdefault(name, []).append(float(share))
    return {name: statistics.mean(each) for name, each in found.items()}


def hours(actor: Actor, actors: int, driver: float, between: float, members: int = TRAINING) -> dict[str, float]:
    """Hours of 10^9 frames of the genetic algorithm.

    Args:
      actor: One of the actors.
      actors: How many there are.
      driver: Seconds of the script for each member.
      between: Seconds between two generations in which nothing is played.
      members: Of a generation.
    """
    lengths = lengths_of(np.random.default_rng(0), members + CANDIDATES * VALIDATION)
    phases = [list(lengths[:members]), list(lengths[members:])]
    # A machine alone plays in the process of the script, and hands out nothing.
    played = [phase(one, actor, actors) if actors > 1 else actor.seconds(one) for one in phases]
    seconds = sum(max(a, driver * len(one)) for a, one in zip(played, phases, strict=True)) + between
    generations = FRAMES / FRAME_SKIP / lengths.sum()
    return {
        "slots": actor.slots,
        "seconds_of_a_generation": seconds,
        "generations": generations,
        "hours": generations * seconds / 3_600,
        "busy": lengths.sum() * actor.step / actors / seconds,
    }


def best(step: float, actors: int, **others: Any) -> dict[str, float]:
    """The hours with the number of slots, of a few, that makes them fewest."""
    return min((hours(Actor(step=step, slots=n), actors, **others) for n in SLOTS), key=lambda x: x["hours"])


def clusters(rollout: dict[str, Any], cost: dict[str, Any], strategies: dict[str, Any]) -> dict[str, Any]:
    """Hours of larger clusters of machines with 16 cores."""
    step = 1 / (rollout["stepped_per_s"] * 16 / rollout["cpus"])
    emulators = 1 / (rollout["env_steps_per_s"] * 16 / rollout["cpus"])
    others = {"driver": 1 / cost["results"][0]["members_per_second"], "between": strategies["volvox_s"]}
    return {
        "16 cores": best(step, 1, **others),
        "720 cores": best(step, 45, **others),
        "1 000 cores": best(step, 62, **others),
        "720 cores, 10 000 members": best(step, 45, **others, members=10_000),
        "16 cores and a GPU, at most": best(emulators, 1, **others),
        "8 GPUs, each with 16 cores, at most": best(emulators, 8, **others),
    }


def main() -> None:
    """Prints the predictions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    found: dict[str, Any] = {"efficiency": predicted(_needed("distributed_parts"), _needed("distributed_efficiency"))}
    found["processes"] = divided(_needed("processes"))
    found["clusters"] = clusters(*map(_needed, ("population_rollout", "distributed_cost", "strategies_1000_table")))
    found["busy"] = shares()
    if given.json:
        print(json.dumps(found))
        return
    for name, row in {**found["efficiency"], "two processes over one": found["processes"]}.items():
        print(f"{name:36} " + "  ".join(f"{key} {value:.4g}" for key, value in row.items()))
    print("share of the time in which 1 000 members keep them busy:")
    for name, share in found["busy"].items():
        print(f"{name:36} {share:.0%}")
    print("predictions of 10^9 frames:")
    for name, row in found["clusters"].items():
        print(f"{name:36} " + "  ".join(f"{key} {value:.3g}" for key, value in row.items()))


def _needed(name: str) -> dict[str, Any]:
    """A measurement."""
    path = RESULTS / f"{name}_cpu2_epyc.json"
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}, which the benchmark of that name writes")
    return json.loads(path.read_text())


if __name__ == "__main__":
    main()
