"""Bases of a population on actors: each is identified by a digest, and sent only if an actor cannot compute it.

An actor that holds the bases of the generation before makes those of the next one itself, from a few numbers each; what
did not change stays; and only what is left travels, in pieces, once a node.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.population.decoding import Encoding, Member, decode
from volvox.types import Array, ArrayTree

Digest = tuple[int, int]
"""Of the numbers of one base, to the last bit."""
ZEROS = (0, 0)
"""The digest of a base of zeros, which no strategy needs to send."""


class Origin(NamedTuple):
    """How bases came from those of the generation before.

    Attributes:
      previous: Digests of those before.
      members: How each came from them; NumPy fields `[P]`.
    """

    previous: tuple[Digest, ...]
    members: Member


def digests(bases: ArrayTree) -> tuple[Digest, ...]:
    """Returns the digest of each base, from leaves `[P, ...]` of float32."""
    return tuple((int(a), int(b)) for a, b in np.asarray(_digests(bases)))


@jax.jit
def _digests(bases: ArrayTree) -> Array:
    """Two sums of all bits modulo 2**32, weighted by place: uint32 `[P, 2]`, in whatever order they are added."""
    first = second = jnp.zeros((), jnp.uint32)
    begin = 0
    for leaf in jax.tree.leaves(bases):
        bits = jax.lax.bitcast_convert_type(leaf.reshape(leaf.shape[0], -1), jnp.uint32)
        place = jnp.arange(bits.shape[1], dtype=jnp.uint32) + jnp.uint32(begin % 2**32)
        first = first + (bits * (2 * place + 1)).sum(axis=1, dtype=jnp.uint32)
        second = second + ((bits ^ (bits >> 15)) * (place * jnp.uint32(0x9E3779B1) | 1)).sum(axis=1, dtype=jnp.uint32)
        begin += bits.shape[1]
    return jnp.stack([first, second], axis=1)


@jax.jit
def _made(encoding: Encoding, bases: ArrayTree, j: Array, members: Member) -> ArrayTree:
    return decode(encoding, bases, jax.tree.map(lambda x: x[j], members))


@partial(jax.jit, donate_argnums=0)
def _placed(bases: ArrayTree, j: Array, row: ArrayTree) -> ArrayTree:
    return jax.tree.map(lambda x, new: x.at[j].set(new), bases, row)


class Bases:
    """The bases that an actor holds, and for a while those that are to take their place.

    Attributes:
      tree: Parameters, leaves `[P, ...]`; None before there are any.
      names: Their digests.
    """

    def __init__(self, encoding: Encoding):
        """Begins without any."""
        self._encoding = encoding
        self.tree: ArrayTree = None
        self.names: tuple[Digest, ...] = ()
        self._next: tuple[Digest, ...] = ()
        self._filled: ArrayTree = None
        self._lacking: list[int] = []

    def take(
        self, wanted: Sequence[Digest], origin: Origin | None, given: Mapping[Digest, Sequence[np.ndarray]]
    ) -> tuple[Digest, ...]:
        """Makes the bases of these digests the ones that are held, once all of them are there.

        Args:
          wanted: Digests of the bases, in order.
          origin: How they came from those before, if that is known.
          given: Leaves of those that were sent; they are kept until bases of other digests are wanted.

        Returns:
          Digests of bases that could not be made, and must be sent; until then the bases before are held. Empty if all
          is well.
        """
        if (wanted := tuple(wanted)) == self.names:
            return ()
        if wanted != self._next:
            self._next, self._filled = wanted, self._encoding.zeros(len(wanted))
            self._lacking = [j for j, name in enumerate(wanted) if name != ZEROS]
        else:
            origin = None  # what it makes is there
        for j in list(self._lacking):
            row = self._row(j, wanted[j], origin, given)
            if row is not None:
                self._filled = _placed(self._filled, jnp.int32(j), row)
                self._lacking.remove(j)
        if not self._lacking:
            self.tree, self.names = self._filled, wanted
            self._filled, self._next = None, ()
        return tuple(dict.fromkeys(wanted[j] for j in self._lacking))

    def _row(self, j: int, name: Digest, origin: Origin | None, given: Mapping[Digest, Sequence[np.ndarray]]) -> Any:
        if name in self.names:
            place = self.names.index(name)
            return jax.tree.map(lambda x: x[place], self.tree)
        if name in given:
            return self._encoding.treedef.unflatten(map(jnp.asarray, given[name]))
        if origin is None or origin.previous != self.names:
            return None
        made = _made(self._encoding, self.tree, jnp.int32(j), origin.members)
        return made if digests(jax.tree.map(lambda x: x[None], made)) == (name,) else None
