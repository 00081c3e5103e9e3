"""Chunks of a population, which are evaluated one by one; on the host, without Ray."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from volvox.rollout.slots import Part
from volvox.types import ArrayTree, Population


class Chunk(NamedTuple):
    """Episodes that an actor runs in one call, as K rows of one episode each; the rows behind them are padding.

    Attributes:
      population: K members without bases; `episodes` is 0 for padding.
      part: Index of each row's member and episode in the whole population.
      size: Number of episodes.
      bases: The chunk's own bases if it does not share them with other chunks.
    """

    population: Population
    part: Part
    size: int
    bases: ArrayTree


def chunk_sizes(num_episodes: int, num_actors: int, num_slots: int) -> list[int]:
    """Sizes of the chunks: at most four episodes a slot, and smaller towards the end, so that actors end together."""
    sizes, left = [], num_episodes
    while left:
        size = min(max(min(math.ceil(left / (2 * num_actors)), 4 * num_slots), num_slots), left)
        sizes, left = [*sizes, size], left - size
    return sizes


def split(population: Population, sizes: list[int], *, share_bases: bool) -> Iterator[Chunk]:
    """Splits a population into chunks of one shape.

    Args:
      population: Members; all fields but `bases` are NumPy arrays, and `bases` too if they are not shared.
      sizes: Episodes of each chunk.
      share_bases: Leave out the bases. Otherwise each chunk has those of its own members.

    Yields:
      Each `Chunk`.
    """
    num_rows, episodes = max(sizes), population.episodes
    num_bases = min(num_rows, np.unique(population.parent[episodes > 0]).size)
    member = np.repeat(np.arange(episodes.size, dtype=np.int32), episodes)
    episode = np.concatenate([np.arange(count, dtype=np.int32) for count in episodes])
    order = np.argsort(-np.nan_to_num(population.priority)[member], kind="stable")
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        rows = np.resize(order[end - size : end], num_rows)  # repeats rows as padding
        chosen = Population((), *(field[member[rows]] for field in population[1:]))
        chosen = chosen._replace(episodes=(np.arange(num_rows) < size).astype(np.int32))
        bases = None
        if not share_bases:
            parents, index = np.unique(chosen.parent, return_inverse=True)
            parents = np.resize(parents, num_bases)  # one shape for all chunks
            bases = jax.tree.map(lambda x, parents=parents: x[parents], population.bases)
            chosen = chosen._replace(parent=index.astype(np.int32))
        part: Any = member[rows], episode[rows]
        yield Chunk(chosen, Part(*part), size, bases)
