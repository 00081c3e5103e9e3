"""What XLA computes in other forms than on CPU, on a GPU: against CPU, whose forms the other tests hold to formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.networks import DeepGA
from volvox.networks.interception import use_kernels
from volvox.ops.conv import conv
from volvox.ops.low_rank import LowRankKernel, low_rank_conv, low_rank_dense
from volvox.ops.matmul import matmul
from volvox.ops.matmul_xla import matmul_xla

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU"),
]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def on_both(f, *operands):
    """(on the GPU, on the CPU), in full single precision."""
    found = []
    with jax.default_matmul_precision("highest"):
        for kind in ("gpu", "cpu"):
            placed = jax.device_put(operands, jax.devices(kind)[0])
            found.append(jax.tree.map(np.asarray, jax.jit(f)(*placed)))
    return found


def assert_same(f, *operands):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3), *on_both(f, *operands))


INDEX = np.array([2, 0, 0, 3, 2, 2, 0], np.int32)


@pytest.mark.parametrize("rows", [5, 30])  # of a block: few sort blocks by kernel, many gather kernels
def test_rows_by_index(rows):
    x, w = normal(7, rows, 600), normal(5, 600, 40, seed=1)
    assert_same(lambda x, w: matmul_xla(x, w, INDEX), x, w)


def test_gradients_by_index():
    def loss(x, w):
        return jnp.sin(matmul(x, w, INDEX)).sum()

    assert_same(jax.grad(loss, (0, 1)), normal(7, 1, 64), normal(5, 64, 128, seed=1))


@pytest.mark.parametrize("networks", [0, 3])
def test_convolutions_and_their_gradients(networks):
    leading = (networks,) if networks else ()

    def loss(x, kernel):
        return jnp.sin(conv(x, kernel, strides=(2, 2))).sum()

    f = jax.grad(loss, (0, 1))
    x, kernel = normal(*leading, 2, 20, 20, 4), normal(*leading, 4, 4, 4, 8, seed=1)
    assert_same(jax.vmap(f) if networks else f, x, kernel)


def test_low_rank():
    a, b, bases = normal(7, 64, 2), normal(7, 8, 2, seed=1), normal(4, 4, 4, 4, 8, seed=2)

    def convolve(x, bases, index, a, b):
        return low_rank_conv(x, LowRankKernel(bases, index, a, b, 0), strides=(2, 2))

    images = normal(7, 2, 20, 20, 4, seed=3)
    assert_same(jax.vmap(convolve, (0, None, 0, 0, 0)), images, bases, INDEX, a, b)
    bases = normal(4, 64, 8, seed=2)
    assert_same(
        jax.vmap(lambda x, i, a, b: low_rank_dense(x, LowRankKernel(bases, i, a, b, 0))),
        normal(7, 3, 64, seed=3),
        INDEX,
        a,
        b,
    )


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_a_whole_network(dtype):
    """Large networks under `vmap` against one network after the other."""
    net = DeepGA(6, dtype=dtype)
    x = np.random.default_rng(0).integers(0, 256, (3, 1, 84, 84, 4)).astype(np.uint8)
    params = jax.vmap(lambda key: net.init(key, x[0]))(jax.random.split(jax.random.key(0), 3))

    def together(params, x):
        with use_kernels():
            return jax.vmap(net.apply)(params, x)

    with jax.default_matmul_precision("highest"):
        many = jax.jit(together)(params, x)
        each = [jax.jit(net.apply)(jax.tree.map(lambda leaf, i=i: leaf[i], params), x[i]) for i in range(3)]
    tolerance = 1e-3 if dtype is None else 3e-2
    np.testing.assert_allclose(many, np.stack(each), rtol=tolerance, atol=tolerance)
