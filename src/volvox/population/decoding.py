"""From seeds to parameters: the only place where members and weighted sums of noise are computed.

An encoding joins a network and a source of noise.

    code = encoding(genotype, Table())
    seeds = code.draw_seeds(key, (population_size,))
    params = decode(code, bases, Member(parent, seeds[0], scale, initial))
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import chex
import flax.struct
import jax
import jax.numpy as jnp

from volvox.ops import flat, low_rank
from volvox.ops.order import rounded
from volvox.population.noise import Generator, LowRank, Noise, Table
from volvox.types import Array, ArrayTree, Genotype, Population, zeros

_AT_ONCE = 8
"""Noise vectors that are added to a weighted sum in one pass over it."""
_FACTORS_AT_ONCE = 64
"""The same for factors, which are small."""


class Member(NamedTuple):
    """Members of a population as seeds; all fields have the same shape `[...]`.

    Attributes:
      parent: int32: Index of the base.
      seed: int32: Seed of the noise.
      scale: float32: Signed scale of the noise; 0 gives the base itself.
      initial: bool: A first ancestor: the initialiser's scaled noise alone.
    """

    parent: Array
    seed: Array
    scale: Array
    initial: Array


def members_of(population: Population) -> Member:
    """Returns the members `[N]` of a population."""
    return Member(population.parent, population.seed, population.scale, population.initial)


def first_ancestors(seed: Array) -> Member:
    """Returns the first ancestors `[...]` of these seeds: the initialiser's scaled noise."""
    return Member(jnp.zeros_like(seed), seed, jnp.zeros(seed.shape, jnp.float32), jnp.ones(seed.shape, bool))


@flax.struct.dataclass
class Encoding:
    """Turns a `Member` into parameters: the noise with its data, and the network's shapes.

    It is a pytree and must be an *argument* of jitted functions: in a closure, the table would be copied into the
    program, and the compiler would know the runtime zero and might round differently.

    Attributes:
      data: Data of the noise, float32 `[size]`.
      zero: The runtime zero of `volvox.ops.order`, int32 scalar.
      noise: The source of noise.
      rank: Rank of the noise that mutations add to kernels; None: the noise is not of low rank.
      formed: Whether slots hold whole kernels although the rank is low, because they play first ancestors, whose noise
        is full.
      from_noise: `Genotype.from_noise`.
      shapes: Shape of every parameter.
      treedef: The structure of the parameters.
      factored: Whether mutations change each parameter by a matrix of low rank, in the order of `shapes`.
    """

    data: Array
    zero: Array
    noise: Table | Generator = flax.struct.field(pytree_node=False)
    rank: int | None = flax.struct.field(pytree_node=False)
    from_noise: Callable[[ArrayTree], ArrayTree] = flax.struct.field(pytree_node=False)
    shapes: tuple[tuple[int, ...], ...] = flax.struct.field(pytree_node=False)
    treedef: Any = flax.struct.field(pytree_node=False)
    factored: tuple[bool, ...] = flax.struct.field(pytree_node=False)
    formed: bool = flax.struct.field(pytree_node=False, default=False)

    @property
    def like(self) -> ArrayTree:
        """Shapes and dtypes of one member's parameters, as a pytree of `jax.ShapeDtypeStruct`."""
        return self.treedef.unflatten(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in self.shapes)

    def zeros(self, *batch: int) -> ArrayTree:
        """Returns zeros shaped as parameters, leaves `[*batch, ...]`."""
        return zeros(self.like, *batch)

    @property
    def num_parameters(self) -> int:
        """Number of parameters of one member."""
        return flat.num_parameters(self.like)

    @property
    def num_drawn(self) -> int:
        """Numbers in the noise of one member: one per parameter, or more if factors of high rank have more."""
        return max(self.num_parameters, flat.num_parameters(_noise_like(self)))

    def draw_seeds(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Draws int32 seeds of the given shape, uniformly from all valid seeds."""
        return self.noise.draw(key, shape, self.data, self.num_drawn)


def encoding(genotype: Genotype, noise: Noise) -> Encoding:
    """Joins a network and a source of noise; makes the noise's data (the table).

    Args:
      genotype: The network.
      noise: The source of noise: `Table()`, `Generator()` or `LowRank()`.

    Returns:
      `Encoding`.

    Raises:
      ValueError: a parameter is not float32, the noise's table is too small, or a layer cannot take its parameters in
        factors (see `LowRank`).
    """
    shapes = outline(genotype, noise)
    return dataclasses.replace(shapes, data=shapes.noise.make_data(shapes.num_drawn), zero=jnp.int32(0))


def outline(genotype: Genotype, noise: Noise) -> Encoding:
    """Makes the encoding as shapes, without the noise's data, which may take seconds and gigabytes.

    Its arrays are `jax.ShapeDtypeStruct`. Raises ValueError as `encoding` does, except for the table.
    """
    params = jax.eval_shape(genotype.policy.init, jax.random.key(0))
    paths, treedef = jax.tree.flatten_with_path(params)
    for path, leaf in paths:
        if leaf.dtype != jnp.float32:
            raise ValueError(
                f"parameter {jax.tree_util.keystr(path)} has dtype {leaf.dtype}; evolved parameters are float32: "
                "set the module's param_dtype."
            )
    shapes = {flat.leaf_path(path): tuple(leaf.shape) for path, leaf in paths}
    factored, rank = (False,) * len(shapes), None
    if isinstance(noise, LowRank):
        if unknown := set(noise.full) - {"/".join(path) for path in shapes}:
            raise ValueError(f"low-rank noise: the network has no parameter {min(unknown)!r}, which `full` names.")
        factored = tuple(path in genotype.low_rank and "/".join(path) not in noise.full for path in shapes)
        for (path, shape), is_factored in zip(shapes.items(), factored, strict=True):
            if not is_factored and len(shape) > 1 and (name := "/".join(path)) not in noise.full:
                raise ValueError(
                    f"low-rank noise: no layer takes parameter {name} {list(shape)} in factors (plain nn.Dense and "
                    f"nn.Conv layers do, also in nn.LSTMCell); LowRank(full=({name!r},)) gives it full noise, with a "
                    "copy in every slot."
                )
        rank, noise = noise.rank, noise.source
    without_data = Encoding(
        data=jax.ShapeDtypeStruct((0,), jnp.float32),  # pyright: ignore[reportArgumentType]
        zero=jax.ShapeDtypeStruct((), jnp.int32),  # pyright: ignore[reportArgumentType]
        noise=noise,
        rank=rank,
        from_noise=genotype.from_noise,
        shapes=tuple(shapes.values()),
        treedef=treedef,
        factored=factored,
    )
    return dataclasses.replace(without_data, data=jax.ShapeDtypeStruct((without_data.num_drawn,), jnp.float32))


class Factors(NamedTuple):
    """Noise of low rank for one kernel, read as a matrix `[K, N]`: `a @ b.T`.

    Attributes:
      a: float32 `[K, r]`.
      b: float32 `[N, r]`.
    """

    a: Array
    b: Array


def mutation_noise(encoding: Encoding, seed: Array) -> ArrayTree:
    """Draws the noise of one mutation from an int32 seed: float32 like `encoding.like`, or `Factors` of it."""
    noise = encoding.noise.sample(encoding.data, seed, _noise_like(encoding))
    if encoding.rank is None:
        return noise
    unit = jnp.float32(1 / math.sqrt(encoding.rank))
    return jax.tree.map(lambda x: Factors(x.a, x.b * unit) if _is_factors(x) else x, noise, is_leaf=_is_factors)


def _noise_like(encoding: Encoding) -> ArrayTree:
    """Shapes of the numbers drawn for one mutation."""

    def numbers(shape: tuple[int, ...], factored: bool) -> Any:
        if not factored:
            return jax.ShapeDtypeStruct(shape, jnp.float32)
        sides = (math.prod(shape[:-1]), shape[-1])
        return Factors._make(jax.ShapeDtypeStruct((side, encoding.rank), jnp.float32) for side in sides)

    return encoding.treedef.unflatten(map(numbers, encoding.shapes, encoding.factored))


def _is_factors(x: Any) -> bool:
    return isinstance(x, Factors)


def _formed(noise: Any, like: Any, zero: Array) -> Array:
    if not _is_factors(noise):
        return noise
    # Column by column, each product rounded: the order of the sums in a matrix product is not specified.
    columns = [rounded(noise.a[:, j, None] * noise.b[None, :, j], zero) for j in range(noise.a.shape[1])]
    return sum(columns[1:], columns[0]).reshape(like.shape)


def decode(encoding: Encoding, bases: ArrayTree, member: Member) -> ArrayTree:
    """Computes the parameters of one member: `bases[parent] + scale * noise(seed)`, or the initialiser's noise.

    Low-rank noise is multiplied out to full kernels. The product is rounded before the sum, inside and outside of
    fusions, so that an individual that is rebuilt from its lineage has the bits of the one that played.

    Args:
      encoding: The encoding.
      bases: Parameters, leaves `[P, ...]`.
      member: Scalars.

    Returns:
      Parameters, in the structure of `encoding.like`.
    """
    # noise * std is rounded: a later sum must not be contracted with it.
    initial = encoding.from_noise(encoding.noise.sample(encoding.data, member.seed, encoding.like))

    def one(like, base, initial, noise):
        change = member.scale * _formed(noise, like, encoding.zero)
        mutated = base[member.parent] + rounded(change, encoding.zero)
        return jnp.where(member.initial, rounded(initial, encoding.zero), mutated)

    return jax.tree.map(one, encoding.like, bases, initial, mutation_noise(encoding, member.seed))


def member_params(encoding: Encoding, bases: ArrayTree, member: Member) -> ArrayTree:
    """Returns the parameters of one member for its network: those of `decode`, or `LowRankKernel`.

    With low-rank noise, kernels stay factors unless `encoding.formed`, and `member.initial` is ignored. The bases are
    part of every `LowRankKernel`.
    """
    if encoding.rank is None or encoding.formed:
        return decode(encoding, bases, member)
    leaves, noise = jax.tree.leaves(bases), mutation_noise(encoding, member.seed)

    def one(number, noise):
        base = leaves[number]
        if _is_factors(noise):
            return low_rank.LowRankKernel(base, member.parent, noise.a, member.scale * noise.b, number)
        return base[member.parent] + rounded(member.scale * noise, encoding.zero)

    numbers = jax.tree.unflatten(encoding.treedef, range(len(leaves)))
    return jax.tree.map(one, numbers, noise)


@jax.jit
def decode_many(encoding: Encoding, bases: ArrayTree, members: Member) -> ArrayTree:
    """Decodes members `[N]`, one after the other; returns parameters, leaves `[N, ...]`. See `decode`."""
    return jax.lax.map(lambda member: decode(encoding, bases, member), members)


def weighted_noise(encoding: Encoding, seeds: Array, weights: Array) -> ArrayTree:
    """Computes `sum_k weights[k] * noise(seeds[k])`; a few noise vectors exist at a time.

    Args:
      encoding: The encoding.
      seeds: int32 `[K]`.
      weights: float32 `[K]`.

    Returns:
      The sum, in the structure of `encoding.like`.
    """
    chex.assert_equal_shape([seeds, weights])
    # Parameters of several dimensions that are not factored may be large.
    large = any(len(s) > 1 and not factored for s, factored in zip(encoding.shapes, encoding.factored, strict=True))
    at_once = _AT_ONCE if encoding.rank is None or large else _FACTORS_AT_ONCE
    padding = (0, -seeds.shape[0] % at_once)
    seeds, weights = (jnp.pad(x, padding).reshape(-1, at_once) for x in (seeds, weights))
    add = _add_vectors if encoding.rank is None else _add_factors
    return jax.lax.fori_loop(0, seeds.shape[0], partial(add, encoding, seeds, weights), encoding.zeros())


def _add_vectors(encoding: Encoding, seeds: Array, weights: Array, i: Array, total: ArrayTree) -> ArrayTree:
    def one(sum_, *noise):
        return sum_ + sum(weights[i, j] * x for j, x in enumerate(noise))

    return jax.tree.map(one, total, *(mutation_noise(encoding, seeds[i, j]) for j in range(seeds.shape[1])))


def _add_factors(encoding: Encoding, seeds: Array, weights: Array, i: Array, total: ArrayTree) -> ArrayTree:
    """Many outer products are one matrix product."""

    def one(sum_, noise):
        if not _is_factors(noise):
            return sum_ + jnp.tensordot(weights[i], noise, 1)
        product = jnp.einsum("jkr,jnr->kn", noise.a, weights[i, :, None, None] * noise.b)
        return sum_ + product.reshape(sum_.shape)

    return jax.tree.map(one, total, jax.lax.map(lambda seed: mutation_noise(encoding, seed), seeds[i]))


def explicit(params: ArrayTree) -> Population:
    """Makes a population of explicit parameters: N members that are bases without noise and play one episode each.

    Example:
      >>> vectors = mean + std * jax.random.normal(key, (64, encoding.num_parameters))
      >>> population = explicit(from_vectors(encoding, vectors))

    Args:
      params: Parameters, leaves `[N, ...]`.

    Returns:
      `Population`.
    """
    leaves = jax.tree.leaves(params)
    chex.assert_equal_shape_prefix(leaves, 1)
    n = leaves[0].shape[0]
    return Population(
        bases=params,
        parent=jnp.arange(n, dtype=jnp.int32),
        seed=jnp.zeros(n, jnp.int32),
        scale=jnp.zeros(n, jnp.float32),
        initial=jnp.zeros(n, bool),
        episodes=jnp.ones(n, jnp.int32),
        priority=jnp.zeros(n, jnp.float32),
    )


def to_vectors(params: ArrayTree) -> Array:
    """Joins the leaves `[N, ...]` of parameters to vectors `[N, D]`, in the order of `volvox.ops.flat`."""
    return jax.vmap(flat.flatten)(params)


def from_vectors(encoding: Encoding, vectors: Array) -> ArrayTree:
    """Cuts vectors `[N, D]` into parameters, leaves `[N, ...]`.

    Raises:
      ValueError: D is not `encoding.num_parameters`.
    """
    return jax.vmap(lambda vector: flat.unflatten(vector, encoding.like))(vectors)
