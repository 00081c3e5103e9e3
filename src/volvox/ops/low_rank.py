"""Layers whose kernel is one of a few bases plus a matrix of low rank, without forming the sum.

`x @ (bases[index] + a @ b.T) == x @ bases[index] + (x @ a) @ b.T`: under `vmap` over `index`, `a` and `b`, rows with
the same base share its product, and each network adds only a few columns (Sarkar et al. 2025, arXiv 2511.16652). In a
convolution the kernel is read as a matrix `[kh * kw * C, F]`: `x @ a` is then a convolution with few features.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import flax.struct
import jax

from volvox.ops.conv import Padding, conv_low_rank
from volvox.ops.matmul import matmul
from volvox.types import Array


@flax.struct.dataclass
class LowRankKernel:
    """The kernel `bases[index] + a @ b.T`, with the product reshaped to the kernel, in place of an array.

    Attributes:
      bases: `[P, K, N]` or `[P, kh, kw, C, F]`; None if `without_bases` removed them.
      index: `int32 []`: index of the base.
      a: `[K, r]`; of a convolution `[kh * kw * C, r]`.
      b: `[N, r]`.
      leaf: Position of this kernel among the leaves of the parameters, in the order of `jax.tree.leaves`.
    """

    bases: Array | None
    index: Array
    a: Array
    b: Array
    leaf: int = flax.struct.field(pytree_node=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the kernel."""
        assert self.bases is not None, "with_bases must put the bases back first"
        return self.bases.shape[1:]


def low_rank_dense(x: Array, kernel: LowRankKernel) -> Array:
    """Computes `x @ kernel`.

    Args:
      x: `[..., K]`.
      kernel: Kernel of shape `[K, N]`.

    Returns:
      `[..., N]` of the promoted dtype.
    """
    assert kernel.bases is not None
    rows = x.reshape(-1, x.shape[-1])
    shared = matmul(rows[None], kernel.bases, kernel.index[None])[0]
    out = shared + (rows @ kernel.a) @ kernel.b.T
    return out.reshape(*x.shape[:-1], out.shape[-1])


def low_rank_conv(
    x: Array, kernel: LowRankKernel, *, strides: Sequence[int] = (1, 1), padding: Padding = "SAME"
) -> Array:
    """Convolves images with the kernel.

    Args:
      x: Images `[B, H, W, C]`.
      kernel: Kernel of shape `[kh, kw, C, F]`.
      strides: Strides of rows and columns.
      padding: "SAME", "VALID", or the numbers of zeros (before, after) of rows and of columns.

    Returns:
      `[B, H', W', F]` of the promoted dtype.
    """
    assert kernel.bases is not None
    row = jax.tree.map(lambda leaf: leaf[None], (kernel.index, kernel.a, kernel.b))
    return conv_low_rank(x[None], kernel.bases, *row, strides=strides, padding=padding)[0]


def without_bases(tree: Any) -> Any:
    """Removes the bases from every `LowRankKernel` in `tree`, so that it can be stored for many networks."""
    return _each(tree, lambda kernel: replace(kernel, bases=None))


def with_bases(tree: Any, bases: Any) -> Any:
    """Puts the leaf of `bases` `[P, ...]` that it names into every `LowRankKernel` in `tree`."""
    leaves = jax.tree.leaves(bases)
    return _each(tree, lambda kernel: replace(kernel, bases=leaves[kernel.leaf]))


def _each(tree: Any, change: Callable[[LowRankKernel], LowRankKernel]) -> Any:
    leaves, treedef = jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, LowRankKernel))
    return jax.tree.unflatten(treedef, [change(leaf) if isinstance(leaf, LowRankKernel) else leaf for leaf in leaves])
