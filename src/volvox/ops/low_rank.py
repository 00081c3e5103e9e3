"""Layers whose kernel is one of a few bases plus a matrix of low rank, without forming the sum.

`x @ (bases[index] + a @ b.T) == x @ bases[index] + (x @ a) @ b.T`: under `vmap` over `index`, `a` and `b`, rows with
the same base share its product, and each network adds only a few columns (Sarkar et al. 2025, arXiv 2511.16652). In a
convolution the kernel is read as a matrix `[kh * kw * C, F]`: `x @ a` is then a convolution with few features.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from volvox.ops.batching import per_index
from volvox.ops.conv import Padding, Window, conv_shared, patches_of, window_of
from volvox.ops.matmul import matmul, multiply
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

    bases: Any
    index: Array
    a: Array
    b: Array
    leaf: int = flax.struct.field(pytree_node=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the kernel, if it has its bases."""
        return self.bases.shape[1:]


def low_rank_dense(x: Array, kernel: LowRankKernel) -> Array:
    """Computes `x @ kernel`.

    Args:
      x: `[..., K]`.
      kernel: Kernel of shape `[K, N]`.

    Returns:
      `[..., N]` of the promoted dtype.
    """
    rows = x.reshape(-1, x.shape[-1])
    shared = matmul(rows[None], kernel.bases, kernel.index[None])[0]
    out = shared + (rows @ kernel.a) @ kernel.b.T
    return out.reshape(*x.shape[:-1], out.shape[-1])


def low_rank_conv(
    x: Array, kernel: LowRankKernel, *, strides: Sequence[int] = (1, 1), padding: Padding = "SAME"
) -> Array:
    """Convolves images as `conv` does, with a kernel of shape `[kh, kw, C, F]`.

    It remains one call under any nesting of `vmap`, and has no gradients.
    """
    window = window_of(x.shape, kernel.shape, strides, padding)
    dtype = jnp.result_type(x, kernel.bases, kernel.a, kernel.b)
    images, bases, a, b = (y.astype(dtype) for y in (x[None], kernel.bases, kernel.a[None], kernel.b[None]))

    def many(*operands):
        on_cpu, elsewhere = partial(_convs_mapped, window=window), partial(_convs_of_patches, window=window)
        return lax.platform_dependent(*operands, cpu=on_cpu, default=elsewhere)

    return per_index(many)(images, bases, kernel.index[None], a, b)[0]


def _convs_mapped(x: Array, kernels: Array, index: Array, a: Array, b: Array, window: Window) -> Array:
    """Convolves images `[B, M, H, W, C]`; all axes but `[P, kh, kw, C, F]` of the kernels begin with B."""
    features = kernels.shape[-1]

    def one(block):
        x, index, a = block
        # One convolution with the few columns of `a` beside the kernel takes 1.2 times as long as the kernel alone in a
        # large DeepGA network; a separate convolution takes 1.36 times as long.
        both = jnp.concatenate([kernels[index], a.reshape(*kernels.shape[1:-1], -1)], axis=-1)
        out = conv_shared(x, both, window)
        return out[..., :features], out[..., features:]

    shared, low_rank = lax.map(one, (x, index, a))
    # This sum is outside the loop, so that XLA fuses it with the following operations and uses all cores.
    return shared + sum(low_rank[..., j, None] * b[:, None, None, None, :, j] for j in range(b.shape[-1]))


def _convs_of_patches(x: Array, kernels: Array, index: Array, a: Array, b: Array, window: Window) -> Array:
    blocks, images = x.shape[:2]
    patches = patches_of(x.reshape(blocks * images, *x.shape[2:]), window)
    rows = patches.reshape(blocks, -1, patches.shape[-1])
    shared = multiply(rows, kernels.reshape(kernels.shape[0], -1, kernels.shape[-1]), index)
    out = shared + (rows @ a) @ jnp.swapaxes(b, 1, 2)
    return out.reshape(blocks, images, *patches.shape[1:3], -1)


def without_bases(tree: Any) -> Any:
    """Removes the bases from every `LowRankKernel` in `tree`, so that it can be stored for many networks."""
    return _each(tree, lambda kernel: replace(kernel, bases=None))


def with_bases(tree: Any, bases: Any) -> Any:
    """Puts the leaf of `bases` `[P, ...]` that it names into every `LowRankKernel` in `tree`."""
    leaves = jax.tree.leaves(bases)
    return _each(tree, lambda kernel: replace(kernel, bases=leaves[kernel.leaf]))


def _each(tree: Any, change: Callable[[LowRankKernel], LowRankKernel]) -> Any:
    is_kernel = lambda x: isinstance(x, LowRankKernel)  # noqa: E731
    return jax.tree.map(lambda leaf: change(leaf) if is_kernel(leaf) else leaf, tree, is_leaf=is_kernel)
