"""Lineages and genomes, on the host: how each base descends from a first ancestor.

A genome has two numbers per generation: `[i0, [i1, power], [i2, power], ...]`, the format of Such et al. 2017
(arXiv 1712.06567). This is NumPy and plain Python; only `rebuild` computes parameters.
"""

import json
import operator
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from volvox.population.decoding import Encoding, Member, decode
from volvox.types import ArrayTree


def zeros(num_generations: int, num_bases: int) -> Member:
    """Returns a lineage of G generations of P bases: NumPy zeros `[G, P]` in each field."""
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


def genome(lineage: Member, base: int) -> list[Any]:
    """Walks one base of the newest generation back to its first ancestor.

    Args:
      lineage: A lineage of at least one generation, fields `[G, P]`.
      base: Index of the base in the newest generation.

    Returns:
      The genome: `[i0, [i1, power], ...]`, from the oldest to the newest mutation.

    Raises:
      ValueError: The lineage does not reach back to a first ancestor.
    """
    mutations: list[Any] = []
    ancestor = base
    for generation in range(lineage.seed.shape[0] - 1, -1, -1):
        seed = int(lineage.seed[generation, ancestor])
        if lineage.initial[generation, ancestor]:
            return [seed, *reversed(mutations)]
        scale = np.float32(lineage.scale[generation, ancestor])
        if scale != 0:
            mutations.append([seed, float(str(scale))])  # the shortest decimal that reads back as the same float32
        ancestor = int(lineage.parent[generation, ancestor])
    raise ValueError(f"the lineage of base {base} does not reach a first ancestor; the log is incomplete.")


def load(path: str | os.PathLike) -> list[Any]:
    """Reads a genome from a JSON file in the published format, such as `elite.json` of a run directory.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: The file holds no genome.
    """
    try:
        genome = json.loads(Path(path).read_text(encoding="utf-8"))
        _seeds_and_powers(genome)
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise ValueError(f"{os.fspath(path)}: {error}") from error
    return genome


def _seeds_and_powers(genome: Any) -> tuple[list[int], np.ndarray]:
    """Returns the seeds and the float32 powers of a genome, with a power of 0 for the first ancestor."""
    try:
        first, *mutations = genome
        seeds = [operator.index(seed) for seed in (first, *(seed for seed, _ in mutations))]
        powers = np.array([0.0, *(power for _, power in mutations)], float)
    except (TypeError, ValueError):
        seeds, powers = [-1], np.zeros(1)
    if not (min(seeds) >= 0 and max(seeds) < 2**31 and (np.abs(powers) <= np.finfo(np.float32).max).all()):
        raise ValueError(
            f"not a genome: {str(genome)[:60]!r}; a genome is [i0, [i1, power], ...] with integer seeds in "
            "[0, 2**31) and finite float32 powers."
        )
    return seeds, powers.astype(np.float32)


def rebuild(encoding: Encoding, genome: list[Any]) -> ArrayTree:
    """Computes an individual's parameters from its genome, with the rounding it was evolved with.

    Args:
      encoding: The network and noise it was evolved with.
      genome: The individual: `[i0, [i1, power], ...]`, as `load` returns it.

    Returns:
      Parameters, in the structure of `encoding.like`.

    Raises:
      ValueError: `genome` has another form, or a seed lies outside the noise table: the genome belongs to a larger
        table or another network.
    """
    seeds, powers = _seeds_and_powers(genome)
    last = encoding.data.size - encoding.num_drawn
    if encoding.data.size and max(seeds) > last:
        raise ValueError(
            f"the genome has seed {max(seeds)}, but a network of {encoding.num_parameters} parameters and a table "
            f"of {encoding.data.size} numbers allow 0 to {last}; was it evolved with a larger table "
            "(volvox.population.Table.published()) or with another network?"
        )
    # Padded to a power of two, so that a run compiles this a few times, not once a generation.
    pad = (0, (1 << (len(seeds) - 1).bit_length()) - len(seeds))
    return _rebuild(encoding, np.pad(np.array(seeds, np.int32), pad), np.pad(powers, pad), len(seeds))


@jax.jit
def _rebuild(encoding: Encoding, seeds: jax.Array, scales: jax.Array, count: int) -> ArrayTree:
    def generation(i, params):
        bases = jax.tree.map(lambda x: x[None], params)
        return decode(encoding, bases, Member(jnp.int32(0), seeds[i], scales[i], i == 0))

    return jax.lax.fori_loop(0, count, generation, encoding.zeros())
