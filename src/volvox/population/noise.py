"""Sources of noise: a shared table of normal numbers, or a generator; in full, or of low rank.

A seed determines a noise vector of any network: it is the start of a slice of the table, or the seed of a generator.
The sources are settings with pure methods; their data (the table) is an argument of each method.

    encoding(genotype, Table())                         # a table of 8 numbers for each parameter
    encoding(genotype, LowRank(rank=2, source=Generator()))
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import integers
from volvox.ops import flat
from volvox.types import Array, ArrayTree

_CHUNK = 2**22  # even, so that the legacy generator's pairs are not split


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Noise as slices of one table of normal numbers: fast, and the format of published genomes.

    A seed is the index at which a genome's slice begins; the slice is cut into layers in the order of
    `volvox.ops.flat`. The default seed makes every table a prefix of the published one (Such et al. 2017,
    arXiv 1712.06567), so that a lineage made with a small table gives the same parameters with the large table.

    Attributes:
      size: Numbers in the table, 4 bytes each; None: eight times the network's parameters, at least 2**20
        (130 MB for the large network of four million).
      seed: Seed of `numpy.random.RandomState`, which makes the table.
    """

    size: int | None = None
    seed: int = 123

    def __post_init__(self):
        integers(self, "size", low=1)
        integers(self, "seed", low=0, high=2**32 - 1)

    @classmethod
    def published(cls) -> "Table":
        """The table behind published genomes: `RandomState(123).randn(250_000_000)` as float32, 1 GB.

        Example:
          >>> algorithm = vx.evolve(vx.GA(), network, env, noise=vx.population.Table.published())
        """
        return cls(size=250_000_000, seed=123)

    def length(self, num_numbers: int) -> int:
        """Returns the size of the table; raises ValueError if it is too small for noise of `num_numbers`."""
        length = max(8 * num_numbers, 2**20) if self.size is None else self.size
        if length < num_numbers + 1_000:
            raise ValueError(
                f"size={length}: the noise table must hold at least 1 000 numbers more than the noise of one member "
                f"({num_numbers}); enlarge it, or leave size out to fit the network."
            )
        return length

    def make_data(self, num_numbers: int) -> Array:
        """Makes the table, float32 `[size]`; raises ValueError as `length` does."""
        length = self.length(num_numbers)
        values = np.empty(length, np.float32)
        random = np.random.RandomState(self.seed)
        for chunk in np.split(values, range(_CHUNK, length, _CHUNK)):
            chunk[:] = random.randn(len(chunk))
        return jnp.asarray(values)

    def draw(self, key: Array, shape: tuple[int, ...], data: Array, num_numbers: int) -> Array:
        """Draws int32 seeds of the given shape, uniformly from those of noise vectors of `num_numbers`."""
        return jax.random.randint(key, shape, 0, data.shape[0] - num_numbers + 1, jnp.int32)

    def sample(self, data: Array, seed: Array, like: ArrayTree) -> ArrayTree:
        """Returns the float32 noise of a seed, in the structure and shapes of `like`."""
        return jax.tree.map(
            lambda leaf, offset: jax.lax.dynamic_slice(data, (seed + offset,), (leaf.size,)).reshape(leaf.shape),
            like,
            flat.leaf_offsets(like),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generator:
    """Noise from JAX's own generator: no table, every seed of 2**31 distinct, but slower on a CPU.

    Attributes:
      seed: Seed of the key from which all noise is derived, below 2**32.
    """

    seed: int = 0

    def __post_init__(self):
        integers(self, "seed", low=0, high=2**32 - 1)  # JAX drops the bits above

    def length(self, num_numbers: int) -> int:
        """Returns 0: there is no table."""
        return 0

    def make_data(self, num_numbers: int) -> Array:
        """Returns an empty array: there is no table."""
        return jnp.zeros((0,), jnp.float32)

    def draw(self, key: Array, shape: tuple[int, ...], data: Array, num_numbers: int) -> Array:
        """See `Table.draw`."""
        return jax.random.randint(key, shape, 0, np.iinfo(np.int32).max, jnp.int32)

    def sample(self, data: Array, seed: Array, like: ArrayTree) -> ArrayTree:
        """See `Table.sample`."""
        key = jax.random.fold_in(jax.random.key(self.seed), seed)
        # The offset of a leaf, not its place in the tree, picks its stream.
        return jax.tree.map(
            lambda leaf, offset: jax.random.normal(jax.random.fold_in(key, offset), leaf.shape, jnp.float32),
            like,
            flat.leaf_offsets(like),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRank:
    """Noise of low rank for kernels: `a @ b.T / sqrt(rank)`, with standard normal `a` and `b` (arXiv 2511.16652).

    Members that descend from one base share its matrix products and differ in a few columns, so that many members cost
    little more than the same number of observations of one network. Kernels of convolutions are read as matrices
    `[kh * kw * C, F]`. Parameters of one dimension, such as biases, get full noise, and so do first ancestors.

    `encoding` raises ValueError for a parameter of several dimensions whose layer cannot use factors and that is not in
    `full`.

    Attributes:
      rank: r; a rank above a kernel's smaller side has no use.
      source: The source of the numbers.
      full: Paths of parameters of several dimensions that get full noise, with a copy in every slot, because their
        layers do not support factors (plain `nn.Dense` and `nn.Conv` layers do, also in `nn.LSTMCell`), for example
        `("Embed_0/embedding",)`.
    """

    rank: int = 1
    source: Table | Generator = Table()
    full: tuple[str, ...] = ()

    def __post_init__(self):
        integers(self, "rank", low=1)
        full = (self.full,) if isinstance(self.full, str) else self.full
        object.__setattr__(self, "full", tuple(sorted(full)))  # any collection will do; the order has no meaning


Noise = Table | Generator | LowRank
"""A source of noise. An object with the methods of `Table` works too."""
