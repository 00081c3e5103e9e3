"""2-D convolution, channels last, for one network or many.

With one kernel it is `lax.conv_general_dilated`. Under `vmap` over kernels XLA would make a grouped convolution of
it, which is slow on CPU: `conv_many` has what is done instead.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from volvox.ops.batching import over_weights

Array = jax.Array
Padding = str | Sequence[tuple[int, int]]


class Window(NamedTuple):
    """Static geometry of a convolution; two entries each, rows before columns."""

    size: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output."""
        rows, columns = (
            (n + sum(pad) - size) // stride + 1
            for n, pad, size, stride in zip((height, width), self.padding, self.size, self.strides, strict=True)
        )
        return rows, columns

    @property
    def whole_blocks(self) -> bool:
        """Whether the window is made of whole strides, so that space-to-depth applies."""
        return all(size % stride == 0 for size, stride in zip(self.size, self.strides, strict=True))


def conv(x: Array, kernel: Array, *, strides: Sequence[int] = (1, 1), padding: Padding = "SAME") -> Array:
    """Convolution of images with one kernel; fast under `vmap` over kernels.

    Reverse mode and any nesting of `vmap`, over either operand, work; forward mode (`jax.jvp`) does not.

    Args:
      x: images `[B, H, W, C]`.
      kernel: `[kh, kw, C, F]`.
      strides: of rows and columns.
      padding: "SAME", "VALID", or zeros (before, after) rows and columns.

    Returns:
      `[B, H', W', F]` of the promoted dtype.

    Raises:
      ValueError: if shapes, strides or padding do not fit.
    """
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[3] != kernel.shape[2]:
        raise ValueError(f"conv needs x [B, H, W, C] and a kernel [kh, kw, C, F]; got {x.shape} and {kernel.shape}.")
    window = _window(x.shape[1:3], kernel.shape[:2], strides, padding)
    if min(window.output_size(*x.shape[1:3])) < 1:
        raise ValueError(f"The window {kernel.shape[:2]} does not fit into images of {x.shape[1:3]} with {padding=}.")
    dtype = jnp.result_type(x, kernel)
    return _conv(x.astype(dtype), kernel.astype(dtype), window)


def _window(image: Sequence[int], size: Sequence[int], strides: Sequence[int], padding: Padding) -> Window:
    if len(strides) != 2 or min(strides) < 1:
        raise ValueError(f"conv needs two positive strides; got {tuple(strides)}.")
    pads = lax.padtype_to_pads(image, size, strides, padding) if isinstance(padding, str) else padding
    pads = tuple((int(low), int(high)) for low, high in pads)
    if len(pads) != 2 or min(min(pads)) < 0:
        raise ValueError(f"conv needs a non-negative (before, after) padding of rows and columns; got {padding}.")
    return Window((size[0], size[1]), (int(strides[0]), int(strides[1])), pads)


# Reverse mode through `custom_vmap` raises, so `custom_vjp` is outermost.


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv(x: Array, kernel: Array, window: Window) -> Array:
    return over_weights(partial(conv_shared, window=window), partial(conv_many, window=window))(x, kernel)


def _conv_forward(x, kernel, window):
    return _conv(x, kernel, window), (x, kernel)


def _conv_backward(window, residuals, g):
    # The gradient of an equivalent form in matmuls: XLA's own convolution gradients are slow on CPU, and `vmap` over
    # plain operations needs no rule.
    form = _conv_shifted if window.whole_blocks else _conv_patches
    _, vjp = jax.vjp(lambda x, kernel: form(x[None], kernel[None], window)[0], *residuals)
    return vjp(g)


_conv.defvjp(_conv_forward, _conv_backward)


def conv_shared(x: Array, kernel: Array, window: Window) -> Array:
    """Images `[B, H, W, C]` through one kernel `[kh, kw, C, F]`: XLA's convolution."""
    return lax.conv_general_dilated(
        x, kernel, window.strides, window.padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def conv_many(x: Array, kernel: Array, window: Window) -> Array:
    """Images `[P, B, H, W, C]` through `P` kernels `[P, kh, kw, C, F]`.

    On CPU XLA's convolution, one kernel after the other: each uses all cores and stays in cache. With 64 kernels the
    three convolutions of a large DeepGA network take 1.2 times as long as those of 64 rows through one network; patches
    and batched matmuls take 1.5 to 2.3 times, a vmapped `lax.conv_general_dilated` 7 times as long. Elsewhere, where
    one launch should do all the work, patches and one batched matmul.
    """
    return lax.platform_dependent(
        x, kernel, cpu=partial(_conv_mapped, window=window), default=partial(_conv_patches, window=window)
    )


def _conv_mapped(x: Array, kernel: Array, window: Window) -> Array:
    return lax.map(lambda operands: conv_shared(operands[0], operands[1], window), (x, kernel))


def _conv_patches(x: Array, kernel: Array, window: Window) -> Array:
    p, b = x.shape[:2]
    (kh, kw), (sh, sw) = window.size, window.strides
    oh, ow = window.output_size(*x.shape[2:4])
    padded = jnp.pad(x, ((0, 0), (0, 0), *window.padding, (0, 0)))
    patches = jnp.concatenate(
        [
            padded[:, :, i : i + sh * (oh - 1) + 1 : sh, j : j + sw * (ow - 1) + 1 : sw]
            for i in range(kh)
            for j in range(kw)
        ],
        axis=-1,
    )
    rows = patches.reshape(p, b * oh * ow, -1)
    out = jnp.einsum("pmk,pkn->pmn", rows, kernel.reshape(p, -1, kernel.shape[-1]))
    return out.reshape(p, b, oh, ow, -1)


def _conv_shifted(x: Array, kernel: Array, window: Window) -> Array:
    p, b, h, w, c = x.shape
    f = kernel.shape[-1]
    (kh, kw), (sh, sw) = window.size, window.strides
    qh, qw = kh // sh, kw // sw
    oh, ow = window.output_size(h, w)
    mh, mw = oh + qh - 1, ow + qw - 1  # blocks of stride by stride pixels that the windows cover
    (top, _), (left, _) = window.padding
    zero = jnp.zeros((), x.dtype)
    # Rows and columns that no window reaches are cut: the padding behind may be negative.
    edges = ((0, 0, 0), (0, 0, 0), (top, mh * sh - h - top, 0), (left, mw * sw - w - left, 0), (0, 0, 0))
    blocks = lax.pad(x, zero, edges).reshape(p, b, mh, sh, mw, sw, c)
    blocks = blocks.transpose(0, 1, 2, 4, 3, 5, 6).reshape(p, b * mh * mw, sh * sw * c)
    parts = kernel.reshape(p, qh, sh, qw, sw, c, f).transpose(0, 2, 4, 5, 1, 3, 6)
    parts = parts.reshape(p, sh * sw * c, qh * qw * f)
    products = jnp.einsum("pmk,pkn->pmn", blocks, parts).reshape(p, b, mh, mw, qh, qw, f)
    shifted = [products[:, :, i : i + oh, j : j + ow, i, j] for i in range(qh) for j in range(qw)]
    return sum(shifted[1:], shifted[0])
