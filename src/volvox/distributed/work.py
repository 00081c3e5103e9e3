"""What is left of a population to play, in portions that actors pull: plain NumPy, without Ray.

Portions are handed out longest expected first. When none is left, those that are still out may be handed out again, and
the first answer counts. That is for episodes that are the same wherever they are played: of different episodes, those
that end first would be short ones.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from volvox.types import Evaluation, Population


class Rows(NamedTuple):
    """Episodes to play, each field NumPy's `[K]`: some 25 bytes each.

    Attributes:
      parent: int32: Index of the member's base.
      seed: int32: Names the member's noise.
      scale: float32: Signed noise power.
      initial: bool: A member of the first generation.
      priority: float32: The expected length, timesteps.
      member: int32: Index of the member in the population.
      episode: int32: Which of the member's episodes.
    """

    parent: np.ndarray
    seed: np.ndarray
    scale: np.ndarray
    initial: np.ndarray
    priority: np.ndarray
    member: np.ndarray
    episode: np.ndarray


class Results(NamedTuple):
    """Results of a portion.

    Attributes:
      returns: float32 `[K]`.
      lengths: int32 `[K]`.
      behaviors: float32 `[K, D]`.
    """

    returns: np.ndarray
    lengths: np.ndarray
    behaviors: np.ndarray


class Work:
    """The episodes of one phase, and their results.

    Attributes:
      total: Episodes to play.
      done: Those whose results are there.
      repeated: Portions that were handed out more than once at a time.
    """

    def __init__(self, population: Population, num_episodes: int, *, first_portion: int = 0):
        """Lines up the episodes.

        Args:
          population: `N` members; its bases are not looked at.
          num_episodes: E, the most episodes of any member.
          first_portion: Number of the first portion. Answers to other numbers are ignored.
        """
        episodes = np.asarray(population.episodes)
        self._weights = 1 / np.maximum(episodes, 1)
        member = np.repeat(np.arange(episodes.size, dtype=np.int32), episodes)
        begins = np.cumsum(episodes) - episodes
        episode = (np.arange(member.size) - begins[member]).astype(np.int32)
        order = np.argsort(-np.nan_to_num(np.asarray(population.priority))[member], kind="stable")
        member, episode = member[order], episode[order]
        fields = ("parent", "seed", "scale", "initial", "priority")
        named = {name: np.asarray(getattr(population, name))[member] for name in fields}
        self._rows = Rows(**named, member=member, episode=episode)
        self._shape = (episodes.size, num_episodes)
        self._returns, self._lengths = np.zeros(self._shape, np.float32), np.zeros(self._shape, np.int32)
        self._valid = np.zeros(self._shape, bool)
        self._behaviors: np.ndarray | None = None
        self.total, self.done, self.repeated = int(member.size), 0, 0
        self._begin = 0  # of what was not handed out yet
        self._number = first_portion
        self._out: dict[int, slice] = {}
        self._copies: dict[int, int] = {}
        self._returned: list[int] = []

    @property
    def next_portion(self) -> int:
        """The number of the next new portion."""
        return self._number

    @property
    def left(self) -> int:
        """Episodes that nobody plays."""
        returned = sum(self._out[number].stop - self._out[number].start for number in self._returned)
        return self.total - self._begin + returned

    def next(self, size: int) -> int | None:
        """Hands out a portion of at most that size, which is not being played: its number, or None if none is left."""
        if self._returned:
            number = self._returned.pop()
        elif self._begin < self.total:
            number, end = self._number, min(self._begin + size, self.total)
            self._out[number], self._begin, self._number = slice(self._begin, end), end, number + 1
        else:
            return None
        self._copies[number] = 1
        return number

    def again(self, most_copies: int = 2) -> int | None:
        """Hands out once more the portion that has been out for longest, of those with fewest copies; None for none."""
        numbers = [number for number, copies in self._copies.items() if copies < most_copies]
        if not numbers:
            return None
        number = min(numbers, key=lambda number: (self._copies[number], number))
        self._copies[number] += 1
        self.repeated += 1
        return number

    def rows(self, number: int) -> Rows:
        """The episodes of a portion that is out."""
        return Rows(*(field[self._out[number]] for field in self._rows))

    def members(self, number: int) -> float:
        """Members of a portion, where each of two episodes of a member is half of one; 0 if it is not out."""
        return float(self._weights[self._rows.member[self._out.get(number, slice(0))]].sum())

    def is_out(self, number: int) -> bool:
        """Whether somebody plays a portion, whose results are not there yet."""
        return number in self._copies

    def give_back(self, number: int) -> None:
        """Takes back one copy of a portion; without other copies it can be handed out again."""
        if number in self._copies:
            self._copies[number] -= 1
            if not self._copies[number]:
                del self._copies[number]
                self._returned.append(number)

    def take(self, number: int, results: Results) -> bool:
        """Keeps the results of a portion; returns False where it has them already, or the portion is of other work."""
        if number not in self._out:
            return False
        place, self._copies = self._out.pop(number), {n: c for n, c in self._copies.items() if n != number}
        self._returned = [other for other in self._returned if other != number]
        at = (self._rows.member[place], self._rows.episode[place])
        if self._behaviors is None:
            self._behaviors = np.zeros((*self._shape, results.behaviors.shape[-1]), np.float32)
        self._returns[at], self._lengths[at], self._valid[at] = results.returns, results.lengths, True
        self._behaviors[at] = results.behaviors
        self.done += place.stop - place.start
        return True

    def evaluation(self) -> Evaluation:
        """The results, once all are there."""
        assert self._behaviors is not None
        return Evaluation(*map(jnp.asarray, (self._returns, self._lengths, self._valid, self._behaviors)))


def portion_size(left: int, num_actors: int, num_slots: int, *, most: int) -> int:
    """How many episodes an actor is given: few enough that all end at about the same time.

    Args:
      left: Episodes that nobody plays.
      num_actors: Actors there are.
      num_slots: Slots of one actor, which it should fill.
      most: The most episodes that it can take.
    """
    return max(min(math.ceil(left / (2 * max(num_actors, 1))), most), min(num_slots, most), 1)
