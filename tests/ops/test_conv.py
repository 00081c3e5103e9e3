"""Convolution for one kernel or many against its formula, and its gradients against XLA's."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from layer_shapes import CONVS

from volvox.ops.conv import _conv_patches, conv, conv_gradients, conv_taps, window_of


def operands(shape, *, networks=(), batch=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*networks, batch, shape.image, shape.image, shape.channels), np.float32)
    kernel = rng.standard_normal((*networks, shape.size, shape.size, shape.channels, shape.features), np.float32)
    return x, kernel


def golden(x, kernel, stride, padding):
    """out[b, i, j] = sum over u, v of padded[b, i*stride + u, j*stride + v] @ kernel[u, v]."""
    kh, kw = kernel.shape[:2]
    edges = lax.padtype_to_pads(x.shape[1:3], (kh, kw), (stride, stride), padding)
    padded = np.pad(np.asarray(x, np.float64), ((0, 0), *edges, (0, 0)))
    oh, ow = (padded.shape[1] - kh) // stride + 1, (padded.shape[2] - kw) // stride + 1
    out = np.zeros((x.shape[0], oh, ow, kernel.shape[3]))
    for i in range(oh):
        for j in range(ow):
            patch = padded[:, i * stride : i * stride + kh, j * stride : j * stride + kw]
            out[:, i, j] = np.einsum("buvc,uvcf->bf", patch, kernel)
    return out


def plain(x, kernel, stride, padding):
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def ours(x, kernel, stride, padding):
    return conv(x, kernel, strides=(stride, stride), padding=padding)


def mapped_axes(a, outer, inner):
    """Drop the leading axes over which nothing is mapped."""
    a = a if inner == 0 else a[:, 0]
    return a if outer == 0 else a[0]


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("name", CONVS)
def test_one_and_many_kernels_follow_the_formula(name):
    shape = CONVS[name]
    run = partial(ours, stride=shape.stride, padding=shape.padding)
    x, kernel = operands(shape, networks=(2,))
    expected = np.stack([golden(x[p], kernel[p], shape.stride, shape.padding) for p in range(2)])
    assert_close(jax.jit(run)(x[0], kernel[0]), expected[0])
    assert_close(jax.jit(jax.vmap(run))(x, kernel), expected)
    if "large" not in name:  # patches are the form of many kernels on an accelerator
        window = window_of(x.shape[1:], kernel.shape[1:], (shape.stride,) * 2, shape.padding)
        assert_close(jax.jit(_conv_patches, static_argnums=2)(x, kernel, window), expected)


@pytest.mark.parametrize("axes", [(0, 0), (None, 0)], ids=str)
def test_gradients_of_many_networks(axes):
    shape = CONVS["size_no_multiple_of_stride"]
    x, kernel = operands(shape, networks=(2,), batch=2)
    x, kernel = (a if axes[i] == 0 else a[0] for i, a in enumerate((x, kernel)))

    def gradients(f):
        def loss(x, kernel):
            return jnp.sin(f(x, kernel, shape.stride, shape.padding) / 10).sum()

        return jax.jit(jax.vmap(jax.grad(loss, (0, 1)), axes))(x, kernel)

    for actual, expected in zip(gradients(ours), gradients(plain), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize(
    ("outer", "inner"), [((0, 0), (None, 0)), ((0, None), (0, 0)), ((None, 0), (0, None))], ids=str
)
def test_nested_vmap(outer, inner):
    shape = CONVS["pixels_left_over"]
    x, kernel = operands(shape, networks=(2, 3), batch=2)
    x, kernel = (mapped_axes(a, outer[i], inner[i]) for i, a in enumerate((x, kernel)))

    def run(f):
        values = partial(f, stride=shape.stride, padding=shape.padding)
        return jax.jit(jax.vmap(jax.vmap(values, inner), outer))(x, kernel)

    assert_close(run(ours), run(plain))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_many_kernels_never_become_a_grouped_convolution(platform):
    shape = CONVS["deep_ga_large_1"]
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands(shape, networks=(3,))]

    def text(f):
        many = jax.vmap(partial(f, stride=shape.stride, padding=shape.padding))
        return jax.jit(many).trace(*shapes).lower(lowering_platforms=(platform,)).as_text()

    assert "feature_group_count = 3" in text(plain)
    assert "feature_group_count = 3" not in text(ours)
    assert ("stablehlo.convolution" in text(ours)) == (platform == "cpu")


def test_gradients_in_half_precision_sum_in_single():
    """One tap of 1 and others of 1/512, whose sum is lost where each partial sum is rounded."""
    size = 5
    kernel = jnp.full((size, size, 1, 1), 2.0**-9, jnp.bfloat16).at[0, 0].set(1.0)
    x = jnp.ones((1, 12, 12, 1), jnp.bfloat16)

    def total(x, kernel):
        out = ours(x, kernel, 1, "SAME")
        return out.astype(jnp.float32).sum(), out

    (_, out), (of_x, of_kernel) = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(x, kernel)
    assert out.dtype == of_x.dtype == of_kernel.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float32)[0, 5:-5, 5:-5, 0], 1 + (size**2 - 1) / 512, rtol=2.0**-8)
    inside = np.asarray(of_x, np.float32)[0, size:-size, size:-size, 0]
    assert inside.size
    np.testing.assert_allclose(inside, 1 + (size**2 - 1) / 512, rtol=2.0**-8)
    assert (inside > 1.0).all()
    assert float(of_kernel[size // 2, size // 2, 0, 0]) == 144.0


@pytest.mark.parametrize("name", [name for name in CONVS if name not in ("deep_ga_large_0", "deep_ga_large_1")])
def test_convolutions_and_gradients_as_matmuls_are_those_of_xla(name):
    shape, batch = CONVS[name], 3
    x, kernel = operands(shape, batch=batch)
    window = window_of(x.shape, kernel.shape, (shape.stride,) * 2, shape.padding)
    size = window.output_size(shape.image, shape.image)
    g = np.random.default_rng(1).standard_normal((batch, *size, shape.features), np.float32)

    def xla(x, kernel, g):
        return jax.vjp(partial(plain, stride=shape.stride, padding=shape.padding), x, kernel)[1](g)

    found, expected = jax.jit(partial(conv_gradients, window=window))(x, kernel, g), jax.jit(xla)(x, kernel, g)
    jax.tree.map(assert_close, found, expected)
    assert_close(
        jax.jit(partial(conv_taps, window=window))(x, kernel),
        conv(x, kernel, strides=window.strides, padding=window.padding),
    )


def test_gradients_have_gradients():
    shape = CONVS["pixels_left_over"]
    x, kernel = operands(shape)

    def penalty(f):
        def total(x, kernel):
            return (f(x, kernel, shape.stride, shape.padding) ** 2).sum()

        return jax.jit(jax.grad(lambda x, kernel: (jax.grad(total)(x, kernel) ** 2).sum(), (0, 1)))(x, kernel)

    jax.tree.map(assert_close, penalty(ours), penalty(plain))
