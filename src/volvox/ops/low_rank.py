"""Layers whose kernel is one of a few bases plus a matrix of low rank, without forming the sum.

`x @ (bases[index] + a @ b.T) == x @ bases[index] + (x @ a) @ b.T`: under `vmap` over `index`, `a` and `b`, rows with
the same base share its product, and what is left of each network is a few columns (Sarkar et al. 2025, arXiv
2511.16652). A convolution is the same with the kernel read as a matrix `[kh * kw * C, F]`: one with few features, and a
product.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import flax.struct
import jax

from volvox.ops.conv import Padding, conv_low_rank
from volvox.ops.matmul import matmul

Array = jax.Array


@flax.struct.dataclass
class LowRank:
    """The kernel `bases[index] + a @ b.T`, the product read in the kernel's shape. Takes the place of an array.

    Attributes:
      bases: `[P, K, N]` or `[P, kh, kw, C, F]`; None where they are kept elsewhere (`without_bases`).
      index: int32 scalar.
      a: `[K, r]`; of a convolution `[kh * kw * C, r]`.
      b: `[N, r]`.
      leaf: Which leaf of the parameters this is, in the order of `jax.tree.leaves`.
    """

    bases: Array | None
    index: Array
    a: Array
    b: Array
    leaf: int = flax.struct.field(pytree_node=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the kernel."""
        assert self.bases is not None, "the bases are kept elsewhere: put them back by with_bases"
        return self.bases.shape[1:]


def low_rank_dense(x: Array, kernel: LowRank) -> Array:
    """`x @ kernel`.

    Args:
      x: `[..., K]`.
      kernel: of shape `[K, N]`.

    Returns:
      `[..., N]` of the promoted dtype.
    """
    assert kernel.bases is not None
    rows = x.reshape(-1, x.shape[-1])
    shared = matmul(rows[None], kernel.bases, kernel.index[None])[0]
    out = shared + (rows @ kernel.a) @ kernel.b.T
    return out.reshape(*x.shape[:-1], out.shape[-1])


def low_rank_conv(x: Array, kernel: LowRank, *, strides: Sequence[int] = (1, 1), padding: Padding = "SAME") -> Array:
    """Convolution of images with the kernel; arguments as of `volvox.ops.conv.conv`.

    Args:
      x: images `[B, H, W, C]`.
      kernel: of shape `[kh, kw, C, F]`.
      strides: of rows and columns.
      padding: "SAME", "VALID", or zeros (before, after) rows and columns.

    Returns:
      `[B, H', W', F]` of the promoted dtype.

    Raises:
      ValueError: as `conv`, or if the kernel's sides do not fit it.
    """
    assert kernel.bases is not None
    row = jax.tree.map(lambda leaf: leaf[None], (kernel.index, kernel.a, kernel.b))
    return conv_low_rank(x[None], kernel.bases, *row, strides=strides, padding=padding)[0]


def without_bases(tree: Any) -> Any:
    """`tree` with the bases taken out of every `LowRank` in it, so that it can be stored for many networks."""
    return _each(tree, lambda kernel: replace(kernel, bases=None))


def with_bases(tree: Any, bases: Any) -> Any:
    """`tree` with the bases put back: for each `LowRank` the leaf it names of `bases`, parameters `[P, ...]`."""
    leaves = jax.tree.leaves(bases)
    return _each(tree, lambda kernel: replace(kernel, bases=leaves[kernel.leaf]))


def _each(tree: Any, change: Callable[[LowRank], LowRank]) -> Any:
    def is_kernel(x: Any) -> bool:
        return isinstance(x, LowRank)

    return jax.tree.map(lambda x: change(x) if is_kernel(x) else x, tree, is_leaf=is_kernel)
