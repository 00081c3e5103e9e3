"""From seeds to parameters: the one place where a member's weights are computed."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from volvox.ops import flat
from volvox.ops.low_rank import LowRank
from volvox.ops.order import rounded
from volvox.population.noise import Noise
from volvox.types import Array, ArrayTree, Policy


class Member(NamedTuple):
    """What names members of a population, each `[...]` of one shape.

    Attributes:
      parent: int32: index of the base.
      seed: int32: names the noise.
      scale: float32: signed power of the noise; 0 is the base itself.
      initial: bool: the initialiser's scaled noise alone.
    """

    parent: Array
    seed: Array
    scale: Array
    initial: Array


@flax.struct.dataclass
class Encoding:
    """What turns a `Member` into parameters: the noise with its data, and the network's shapes.

    A pytree, and always an *argument* of jitted functions, never closed over: as a constant, the table would be copied
    into the program, and the runtime zero would be known to the compiler, which may then round otherwise.

    Attributes:
      data: The noise's data, float32 `[size]`.
      zero: The runtime zero of `volvox.ops.order`, int32 scalar.
      draw: `Noise.draw`.
      sample: `Noise.sample`.
      from_noise: `Policy.from_noise`.
      shapes: (path, shape) of every parameter.
      rank: `Noise.rank`.
      factored: Whether mutations change each parameter by a matrix of that rank, in the order of `shapes`.
    """

    data: Array
    zero: Array
    draw: Callable[..., Array] = flax.struct.field(pytree_node=False)
    sample: Callable[..., ArrayTree] = flax.struct.field(pytree_node=False)
    from_noise: Callable[[ArrayTree], ArrayTree] = flax.struct.field(pytree_node=False)
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = flax.struct.field(pytree_node=False)
    treedef: Any = flax.struct.field(pytree_node=False)
    rank: int | None = flax.struct.field(pytree_node=False)
    factored: tuple[bool, ...] = flax.struct.field(pytree_node=False)

    @property
    def like(self) -> ArrayTree:
        """Shapes and dtypes of one genome, as a pytree of `jax.ShapeDtypeStruct`."""
        leaves = [jax.ShapeDtypeStruct(shape, jnp.float32) for _, shape in self.shapes]
        return jax.tree.unflatten(self.treedef, leaves)

    @property
    def num_parameters(self) -> int:
        """Parameters in one genome."""
        return flat.num_parameters(self.like)

    @property
    def num_drawn(self) -> int:
        """Numbers that the noise of one member may take: a genome's, or more where factors of high rank have more."""
        return max(self.num_parameters, flat.num_parameters(_noise_like(self)))


def encoding(policy: Policy, noise: Noise) -> Encoding:
    """Joins a network and a source of noise; makes the noise's data (the table).

    Args:
      policy: the network.
      noise: where noise comes from.

    Returns:
      `Encoding`.

    Raises:
      ValueError: a parameter is not float32, the noise's table is too small, or its rank does not fit the network
        (see `volvox.population.low_rank`).
    """
    without_data = outline(policy, noise)
    return replace(without_data, data=noise.make(without_data.num_drawn), zero=jnp.int32(0))


def outline(policy: Policy, noise: Noise) -> Encoding:
    """The encoding as shapes: all but the noise's data, which may take seconds and gigabytes to make.

    Args:
      policy: the network.
      noise: where noise comes from.

    Returns:
      `Encoding` whose arrays are `jax.ShapeDtypeStruct`, the data as short as it can be.

    Raises:
      ValueError: as `encoding`, but for the table.
    """
    params = jax.eval_shape(policy.init, jax.random.key(0))
    paths, treedef = jax.tree_util.tree_flatten_with_path(params)
    for path, leaf in paths:
        if leaf.dtype != jnp.float32:
            raise ValueError(
                f"parameter {jax.tree_util.keystr(path)} has dtype {leaf.dtype}; evolved parameters are float32: "
                "set the module's param_dtype."
            )
    shapes = tuple((jax.tree_util.keystr(path), tuple(leaf.shape)) for path, leaf in paths)
    factored = _factored({flat.leaf_path(path): leaf.shape for path, leaf in paths}, policy, noise)
    one = Encoding(
        data=jax.ShapeDtypeStruct((0,), jnp.float32),  # pyright: ignore[reportArgumentType]
        zero=jax.ShapeDtypeStruct((), jnp.int32),  # pyright: ignore[reportArgumentType]
        draw=noise.draw,
        sample=noise.sample,
        from_noise=policy.from_noise,
        shapes=shapes,
        treedef=treedef,
        rank=noise.rank,
        factored=factored,
    )
    return replace(one, data=jax.ShapeDtypeStruct((one.num_drawn,), jnp.float32))


def _factored(shapes: dict[tuple[str, ...], tuple[int, ...]], policy: Policy, noise: Noise) -> tuple[bool, ...]:
    if noise.rank is None:
        return (False,) * len(shapes)
    names = {"/".join(path) for path in shapes}
    if unknown := sorted(noise.full - names):
        raise ValueError(
            f"low-rank noise: full names no parameter of this network: {', '.join(unknown)}; it has "
            f"{', '.join(sorted(names))}."
        )
    factored, highest = [], {}
    for path, shape in shapes.items():
        name = "/".join(path)
        factored.append(path in policy.low_rank and name not in noise.full)
        if factored[-1]:
            highest[name] = min(math.prod(shape[:-1]), shape[-1])
        elif len(shape) > 1 and name not in noise.full:
            raise ValueError(
                f"low-rank noise: no layer takes parameter {name} {list(shape)} in factors (plain nn.Dense, nn.Conv "
                f"and LSTM layers do); low_rank(full=({name!r},)) gives it full noise, with a copy in every slot."
            )
    if highest and noise.rank > (most := min(highest.values())):
        name = min(highest, key=lambda name: highest[name])
        shape = list(shapes[tuple(name.split("/"))])
        raise ValueError(
            f"rank={noise.rank}: kernel {name} {shape} is a matrix of rank {most} at most; choose a rank up to that."
        )
    return tuple(factored)


def draw_seeds(encoding: Encoding, key: Array, shape: tuple[int, ...]) -> Array:
    """Draws int32 seeds of the given shape, uniformly from all that name a noise vector."""
    return encoding.draw(key, shape, encoding.data, encoding.num_drawn)


class Factors(NamedTuple):
    """Noise of low rank for one kernel, read as a matrix `[K, N]`: `a @ b.T`.

    Attributes:
      a: float32 `[K, r]`.
      b: float32 `[N, r]`.
    """

    a: Array
    b: Array


def mutation_noise(encoding: Encoding, seed: Array) -> ArrayTree:
    """Draws the noise of one mutation.

    Args:
      encoding: of the network.
      seed: int32 scalar.

    Returns:
      In the structure of `encoding.like`: float32 noise, or `Factors` of it.
    """
    noise = encoding.sample(encoding.data, seed, _noise_like(encoding))
    if encoding.rank is None:
        return noise
    unit = jnp.float32(1 / math.sqrt(encoding.rank))
    return jax.tree.map(lambda x: Factors(x.a, x.b * unit) if _is_factors(x) else x, noise, is_leaf=_is_factors)


def _noise_like(encoding: Encoding) -> ArrayTree:
    """Shapes of the numbers drawn for one mutation."""

    def shape(leaf, factored):
        if not factored:
            return leaf
        sides = Factors(math.prod(leaf.shape[:-1]), leaf.shape[-1])  # pyright: ignore[reportArgumentType]
        return jax.tree.map(lambda side: jax.ShapeDtypeStruct((side, encoding.rank), leaf.dtype), sides)

    return jax.tree.map(shape, encoding.like, jax.tree.unflatten(encoding.treedef, encoding.factored))


def _is_factors(x: Any) -> bool:
    return isinstance(x, Factors)


def _formed(noise: Any, like: Any, zero: Array) -> Array:
    if not _is_factors(noise):
        return noise
    # One column after the other, each product rounded: a matrix product would be summed in an order of its own.
    columns = [rounded(noise.a[:, j, None] * noise.b[None, :, j], zero) for j in range(noise.a.shape[1])]
    return sum(columns[1:], columns[0]).reshape(like.shape)


def decode(encoding: Encoding, bases: ArrayTree, member: Member) -> ArrayTree:
    """Computes the parameters of one member: `bases[parent] + scale * noise(seed)`, or the initialiser's noise.

    Low-rank noise is formed for it.

    The product is rounded before the sum wherever this runs (in or out of a fusion), so that an individual rebuilt
    from its lineage is, bit for bit, the one that played.

    Args:
      encoding: of the network.
      bases: parameters, leaves `[P, ...]`.
      member: scalars.

    Returns:
      Parameters, in the structure of `encoding.like`.
    """
    # noise * std is rounded: a later sum must not be contracted with it.
    initial = encoding.from_noise(encoding.sample(encoding.data, member.seed, encoding.like))

    def one(like, base, initial, noise):
        change = member.scale * _formed(noise, like, encoding.zero)
        mutated = base[member.parent] + rounded(change, encoding.zero)
        return jnp.where(member.initial, rounded(initial, encoding.zero), mutated)

    return jax.tree.map(one, encoding.like, bases, initial, mutation_noise(encoding, member.seed))


def member_params(encoding: Encoding, bases: ArrayTree, member: Member) -> ArrayTree:
    """The parameters of one member as its network takes them: as `decode` computes them, or kernels as `LowRank`.

    With low-rank noise no kernel is formed, and `member.initial` is not asked: first ancestors are bases there.

    Args:
      encoding: of the network.
      bases: parameters, leaves `[P, ...]`.
      member: scalars.

    Returns:
      Parameters; the bases are part of every `LowRank` in them.
    """
    if encoding.rank is None:
        return decode(encoding, bases, member)
    leaves, noise = jax.tree.leaves(bases), mutation_noise(encoding, member.seed)

    def one(number, noise):
        base = leaves[number]
        if _is_factors(noise):
            return LowRank(base, member.parent, noise.a, member.scale * noise.b, number)
        return base[member.parent] + rounded(member.scale * noise, encoding.zero)

    numbers = jax.tree.unflatten(encoding.treedef, range(len(leaves)))
    return jax.tree.map(one, numbers, noise)


def decode_many(encoding: Encoding, bases: ArrayTree, members: Member) -> ArrayTree:
    """Computes the parameters of several members, one after the other, into leaves `[N, ...]`.

    Args:
      encoding: of the network.
      bases: parameters, leaves `[P, ...]`.
      members: each field `[N]`.

    Returns:
      Parameters, leaves `[N, ...]`.
    """
    return jax.lax.map(lambda member: decode(encoding, bases, member), members)
