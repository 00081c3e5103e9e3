"""Where noise comes from: a shared table of normal numbers, or a generator.

A seed names a noise vector of any network: the start of a slice of the table, or the seed of a generator.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integer
from volvox.ops import flat
from volvox.types import Array, ArrayTree, Config

PUBLISHED_SIZE = 250_000_000
"""Length of the table behind published genomes: `numpy.random.RandomState(123).randn(250_000_000)`."""


class Noise(NamedTuple):
    """A source of standard normal noise. The data is an argument of every function, never closed over.

    Attributes:
      make: number of parameters -> data: the table, float32 `[size]` (empty for a generator).
      draw: (key, shape, data, number of parameters) -> int32 seeds.
      sample: (data, seed, like) -> float32 noise in the structure and shapes of `like`.
      rank: Rank of the noise that mutations add to kernels; None if it is as free as any.
      full: With a rank: parameters that get full noise all the same, by path.
    """

    make: Callable[[int], Array]
    draw: Callable[[Array, tuple[int, ...], Array, int], Array]
    sample: Callable[[Array, Array, ArrayTree], ArrayTree]
    config: Config
    rank: int | None = None
    full: frozenset[str] = frozenset()


def table(*, size: int | None = None, seed: int = 123) -> Noise:
    """Noise as slices of one table of normal numbers: fast, and the format of published genomes.

    A seed is the index at which a genome's slice begins; the slice is cut into layers in the order of
    `volvox.ops.flat`. The default seed makes every table a prefix of the published one (Such et al. 2017,
    arXiv 1712.06567), so that lineages made with a small table mean the same with the large one.

    Args:
      size: numbers in the table, 4 bytes each; default: eight times the network's parameters, at least 2**20
        (130 MB for the large network of four million).
      seed: of `numpy.random.RandomState`, which makes the table.

    Returns:
      `Noise`. Its `make` raises ValueError if the table is smaller than the network.

    Raises:
      ValueError: `size` is not positive.
    """
    if size is not None and size < 1:
        raise ValueError(f"size={size}: a noise table holds at least one number; leave it out to fit the network.")

    def make(num_parameters: int) -> Array:
        length = max(8 * num_parameters, 2**20) if size is None else size
        if length < num_parameters:
            raise ValueError(
                f"size={length}: the noise table must hold at least as many numbers as the network has parameters "
                f"({num_parameters}); enlarge it, or leave size out to fit the network."
            )
        values = np.empty(length, np.float32)
        random = np.random.RandomState(seed)
        chunk = 2**22  # even, so that the legacy generator's pairs are not split
        for start in range(0, length, chunk):
            stop = min(start + chunk, length)
            values[start:stop] = random.randn(stop - start)
        return jnp.asarray(values)

    def draw(key, shape, data, num_parameters):
        return jax.random.randint(key, shape, 0, data.shape[0] - num_parameters + 1, jnp.int32)

    def sample(data, seed, like):
        def cut(leaf, offset):
            return jax.lax.dynamic_slice(data, (seed + offset,), (leaf.size,)).reshape(leaf.shape)

        return jax.tree.map(cut, like, flat.leaf_offsets(like))

    return Noise(make, draw, sample, {"kind": "table", "size": size, "seed": seed})


def published_table() -> Noise:
    """The table behind published genomes: `RandomState(123).randn(250_000_000)` as float32, 1 GB."""
    return table(size=PUBLISHED_SIZE, seed=123)


def generator(*, seed: int = 0) -> Noise:
    """Noise from JAX's own generator: no table, every seed of 2**31 distinct, but dearer on a CPU.

    Args:
      seed: of the key from which all noise is derived.

    Returns:
      `Noise`.
    """

    def make(num_parameters: int) -> Array:
        del num_parameters
        return jnp.zeros((0,), jnp.float32)

    def draw(key, shape, data, num_parameters):
        del data, num_parameters
        return jax.random.randint(key, shape, 0, np.iinfo(np.int32).max, jnp.int32)

    def sample(data, member_seed, like):
        del data
        key = jax.random.fold_in(jax.random.key(seed), member_seed)
        offsets = flat.leaf_offsets(like)
        # The offset of a leaf, not its place in the tree, picks its stream.
        return jax.tree.map(lambda leaf, k: jax.random.normal(jax.random.fold_in(key, k), leaf.shape), like, offsets)

    return Noise(make, draw, sample, {"kind": "generator", "seed": seed})


def low_rank(*, rank: int = 1, noise: Noise | None = None, full: Collection[str] = ()) -> Noise:
    """Noise of low rank for kernels: `a @ b.T / sqrt(rank)`, of standard normal `a` and `b` (arXiv 2511.16652).

    Members that descend from one base then share its matrix products, and only a few columns are a member's own: many
    members cost little more than as many observations of one network. Kernels of convolutions are read as matrices
    `[kh * kw * C, F]`; biases, and whatever has one dimension, get full noise. First ancestors are drawn in full.

    Args:
      rank: r; no larger than any kernel's smaller side.
      noise: where the numbers come from; default: `table()`.
      full: parameters of more dimensions that no layer takes in factors (anything but plain `nn.Dense`, `nn.Conv` and
        LSTM layers), by path, for example `"Embed_0/embedding"`: they get full noise, one copy a slot.

    Returns:
      `Noise`. Joining it with a network (`encoding`) raises ValueError for a parameter that no layer takes in factors
      and that is not in `full`, and for a rank beyond a kernel's.

    Raises:
      ValueError: a rank below 1, noise that has a rank already, or a name in place of names.
    """
    integer("rank", rank, low=1)
    if isinstance(full, str):
        raise ValueError(f"full={full!r} is one name; give a collection of them: full=({full!r},).")
    noise = table() if noise is None else noise
    if noise.rank is not None:
        raise ValueError(f"the given noise is of rank {noise.rank} already; give table() or generator().")
    config = {"kind": "low_rank", "rank": rank, "full": sorted(full), "source": dict(noise.config)}
    return noise._replace(config=config, rank=rank, full=frozenset(full))
