"""2-D convolution, channels last, for one network or many.

With one kernel it is `lax.conv_general_dilated`. Under `vmap` over kernels XLA would make a grouped convolution of
it, which is slow on CPU; `conv_many` says what is done instead. Gradients are those of `conv_gradients` on CPU alone;
elsewhere they are XLA's, which are grouped under such a `vmap`.
"""

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from volvox.ops.batching import over_weights, per_index
from volvox.ops.conv_gradients import Window, conv_gradients
from volvox.ops.matmul import served

Array = jax.Array
Padding = str | Sequence[tuple[int, int]]


def conv(x: Array, kernel: Array, *, strides: Sequence[int] = (1, 1), padding: Padding = "SAME") -> Array:
    """Convolves images with one kernel; fast under `vmap` over kernels.

    Reverse mode and any nesting of `vmap`, over either operand, work; forward mode (`jax.jvp`) does not.

    Example:
      >>> out = conv(jnp.ones((8, 84, 84, 4)), jnp.ones((8, 8, 4, 32)), strides=(4, 4))  # [8, 21, 21, 32]
      >>> many = jax.vmap(conv)(jnp.ones((5, 8, 84, 84, 4)), jnp.ones((5, 8, 8, 4, 32)))  # [5, 8, 84, 84, 32]

    Args:
      x: images `[B, H, W, C]`.
      kernel: `[kh, kw, C, F]`.
      strides: of rows and columns.
      padding: "SAME", "VALID", or the numbers of zeros (before, after) of rows and of columns.

    Returns:
      `[B, H', W', F]` of the promoted dtype.

    Raises:
      ValueError: shapes, strides or padding do not fit.
    """
    window = _fitting(x.shape, kernel.shape, strides, padding)
    dtype = jnp.result_type(x, kernel)
    return _conv(x.astype(dtype), kernel.astype(dtype), window)


def _fitting(x: Sequence[int], kernel: Sequence[int], strides: Sequence[int], padding: Padding) -> Window:
    """Returns the geometry of images and kernel of these shapes; raises ValueError if they do not fit."""
    if len(x) != 4 or len(kernel) != 4 or x[3] != kernel[2]:
        raise ValueError(f"conv needs x [B, H, W, C] and a kernel [kh, kw, C, F]; got {tuple(x)} and {tuple(kernel)}.")
    window = _window(x[1:3], kernel[:2], strides, padding)
    if min(window.output_size(*x[1:3])) < 1:
        raise ValueError(f"The window {tuple(kernel[:2])} does not fit into images of {tuple(x[1:3])} with {padding=}.")
    return window


def _window(image: Sequence[int], size: Sequence[int], strides: Sequence[int], padding: Padding) -> Window:
    if len(strides) != 2 or min(strides) < 1:
        raise ValueError(f"conv needs two positive strides; got {tuple(strides)}.")
    pads = lax.padtype_to_pads(image, size, strides, padding) if isinstance(padding, str) else padding
    pads = tuple((int(low), int(high)) for low, high in pads)
    if len(pads) != 2 or min(map(min, pads)) < 0:
        raise ValueError(f"conv needs a non-negative (before, after) padding of rows and columns; got {padding}.")
    return Window((size[0], size[1]), (int(strides[0]), int(strides[1])), pads)


# Reverse mode through `custom_vmap` raises, so `custom_vjp` is outermost.


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv(x: Array, kernel: Array, window: Window) -> Array:
    return over_weights(partial(conv_shared, window=window), partial(conv_many, window=window))(x, kernel)


def _conv_forward(x, kernel, window):
    return _conv(x, kernel, window), (x, kernel)


def _conv_backward(window, residuals, g):
    def automatic(x, kernel, g):
        return jax.vjp(lambda x, kernel: conv_shared(x, kernel, window), x, kernel)[1](g)

    return lax.platform_dependent(*residuals, g, cpu=partial(conv_gradients, window=window), default=automatic)


_conv.defvjp(_conv_forward, _conv_backward)


def conv_low_rank(
    x: Array,
    kernels: Array,
    index: Array,
    a: Array,
    b: Array,
    *,
    strides: Sequence[int] = (1, 1),
    padding: Padding = "SAME",
) -> Array:
    """Convolves each block of images with one of a few kernels plus a matrix of low rank, without forming the sum.

    The kernel of block i is `kernels[index[i]] + a[i] @ b[i].T`, its first three axes read as one. It remains one call
    under any nesting of `vmap`. It has no gradients.

    Args:
      x: images `[B, M, H, W, C]`.
      kernels: `[P, kh, kw, C, F]`.
      index: int32 `[B]`, each in `[0, P)`.
      a: `[B, kh * kw * C, r]`.
      b: `[B, F, r]`.
      strides: of rows and columns.
      padding: "SAME", "VALID", or the numbers of zeros (before, after) of rows and of columns.

    Returns:
      `[B, M, H', W', F]` of the promoted dtype.

    Raises:
      ValueError: shapes, strides or padding do not fit.
    """
    window = _fitting(x.shape[1:], kernels.shape[1:], strides, padding)
    k = math.prod(kernels.shape[1:4])
    if a.shape[1:-1] != (k,) or b.shape[1:] != (kernels.shape[4], a.shape[-1]):
        raise ValueError(
            f"conv_low_rank needs a [B, {k}, r] and b [B, {kernels.shape[4]}, r] beside kernels {kernels.shape}; got "
            f"{a.shape} and {b.shape}."
        )
    dtype = jnp.result_type(x, kernels, a, b)

    def many(x, kernels, index, a, b):
        return lax.platform_dependent(
            x,
            kernels,
            index,
            a,
            b,
            cpu=partial(_low_rank_mapped, window=window),
            default=partial(_low_rank_patches, window=window),
        )

    return per_index(many)(x.astype(dtype), kernels.astype(dtype), index, a.astype(dtype), b.astype(dtype))


def _low_rank_mapped(x: Array, kernels: Array, index: Array, a: Array, b: Array, window: Window) -> Array:
    features = kernels.shape[-1]

    def one(block):
        x, index, a = block
        # The few columns are put beside the kernel's own, which takes 1.2 times as long as the kernel alone in a large
        # DeepGA network; a convolution of their own would take 1.36 times.
        both = jnp.concatenate([kernels[index], a.reshape(*kernels.shape[1:-1], -1)], axis=-1)
        out = conv_shared(x, both, window)
        return out[..., :features], out[..., features:]

    shared, own = lax.map(one, (x, index, a))
    # This is outside the loop, so that all cores do it, together with what follows.
    return shared + sum(own[..., j, None] * b[:, None, None, None, :, j] for j in range(b.shape[-1]))


def _low_rank_patches(x: Array, kernels: Array, index: Array, a: Array, b: Array, window: Window) -> Array:
    blocks, images = x.shape[:2]
    patches = _patches(x.reshape(blocks * images, *x.shape[2:]), window)
    rows = patches.reshape(blocks, -1, patches.shape[-1])
    shared = served(rows, kernels.reshape(kernels.shape[0], -1, kernels.shape[-1]), index)
    out = shared + (rows @ a) @ jnp.swapaxes(b, 1, 2)
    return out.reshape(blocks, images, *patches.shape[1:3], -1)


def conv_shared(x: Array, kernel: Array, window: Window) -> Array:
    """Convolves images `[B, H, W, C]` with one kernel `[kh, kw, C, F]`, by XLA's convolution."""
    return lax.conv_general_dilated(
        x, kernel, window.strides, window.padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def conv_many(x: Array, kernel: Array, window: Window) -> Array:
    """Convolves images `[P, B, H, W, C]` with `P` kernels `[P, kh, kw, C, F]`.

    On CPU this is XLA's convolution with one kernel after the other: each uses all cores and stays in cache. With 64
    kernels the three convolutions of a large DeepGA network take 1.2 times as long as those of 64 rows through one
    network; patches and batched matmuls take 1.5 to 2.3 times, a vmapped `lax.conv_general_dilated` 7 times as long.
    Elsewhere, where one launch should do all the work, it is one batched matmul of patches.
    """
    return lax.platform_dependent(
        x, kernel, cpu=partial(_conv_mapped, window=window), default=partial(_conv_patches, window=window)
    )


def _conv_mapped(x: Array, kernel: Array, window: Window) -> Array:
    return lax.map(lambda operands: conv_shared(operands[0], operands[1], window), (x, kernel))


def _conv_patches(x: Array, kernel: Array, window: Window) -> Array:
    p, b = x.shape[:2]
    patches = _patches(x.reshape(p * b, *x.shape[2:]), window)
    out = served(patches.reshape(p, -1, patches.shape[-1]), kernel.reshape(p, -1, kernel.shape[-1]))
    return out.reshape(p, b, *patches.shape[1:3], -1)


def _patches(x: Array, window: Window) -> Array:
    """Returns what the window sees of images `[B, H, W, C]`: `[B, H', W', kh * kw * C]`."""
    (kh, kw), (sh, sw) = window.size, window.strides
    oh, ow = window.output_size(*x.shape[1:3])
    padded = jnp.pad(x, ((0, 0), *window.padding, (0, 0)))
    return jnp.concatenate(
        [
            padded[:, i : i + sh * (oh - 1) + 1 : sh, j : j + sw * (ow - 1) + 1 : sw]
            for i in range(kh)
            for j in range(kw)
        ],
        axis=-1,
    )
