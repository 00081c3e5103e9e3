"""The gradients of a convolution as matmuls against XLA's, for every way they are computed."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import lax
from layer_shapes import CONVS

from volvox.ops.conv import conv_gradients, window_of

BATCHES = {"prime": 3, "in_a_loop": 8, "in_a_loop_and_pieces": 20}


def xla(x, kernel, g, window):
    def forward(x, kernel):
        dimensions = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, window.strides, window.padding, dimension_numbers=dimensions)

    return jax.vjp(forward, x, kernel)[1](g)


def operands(shape, batch, *, networks=()):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*networks, batch, shape.image, shape.image, shape.channels), np.float32)
    kernel = rng.standard_normal((*networks, shape.size, shape.size, shape.channels, shape.features), np.float32)
    window = window_of(x.shape[-4:], kernel.shape[-4:], (shape.stride,) * 2, shape.padding)
    out = window.output_size(shape.image, shape.image)
    return x, kernel, rng.standard_normal((*networks, batch, *out, shape.features), np.float32), window


def assert_same_gradients(actual, expected):
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * float(np.abs(theirs).max()))


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("name", [name for name in CONVS if name not in ("deep_ga_large_0", "deep_ga_large_1")])
def test_any_window_and_batch(name, batch):
    x, kernel, g, window = operands(CONVS[name], batch)
    run = jax.jit(partial(conv_gradients, window=window))
    assert_same_gradients(run(x, kernel, g), jax.jit(partial(xla, window=window))(x, kernel, g))


def test_many_networks():
    x, kernel, g, window = operands(CONVS["deep_ga_small_1"], 8, networks=(2,))
    many = jax.jit(jax.vmap(partial(conv_gradients, window=window)))(x, kernel, g)
    each = [xla(x[p], kernel[p], g[p], window) for p in range(2)]
    for p in range(2):
        assert_same_gradients([leaf[p] for leaf in many], each[p])
