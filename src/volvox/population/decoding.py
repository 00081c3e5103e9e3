"""From seeds to parameters: the one place where a member's weights are computed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from volvox.ops import flat
from volvox.ops.order import rounded
from volvox.population.noise import Noise
from volvox.types import Array, ArrayTree, Policy


class Member(NamedTuple):
    """What names members of a population, each `[...]` of one shape."""

    parent: Array
    """int32: index of the base."""
    seed: Array
    """int32: names the noise."""
    scale: Array
    """float32: signed power of the noise; 0 is the base itself."""
    initial: Array
    """bool: the initialiser's scaled noise alone."""


@flax.struct.dataclass
class Encoding:
    """What turns a `Member` into parameters: the noise with its data, and the network's shapes.

    A pytree, and always an *argument* of jitted functions, never closed over: as a constant, the table would be copied
    into the program, and the runtime zero would be known to the compiler, which may then round otherwise.
    """

    data: Array
    """The noise's data, float32 `[size]`."""
    zero: Array
    """The runtime zero of `volvox.ops.order`, int32 scalar."""
    draw: Callable[..., Array] = flax.struct.field(pytree_node=False)
    """`Noise.draw`."""
    sample: Callable[..., ArrayTree] = flax.struct.field(pytree_node=False)
    """`Noise.sample`."""
    from_noise: Callable[[ArrayTree], ArrayTree] = flax.struct.field(pytree_node=False)
    """`Policy.from_noise`."""
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = flax.struct.field(pytree_node=False)
    """(path, shape) of every parameter."""
    treedef: Any = flax.struct.field(pytree_node=False)

    @property
    def like(self) -> ArrayTree:
        """Shapes and dtypes of one genome, as a pytree of `jax.ShapeDtypeStruct`."""
        leaves = [jax.ShapeDtypeStruct(shape, jnp.float32) for _, shape in self.shapes]
        return jax.tree.unflatten(self.treedef, leaves)

    @property
    def num_parameters(self) -> int:
        """Parameters in one genome."""
        return flat.num_parameters(self.like)


def encoding(policy: Policy, noise: Noise) -> Encoding:
    """Joins a network and a source of noise; makes the noise's data (the table).

    Args:
      policy: the network.
      noise: where noise comes from.

    Returns:
      `Encoding`.

    Raises:
      ValueError: a parameter is not float32, or the noise's table is too small.
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
    data = noise.make(flat.num_parameters(params))
    return Encoding(data, jnp.int32(0), noise.draw, noise.sample, policy.from_noise, shapes, treedef)


def draw_seeds(encoding: Encoding, key: Array, shape: tuple[int, ...]) -> Array:
    """Draws int32 seeds of the given shape, uniformly from all that name a noise vector."""
    return encoding.draw(key, shape, encoding.data, encoding.num_parameters)


def decode(encoding: Encoding, bases: ArrayTree, member: Member) -> ArrayTree:
    """Computes the parameters of one member: `bases[parent] + scale * noise(seed)`, or the initialiser's noise.

    The product is rounded before the sum wherever this runs (in or out of a fusion), so that an individual rebuilt
    from its lineage is, bit for bit, the one that played.

    Args:
      encoding: of the network.
      bases: parameters, leaves `[P, ...]`.
      member: scalars.

    Returns:
      Parameters, in the structure of `encoding.like`.
    """
    noise = encoding.sample(encoding.data, member.seed, encoding.like)
    # noise * std is rounded too: a later sum must not be contracted with it.
    first = jax.tree.map(lambda x: rounded(x, encoding.zero), encoding.from_noise(noise))

    def one(base, first, noise):
        mutated = base[member.parent] + rounded(member.scale * noise, encoding.zero)
        return jnp.where(member.initial, first, mutated)

    return jax.tree.map(one, bases, first, noise)


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
