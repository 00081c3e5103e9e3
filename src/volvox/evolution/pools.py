"""The pools of environments and the slots of a run of evolution: made on first use, and never part of its state."""

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from volvox.population.decoding import Encoding, Member, encoding
from volvox.population.noise import Noise
from volvox.rollout.behaviors import Behavior
from volvox.rollout.evaluator import Evaluator, RolloutStatistics, SlotMemory
from volvox.rollout.slots import Part
from volvox.types import Config, Env, Evaluation, Genotype, Interrupted, Population

Seen = Callable[[dict[str, Any]], bool | None]
"""Progress figures, or `{"phase": ...}` while waiting, and optionally a `note` to print -> whether to stop."""


class Place(NamedTuple):
    """What an evaluator's pools and slots are made for.

    Attributes:
      test: Whether it plays test episodes.
      max_episode_steps: The cutoff, timesteps.
      formed: Whether its slots hold formed kernels (`Encoding.formed`).
    """

    test: bool
    max_episode_steps: int
    formed: bool


class Request(NamedTuple):
    """What a phase of a generation asks to be played.

    Attributes:
      population: Its members.
      num_episodes: E, the most episodes of any member.
      place: What the pools and slots are made for.
      seed: Seed of the episodes.
      pool_seed: Seed of the pools, if new ones are made.
      timed: Play a few beats with a stopwatch.
      part: Which part of a larger population this is; None: it is whole.
      origin: How each base of the population came from the bases of the generation before, fields `[P]`; None where
        they descend from no single members, or there is nothing before.
    """

    population: Population
    num_episodes: int
    place: Place
    seed: int
    pool_seed: int
    timed: bool = False
    part: Part | None = None
    origin: Member | None = None


class Player(Protocol):
    """Where populations are played: on pools of this process (`Pools`), or by others."""

    def play(self, request: Request, watch: Seen) -> tuple[Evaluation, RolloutStatistics]:
        """Plays a population; raises `Interrupted` if `watch` returned True, after which it can be used again."""
        ...

    def figures(self) -> dict[str, Any]:
        """What it adds to the metrics of a generation, counted since the last call."""
        ...

    def close(self) -> None:
        """Frees all that plays; it is made anew when it is needed again."""
        ...


class Workers(Protocol):
    """Settings of a `Player`, such as `volvox.distributed.ray`."""

    def player(self, config: Config, num_slots: int, chunk_seconds: float) -> Player | None:
        """Checks what can be checked before anything is started, and makes the player.

        Args:
          config: What `network`, `env`, `noise` and `behavior` are: JSON values, from which they are made elsewhere.
          num_slots: Environments of one worker.
          chunk_seconds: How often progress and interrupts are looked at.

        Returns:
          The player; None for that of this process.

        Raises:
          ValueError: The parts cannot be made elsewhere, or settings do not fit.
          ImportError: A package is missing.
        """
        ...


@dataclasses.dataclass
class Pools:
    """Pools, slots and the noise table: made on first use, and never part of the state.

    Attributes:
      genotype: The network.
      noise: Where noise comes from.
      env: The environments.
      behavior: What is recorded of each training and validation episode.
      capacity: The largest number of episodes of a phase.
      chunk_seconds: How often progress and interrupts are looked at.
      memory: The parameters of the slots.
      evaluators: What plays, by place.
      lock: Held by the thread that plays.
    """

    genotype: Genotype
    noise: Noise
    env: Env
    behavior: Behavior
    capacity: int
    chunk_seconds: float
    memory: SlotMemory | None = None
    evaluators: dict[Place, Evaluator] = dataclasses.field(default_factory=dict)
    lock: Any = dataclasses.field(default_factory=threading.RLock)

    @functools.cached_property
    def encoding(self) -> Encoding:
        """How members become parameters; it holds the noise table."""
        return encoding(self.genotype, self.noise)

    def play(self, request: Request, watch: Seen) -> tuple[Evaluation, RolloutStatistics]:
        """See `Player`."""
        place, code = request.place, dataclasses.replace(self.encoding, formed=request.place.formed)
        if place not in self.evaluators and watch({"phase": "compiling"}):
            raise Interrupted("before the loop was compiled")
        options = {"seed": request.seed, "part": request.part, "timed": request.timed, "monitor": watch}
        try:
            evaluator = self.evaluator(place, code, request.pool_seed)
            return evaluator.evaluate(request.population, request.num_episodes, code, **options)
        except Interrupted:
            raise
        except BaseException:
            self.close()  # donated buffers and pools in flight cannot be trusted any more
            raise

    def figures(self) -> dict[str, Any]:
        """See `Player`."""
        return {}

    def repeatable(self, place: Place) -> bool:
        """Whether the same request would give the same episodes once more, of a place that has been played."""
        return all(group.rekey is not None for group in self.evaluators[place].loop.groups)

    def evaluator(self, place: Place, code: Encoding, seed: int) -> Evaluator:
        """Returns the evaluator of a phase; evaluators with another cutoff or another kind of slots are closed."""
        if place not in self.evaluators:
            # Slots of both kinds at once would take the memory of both.
            self._close(lambda other: other.formed != place.formed or other.test == place.test)
            if self.memory is None:
                size = self.env.num_envs // self.env.num_groups
                self.memory = SlotMemory(self.genotype, code, self.env.num_groups, size)
            self.evaluators[place] = Evaluator(
                self.genotype,
                lambda _: self.env.make(seed, max_episode_steps=place.max_episode_steps, host=place.test),
                self.memory,
                capacity=self.capacity,
                behavior=None if place.test else self.behavior,
                chunk_seconds=self.chunk_seconds,
            )
        return self.evaluators[place]

    def close(self) -> None:
        """Frees pools and slots, and keeps the table; all are made anew when they are needed again."""
        self._close(lambda place: True)

    def _close(self, which: Callable[[Place], bool]) -> None:
        for place in filter(which, list(self.evaluators)):
            self.evaluators.pop(place).close()
        if not self.evaluators:
            self.memory = None
