"""Lineages and genomes, on the host: how each base descends from a first ancestor.

A genome has two numbers per generation: `[i0, [i1, power], [i2, power], ...]`, the format of Such et al. 2017
(arXiv 1712.06567). This is NumPy and plain Python; only `rebuild` computes parameters.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.population.decoding import Encoding, Member, decode
from volvox.types import ArrayTree


class Genome(NamedTuple):
    """One individual: the seed of its first ancestor, and each mutation since.

    Attributes:
      initial_seed: Seed of the noise of the first ancestor's parameters.
      mutations: (seed, power), from the oldest to the newest.
    """

    initial_seed: int
    mutations: tuple[tuple[int, float], ...]


def zeros(num_generations: int, num_bases: int) -> Member:
    """Returns a lineage of G generations of P bases: NumPy's zeros `[G, P]` in each field."""
    shape = (num_generations, num_bases)
    arrays = (np.zeros(shape, dtype) for dtype in (np.int32, np.int32, np.float32, bool))
    return Member(*arrays)  # pyright: ignore[reportArgumentType]  # NumPy's


def extend(lineage: Member, bases: Member) -> Member:
    """Adds a generation to a lineage.

    Args:
      lineage: Fields `[G, P]`: how the bases of each generation descend from those of the generation before. A base
        with a scale of 0 is unchanged; the parent of a first ancestor has no meaning.
      bases: Fields `[P]`: the same for the new generation.

    Returns:
      The lineage, fields `[G + 1, P]`.
    """
    return jax.tree.map(lambda log, row: np.concatenate([log, np.asarray(row, log.dtype)[None]]), lineage, bases)


def genome(lineage: Member, base: int) -> Genome:
    """Walks one base of the newest generation back to its first ancestor.

    Args:
      lineage: A lineage of at least one generation, fields `[G, P]`.
      base: Index of the base in the newest generation.

    Returns:
      The base's `Genome`.

    Raises:
      ValueError: the lineage does not reach back to an initial ancestor.
    """
    mutations: list[tuple[int, float]] = []
    ancestor = base
    for generation in range(lineage.seed.shape[0] - 1, -1, -1):
        seed = int(lineage.seed[generation, ancestor])
        if lineage.initial[generation, ancestor]:
            return Genome(seed, tuple(reversed(mutations)))
        scale = float(lineage.scale[generation, ancestor])
        if scale != 0.0:
            mutations.append((seed, scale))
        ancestor = int(lineage.parent[generation, ancestor])
    raise ValueError(f"the lineage of base {base} does not reach an initial ancestor; the log is incomplete.")


def to_json(genome: Genome) -> list[Any]:
    """Returns a genome in the published format: `[i0, [i1, power], ...]`."""
    # The shortest decimal that reads back as the same float32.
    mutations = [[seed, float(str(np.float32(power)))] for seed, power in genome.mutations]
    return [genome.initial_seed, *mutations]


def from_json(data: Any) -> Genome:
    """Reads a genome in the published format.

    Args:
      data: `[i0, [i1, power], [i2, power], ...]` as `json.load` gives it.

    Returns:
      `Genome`; powers are rounded to float32.

    Raises:
      ValueError: `data` has another form; the message names the offending entry.
    """
    if not isinstance(data, list) or not data:
        raise ValueError(f"not a genome: {str(data)[:60]!r}; {_FORM}.")
    for i, entry in enumerate(data):
        if not (_is_seed(entry) if i == 0 else _is_mutation(entry)):
            raise ValueError(f"malformed genome: entry {i} is {str(entry)[:60]!r}; {_FORM}.")
    return Genome(data[0], tuple((seed, float(np.float32(power))) for seed, power in data[1:]))


_FORM = "a genome is [i0, [i1, power], [i2, power], ...] with integer seeds in [0, 2**31) and finite float32 powers"
_TOO_LARGE = 2**128 - 2**103
"""The smallest number that becomes infinite as a float32."""


def _is_seed(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_mutation(entry: Any) -> bool:
    match entry:
        case [seed, float() | int() as power]:
            # Powers are float32. The comparison is false of NaN, and exact of large integers.
            return _is_seed(seed) and type(power) is not bool and abs(power) < _TOO_LARGE
    return False


def save(path: str | os.PathLike, genome: Genome) -> None:
    """Writes a genome to a JSON file in the published format, atomically; the directory must exist."""
    temporary = Path(f"{os.fspath(path)}.tmp")
    temporary.write_text(json.dumps(to_json(genome)) + "\n", encoding="utf-8")
    temporary.replace(path)


def load(path: str | os.PathLike) -> Genome:
    """Reads a genome from a JSON file in the published format, such as `elite.json` of a run directory.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file holds no genome; the message names the file and the malformed entry.
    """
    try:
        return from_json(json.loads(Path(path).read_text(encoding="utf-8")))
    except (RecursionError, ValueError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise ValueError(f"{os.fspath(path)}: {error}") from error


def rebuild(encoding: Encoding, genome: Genome) -> ArrayTree:
    """Computes an individual's parameters from its genome, with the rounding it was evolved with.

    Args:
      encoding: The network and noise it was evolved with.
      genome: The individual.

    Returns:
      Parameters, in the structure of `encoding.like`.

    Raises:
      ValueError: a seed lies outside the noise table: the genome belongs to a larger table or another network.
    """
    seeds = [genome.initial_seed, *(seed for seed, _ in genome.mutations)]
    if encoding.data.size:
        last = encoding.data.size - encoding.num_drawn
        for i, seed in enumerate(seeds):
            if seed > last:
                raise ValueError(
                    f"genome entry {i} has seed {seed}, but a network of {encoding.num_parameters} parameters and a "
                    f"noise table of {encoding.data.size} numbers allow 0 to {last}; was it evolved with a larger "
                    "table (volvox.population.published_table()) or with another network?"
                )
    # Padded to a power of two, so that a run compiles this a few times, not once a generation.
    capacity = 1 << (len(seeds) - 1).bit_length()
    scales = [0.0, *(power for _, power in genome.mutations)]
    pad = [0] * (capacity - len(seeds))
    return _rebuild(encoding, jnp.array(seeds + pad, jnp.int32), jnp.array(scales + pad, jnp.float32), len(seeds))


@jax.jit
def _rebuild(encoding: Encoding, seeds: jax.Array, scales: jax.Array, count: int) -> ArrayTree:
    def generation(i, params):
        bases = jax.tree.map(lambda x: x[None], params)
        return decode(encoding, bases, Member(jnp.int32(0), seeds[i], scales[i], i == 0))

    return jax.lax.fori_loop(0, count, generation, encoding.zeros())
