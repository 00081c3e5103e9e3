"""Gradients of a 2-D convolution as matmuls, for CPU.

XLA's own gradients of strided convolutions are slow on CPU, and another ten times slower inside a compiled loop. Here
the pixels under one stride become the channels of a *block*. A convolution is then a sum over few *taps* (one for each
stride in the window), each a matmul of shifted blocks, and so are its gradients.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


class Window(NamedTuple):
    """Static geometry of a convolution; each field has two entries, rows before columns.

    Attributes:
      size: pixels that the kernel covers.
      strides: pixels from one output to the next.
      padding: numbers of zeros (before, after).
    """

    size: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Returns the height and width of the output."""
        rows, columns = (
            (n + sum(pad) - size) // stride + 1
            for n, pad, size, stride in zip((height, width), self.padding, self.size, self.strides, strict=True)
        )
        return rows, columns

    @property
    def taps(self) -> tuple[int, int]:
        """Returns the number of strides in the window, rounded up."""
        rows, columns = (-(-size // stride) for size, stride in zip(self.size, self.strides, strict=True))
        return rows, columns


def conv_gradients(x: Array, kernel: Array, g: Array, window: Window) -> tuple[Array, Array]:
    """Computes the gradients of images and kernel, by operations that `vmap` batches well.

    Args:
      x: images `[B, H, W, C]`.
      kernel: `[kh, kw, C, F]`.
      g: gradient of the output, `[B, H', W', F]`.
      window: geometry of the convolution.

    Returns:
      (as x, as kernel).
    """
    chex.assert_shape(g, (x.shape[0], *window.output_size(*x.shape[1:3]), kernel.shape[3]))
    blocks = _to_blocks(x, g, window)
    taps = _to_taps(kernel, window)
    of_blocks = _gradient_of_blocks(taps, g)
    of_taps = _gradient_of_taps(blocks, g, window.taps)
    return _from_blocks(of_blocks, x, window), _from_taps(of_taps, kernel, window)


def _gradient_of_taps(blocks: Array, g: Array, taps: tuple[int, int]) -> Array:
    b, oh, ow, f = g.shape
    qh, qw = taps
    k = blocks.shape[-1]
    if qh * qw > 4:
        rows = g.reshape(-1, f)
        of_taps = [blocks[:, i : i + oh, j : j + ow].reshape(-1, k).T @ rows for i in range(qh) for j in range(qw)]
        return jnp.stack(of_taps).reshape(qh, qw, k, f)
    # Few taps have few features together, so there is one matmul for all, with shifted gradients side by side. It sums
    # over very many rows, which is faster in pieces.
    shifted = [_shift(g, i, j, taps) for i in range(qh) for j in range(qw)]
    pieces = _divisor(b, 10)
    rows = jnp.concatenate(shifted, axis=-1).reshape(pieces, -1, qh * qw * f)
    of_taps = jnp.einsum("pmk,pmf->pkf", blocks.reshape(pieces, -1, k), rows).sum(0)
    return of_taps.reshape(k, qh, qw, f).transpose(1, 2, 0, 3)


def _gradient_of_blocks(taps: Array, g: Array) -> Array:
    qh, qw, k, f = taps.shape
    products = g.reshape(-1, f) @ taps.transpose(3, 0, 1, 2).reshape(f, -1)
    products = products.reshape(*g.shape[:3], qh, qw, k)
    shifted = [_shift(products[:, :, :, i, j], i, j, (qh, qw)) for i in range(qh) for j in range(qw)]
    return sum(shifted[1:], shifted[0])


def _shift(x: Array, i: int, j: int, taps: tuple[int, int]) -> Array:
    """Puts outputs `[B, H', W', n]` at the blocks that tap (i, j) reads for them, with zeros elsewhere."""
    qh, qw = taps
    return jnp.pad(x, ((0, 0), (i, qh - 1 - i), (j, qw - 1 - j), (0, 0)))


def _to_taps(kernel: Array, window: Window) -> Array:
    """Reshapes a kernel `[kh, kw, C, F]` to `[qh, qw, sh * sw * C, F]`, padded by zeros to whole strides."""
    (kh, kw), (sh, sw), (qh, qw) = window.size, window.strides, window.taps
    channels, features = kernel.shape[2:]
    whole = jnp.pad(kernel, ((0, qh * sh - kh), (0, qw * sw - kw), (0, 0), (0, 0)))
    split = whole.reshape(qh, sh, qw, sw, channels, features).transpose(0, 2, 1, 3, 4, 5)
    return split.reshape(qh, qw, sh * sw * channels, features)


def _from_taps(taps: Array, like: Array, window: Window) -> Array:
    kh, kw, channels, features = like.shape
    (sh, sw), (qh, qw) = window.strides, window.taps
    split = taps.reshape(qh, qw, sh, sw, channels, features).transpose(0, 2, 1, 3, 4, 5)
    return split.reshape(qh * sh, qw * sw, channels, features)[:kh, :kw]


def _to_blocks(x: Array, g: Array, window: Window) -> Array:
    """Reshapes images `[B, H, W, C]` to blocks `[B, H' + qh - 1, W' + qw - 1, sh * sw * C]`."""
    b, h, w, c = x.shape
    (sh, sw), (qh, qw), ((top, _), (left, _)) = window.strides, window.taps, window.padding
    mh, mw = g.shape[1] + qh - 1, g.shape[2] + qw - 1
    # Rows and columns that no window reaches are cut off: the padding after them may be negative.
    edges = ((0, 0, 0), (top, mh * sh - h - top, 0), (left, mw * sw - w - left, 0), (0, 0, 0))
    split = (mh, sh, mw, sw * c)

    def convert(images: Array) -> Array:
        padded = lax.pad(images, jnp.zeros((), images.dtype), edges)
        return padded.reshape(-1, *split).transpose(0, 1, 3, 2, 4)

    # A loop of its own, as XLA would otherwise convert again for each tap; a loop over one part would be unrolled.
    parts = _divisor(b, 4)
    blocks = convert(x) if parts == 1 or sh == 1 else lax.map(convert, x.reshape(parts, b // parts, h, w, c))
    return blocks.reshape(b, mh, mw, sh * sw * c)


def _from_blocks(blocks: Array, like: Array, window: Window) -> Array:
    b, mh, mw, _ = blocks.shape
    sh, sw = window.strides
    h, w, c = like.shape[1:]
    images = blocks.reshape(b, mh, mw, sh, sw, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, mh * sh, mw * sw, c)
    (top, _), (left, _) = window.padding
    back = ((0, 0, 0), (-top, h + top - mh * sh, 0), (-left, w + left - mw * sw, 0), (0, 0, 0))
    return lax.pad(images, jnp.zeros((), images.dtype), back)


def _divisor(number: int, at_least: int) -> int:
    """Returns the smallest divisor of a number between a limit and four times that limit; 1 if there is none."""
    return next((n for n in range(at_least, 4 * at_least + 1) if number % n == 0), 1)
