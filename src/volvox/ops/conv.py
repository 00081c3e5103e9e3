"""2-D convolution, channels last, for one network or many.

With one kernel, `conv` is `lax.conv_general_dilated`. Under `vmap` over kernels, XLA would turn it into a grouped
convolution, which is slow on CPU; `conv_many` replaces it. For gradients on CPU, `conv_taps` and `conv_gradients`
compute by matmuls, which use all cores; elsewhere gradients are XLA's, which are grouped under such a `vmap`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax

from volvox.ops.batching import over_weights
from volvox.ops.matmul import multiply
from volvox.types import Array

Padding = str | Sequence[tuple[int, int]]


class Window(NamedTuple):
    """Static geometry of a convolution; each field has an entry for rows and one for columns.

    Attributes:
      size: Height and width of the kernel.
      strides: Pixels from one output to the next.
      padding: Numbers of zeros (before, after).
    """

    size: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output for images of this height and width."""
        rows, columns = (
            (n + sum(pad) - size) // stride + 1
            for n, pad, size, stride in zip((height, width), self.padding, self.size, self.strides, strict=True)
        )
        return rows, columns

    @property
    def taps(self) -> tuple[int, int]:
        """Number of strides in the window, rounded up."""
        rows, columns = (-(-size // stride) for size, stride in zip(self.size, self.strides, strict=True))
        return rows, columns


def conv(x: Array, kernel: Array, *, strides: Sequence[int] = (1, 1), padding: Padding = "SAME") -> Array:
    """Convolves images with one kernel; fast under `vmap` over kernels.

    Reverse mode and any nesting of `vmap`, over either operand, work; forward mode (`jax.jvp`) does not.

    Example:
      >>> out = conv(jnp.ones((8, 84, 84, 4)), jnp.ones((8, 8, 4, 32)), strides=(4, 4))  # [8, 21, 21, 32]
      >>> many = jax.vmap(conv)(jnp.ones((5, 8, 84, 84, 4)), jnp.ones((5, 8, 8, 4, 32)))  # [5, 8, 84, 84, 32]

    Args:
      x: Images `[B, H, W, C]`.
      kernel: `[kh, kw, C, F]`.
      strides: Strides of rows and columns.
      padding: "SAME", "SAME_LOWER", "VALID", or the numbers of zeros (before, after) of rows and of columns.

    Returns:
      `[B, H', W', F]` of the promoted dtype.
    """
    window = window_of(x.shape, kernel.shape, strides, padding)
    dtype = jnp.result_type(x, kernel)
    return _conv(x.astype(dtype), kernel.astype(dtype), window)


def window_of(x: Sequence[int], kernel: Sequence[int], strides: Sequence[int], padding: Padding) -> Window:
    """Returns the geometry of images and kernel of these shapes."""
    pads: Any = lax.padtype_to_pads(x[1:3], kernel[:2], strides, padding) if isinstance(padding, str) else padding
    (top, bottom), (left, right) = ((int(before), int(after)) for before, after in pads)
    return Window((kernel[0], kernel[1]), (int(strides[0]), int(strides[1])), ((top, bottom), (left, right)))


# Reverse mode through `custom_vmap` raises, so `custom_vjp` is outermost.


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv(x: Array, kernel: Array, window: Window) -> Array:
    return over_weights(partial(conv_shared, window=window), partial(conv_many, window=window))(x, kernel)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv_learning(x: Array, kernel: Array, window: Window) -> Array:
    def one(x, kernel):
        by = {"cpu": partial(conv_taps, window=window), "default": partial(conv_shared, window=window)}
        return lax.platform_dependent(x, kernel, **by)

    return over_weights(one, partial(conv_many, window=window))(x, kernel)


def _conv_forward(x, kernel, window):
    return _conv_learning(x, kernel, window), (x, kernel)


def _conv_backward(window, residuals, g):
    def automatic(x, kernel, g):
        return jax.vjp(lambda x, kernel: conv_shared(x, kernel, window), x, kernel)[1](g)

    return lax.platform_dependent(*residuals, g, cpu=partial(conv_gradients, window=window), default=automatic)


_conv.defvjp(_conv_forward, _conv_backward)
_conv_learning.defvjp(_conv_forward, _conv_backward)


def conv_shared(x: Array, kernel: Array, window: Window) -> Array:
    """Convolves images `[B, H, W, C]` with one kernel `[kh, kw, C, F]`, by XLA's convolution."""
    return lax.conv_general_dilated(
        x, kernel, window.strides, window.padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def conv_taps(x: Array, kernel: Array, window: Window) -> Array:
    """Convolves images `[B, H, W, C]` with one kernel by a matmul.

    It multiplies blocks of `strides` pixels by all taps of the window, and sums the products of the blocks under it.
    On two cores this is faster than XLA's convolution, which takes as long there as on one.
    """
    blocks, taps = _to_blocks(x, window), _to_taps(kernel, window)
    (qh, qw), (oh, ow) = window.taps, window.output_size(*x.shape[1:3])
    single = jnp.promote_types(x.dtype, jnp.float32)  # half precision is summed in float32
    flat = taps.transpose(2, 0, 1, 3).reshape(taps.shape[2], -1)
    products = jnp.matmul(blocks.reshape(-1, len(flat)), flat, preferred_element_type=single)
    products = products.reshape(*blocks.shape[:3], qh, qw, kernel.shape[3])
    out = sum(products[:, i : i + oh, j : j + ow, i, j] for i in range(qh) for j in range(qw))
    return jnp.asarray(out, x.dtype)


def conv_many(x: Array, kernel: Array, window: Window) -> Array:
    """Convolves images `[P, B, H, W, C]` with `P` kernels `[P, kh, kw, C, F]`.

    On CPU this is XLA's convolution with one kernel after the other, which stays in cache. With 64 kernels the three
    convolutions of a large DeepGA network take 1.2 times as long as those of 64 rows through one network; patches and
    batched matmuls take 1.5 to 2.3 times as long, and a vmapped `lax.conv_general_dilated` 7 times as long. Elsewhere
    it is one batched matmul of patches, so that one launch does all the work.
    """

    def mapped(x: Array, kernel: Array) -> Array:
        return lax.map(lambda operands: conv_shared(operands[0], operands[1], window), (x, kernel))

    return lax.platform_dependent(x, kernel, cpu=mapped, default=partial(_conv_patches, window=window))


def _conv_patches(x: Array, kernel: Array, window: Window) -> Array:
    p, b = x.shape[:2]
    patches = patches_of(x.reshape(p * b, *x.shape[2:]), window)
    out = multiply(patches.reshape(p, -1, patches.shape[-1]), kernel.reshape(p, -1, kernel.shape[-1]))
    return out.reshape(p, b, *patches.shape[1:3], -1)


def patches_of(x: Array, window: Window) -> Array:
    """Returns the pixels under the window: images `[B, H, W, C]` -> `[B, H', W', kh * kw * C]`."""
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


def conv_gradients(x: Array, kernel: Array, g: Array, window: Window) -> tuple[Array, Array]:
    """Computes the gradients of images and kernel by matmuls, which `vmap` batches well.

    Args:
      x: Images `[B, H, W, C]`.
      kernel: `[kh, kw, C, F]`.
      g: Gradient of the output, `[B, H', W', F]`.
      window: Geometry of the convolution.

    Returns:
      (as x, as kernel).
    """
    chex.assert_shape(g, (x.shape[0], *window.output_size(*x.shape[1:3]), kernel.shape[3]))
    blocks, taps = _to_blocks(x, window), _to_taps(kernel, window)
    of_blocks = _gradient_of_blocks(taps, g)
    of_taps = _gradient_of_taps(blocks, g, window.taps)
    (dx,) = jax.linear_transpose(lambda x: _to_blocks(x, window), x)(of_blocks.astype(x.dtype))
    (dkernel,) = jax.linear_transpose(lambda w: _to_taps(w, window), kernel)(of_taps.astype(kernel.dtype))
    return dx, dkernel


def _gradient_of_taps(blocks: Array, g: Array, taps: tuple[int, int]) -> Array:
    (_, oh, ow, f), (qh, qw), k = g.shape, taps, blocks.shape[-1]
    if qh * qw > 4:
        rows = g.reshape(-1, f)
        of_taps = [blocks[:, i : i + oh, j : j + ow].reshape(-1, k).T @ rows for i in range(qh) for j in range(qw)]
        return jnp.stack(of_taps).reshape(qh, qw, k, f)
    # Few taps have few features in all, so one matmul computes them, with shifted gradients side by side.
    shifted = [_shift(g, i, j, taps) for i in range(qh) for j in range(qw)]
    rows = jnp.concatenate(shifted, axis=-1).reshape(-1, qh * qw * f)
    single = jnp.promote_types(g.dtype, jnp.float32)
    of_taps = jnp.matmul(blocks.reshape(-1, k).T, rows, preferred_element_type=single)
    return of_taps.reshape(k, qh, qw, f).transpose(1, 2, 0, 3)


def _gradient_of_blocks(taps: Array, g: Array) -> Array:
    qh, qw, k, f = taps.shape
    single = jnp.promote_types(g.dtype, jnp.float32)  # half precision is summed in float32
    products = jnp.matmul(g.reshape(-1, f), taps.transpose(3, 0, 1, 2).reshape(f, -1), preferred_element_type=single)
    products = products.reshape(*g.shape[:3], qh, qw, k)
    shifted = [_shift(products[:, :, :, i, j], i, j, (qh, qw)) for i in range(qh) for j in range(qw)]
    return sum(shifted[1:], shifted[0])


def _shift(x: Array, i: int, j: int, taps: tuple[int, int]) -> Array:
    """Pads outputs `[B, H', W', n]` to the positions of the blocks that tap (i, j) reads."""
    qh, qw = taps
    return jnp.pad(x, ((0, 0), (i, qh - 1 - i), (j, qw - 1 - j), (0, 0)))


def _to_taps(kernel: Array, window: Window) -> Array:
    """Reshapes a kernel `[kh, kw, C, F]` to `[qh, qw, sh * sw * C, F]`, padded by zeros to whole strides."""
    (kh, kw), (sh, sw), (qh, qw) = window.size, window.strides, window.taps
    channels, features = kernel.shape[2:]
    whole = jnp.pad(kernel, ((0, qh * sh - kh), (0, qw * sw - kw), (0, 0), (0, 0)))
    split = whole.reshape(qh, sh, qw, sw, channels, features).transpose(0, 2, 1, 3, 4, 5)
    return split.reshape(qh, qw, sh * sw * channels, features)


def _to_blocks(x: Array, window: Window) -> Array:
    """Reshapes images `[B, H, W, C]` to blocks `[B, H' + qh - 1, W' + qw - 1, sh * sw * C]`."""
    b, h, w, c = x.shape
    (sh, sw), (qh, qw), ((top, _), (left, _)) = window.strides, window.taps, window.padding
    oh, ow = window.output_size(h, w)
    mh, mw = oh + qh - 1, ow + qw - 1
    # The padding may be negative, which cuts off rows and columns that no window reaches.
    edges = ((0, 0, 0), (top, mh * sh - h - top, 0), (left, mw * sw - w - left, 0), (0, 0, 0))
    padded = lax.pad(x, jnp.zeros((), x.dtype), edges)
    return padded.reshape(b, mh, sh, mw, sw * c).transpose(0, 1, 3, 2, 4).reshape(b, mh, mw, sh * sw * c)
