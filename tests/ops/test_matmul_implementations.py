"""One suite for every implementation of the heterogeneous matmul, over the shapes that benchmarks share."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.ops import matmul as dispatch
from volvox.ops.matmul import dense, matmul
from volvox.ops.matmul_mosaic import Streamed, Tiled, capability, matmul_mosaic, plan, supported
from volvox.ops.shapes import MATMULS, MatmulShape

HOPPER = (9, 0)
INDICES = {
    "identity": None,
    "one-block": (0,),
    "one-kernel": (0, 0, 0),
    "unsorted": (2, 0, 0, 3, 2, 2, 0, 2, 2),
}


def operands(shape, index, dtype, seed=0):
    """x `[B, M, K]`, w `[P, K, N]`, index; one kernel more than are used."""
    random = np.random.default_rng(seed)
    blocks, kernels = (3, 3) if index is None else (len(index), max(index) + 1)
    x = random.standard_normal((blocks, shape.rows, shape.k), np.float32)
    w = random.standard_normal((kernels, shape.k, shape.n), np.float32)
    return jnp.asarray(x, dtype), jnp.asarray(w, dtype), None if index is None else jnp.array(index, jnp.int32)


def golden(x, w, index):
    chosen = np.asarray(w, np.float64) if index is None else np.asarray(w, np.float64)[np.asarray(index)]
    return np.asarray(x, np.float64) @ chosen


class Suite:
    """What every implementation is held to; subclasses have `multiply`, the operation; `serves` says what it takes."""

    shapes = tuple(MATMULS)
    kinds = tuple(INDICES)
    dtypes = ("float32", "bfloat16")

    def serves(self, x, w, index):
        return True

    def test_formula(self):
        """Every shape, every kind of index, every dtype that it serves; and it serves some."""
        served = 0
        for name in self.shapes:
            for kind in self.kinds:
                index = INDICES[kind]
                for dtype in self.dtypes:
                    x, w, given = operands(MATMULS[name], index, dtype)
                    if not self.serves(x, w, given):
                        continue
                    served += 1
                    out = self.multiply(x, w, given)
                    assert out.dtype == x.dtype
                    error = np.abs(np.asarray(out, np.float64) - golden(x, w, given)).max()
                    # Operands are exact; what half precision costs is the rounding of the result.
                    size = MATMULS[name].k ** 0.5
                    assert error < (2e-6 if dtype == "float32" else 2e-2) * 4 * size, (name, kind, dtype, error)
        assert served


class TestXla(Suite):
    """The reference, which serves everything."""

    def multiply(self, x, w, index):
        with jax.default_matmul_precision("highest"):  # GPUs round operands of single precision otherwise
            return jax.jit(partial(matmul, implementation="xla"))(x, w, index)


@pytest.mark.gpu
@pytest.mark.skipif(capability() is None or capability() < HOPPER, reason="no GPU of the Hopper generation or newer")
class TestMosaic(Suite):
    """The kernels where they run."""

    def multiply(self, x, w, index):
        return jax.jit(partial(matmul, implementation="mosaic"))(x, w, index)

    def serves(self, x, w, index):
        return supported(x, w, index, on=capability())

    @pytest.mark.parametrize("kind", ["identity", "unsorted"])
    def test_gradients(self, kind):
        x, w, index = operands(MATMULS["tiles"], INDICES[kind], "float32")

        def loss(implementation, x, w):
            return jnp.sin(matmul(x, w, index, implementation=implementation)).sum()

        with jax.default_matmul_precision("highest"):
            ours, reference = (jax.jit(jax.grad(partial(loss, name), (0, 1)))(x, w) for name in ("mosaic", "xla"))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), ours, reference)

    def test_nested_vmap_of_dense(self):
        x, w, _ = operands(MATMULS["tiles"], None, "float32")
        x, w = (jnp.stack([a, 2 * a]) for a in (x, w))
        text = jax.jit(jax.vmap(jax.vmap(dense))).lower(x, w).as_text()
        assert "mosaic_gpu" in text
        np.testing.assert_allclose(jax.jit(jax.vmap(jax.vmap(dense)))(x, w), golden(x, w, None), rtol=1e-4, atol=1e-3)


class TestMosaicInterpreted(Suite):
    """The kernels simulated on any machine, with a look-out for races, as far as this jax has a simulator."""

    shapes = ("tiles", "half_a_tile")
    kinds = ("identity", "unsorted")

    @pytest.fixture(autouse=True)
    def simulator(self):
        params = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.params")  # private so far
        with params.force_gpu_interpret_mode(params.InterpretGPUParams(detect_races=True)):
            yield

    def serves(self, x, w, index):
        return supported(x, w, index, on=HOPPER)

    def multiply(self, x, w, index):
        return matmul_mosaic(x, w, index, how=plan(x, w, index, on=HOPPER))

    @pytest.mark.parametrize(("rows", "k"), [(2, 160), (13, 32), (70, 320)])
    def test_a_slot_is_filled_again_when_it_has_been_read(self, rows, k):
        """More tiles than are in flight, a single tile, and rows that fill no item."""
        dtype = "bfloat16" if rows > 16 else "float32"
        x, w, index = operands(MatmulShape(rows, k, 128), (1, 0, 1), dtype)
        out = matmul_mosaic(x, w, index, how=plan(x, w, index, on=HOPPER)._replace(stages=2))
        assert np.abs(np.asarray(out, np.float64) - golden(x, w, index)).max() < (1e-4 if dtype == "float32" else 0.3)


@pytest.mark.parametrize("semantics", ["Lane", "Warpgroup"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MATMULS)
def test_the_kernels_lower_for_cuda(name, dtype, semantics, monkeypatch):
    """512 networks, by index and without: what is supported lowers on a machine without a GPU.

    Programs of lanes are what jax 0.10 makes of kernels, programs of warpgroups what jax 0.11 does.
    """
    plgpu = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")
    params = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics[semantics])
    monkeypatch.setattr(plgpu, "kernel", partial(plgpu.kernel, compiler_params=params))
    rows, k, n = MATMULS[name]
    x, w = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((512, rows, k), (512, k, n)))
    for index in (None, jax.ShapeDtypeStruct((512,), jnp.int32)):
        how = plan(x, w, index, on=HOPPER)
        if how is not None:
            lowered = jax.jit(partial(matmul_mosaic, how=how)).trace(x, w, index).lower(lowering_platforms=("cuda",))
            assert "mosaic_gpu" in lowered.as_text()


@pytest.mark.parametrize(
    ("name", "dtype", "on", "kernel"),
    [
        ("deep_ga_large_hidden", "float32", HOPPER, Streamed),
        ("deep_ga_large_hidden", "bfloat16", (10, 0), Streamed),
        ("deep_ga_small_hidden", "float32", HOPPER, Streamed),
        ("deep_ga_large_patches_0", "bfloat16", HOPPER, Tiled),
        ("deep_ga_large_patches_0", "float32", HOPPER, None),  # no kernel: XLA does it, at JAX's default precision
        ("deep_ga_large_patches_0", "bfloat16", (10, 0), None),  # other instructions
        ("deep_ga_large_output", "float32", HOPPER, None),  # 18 columns
        ("prime", "float32", HOPPER, None),
        ("deep_ga_large_hidden", "float64", HOPPER, None),
        ("deep_ga_large_hidden", "float32", (8, 0), None),
        ("deep_ga_large_hidden", "float32", (12, 0), None),  # less shared memory
        ("deep_ga_large_hidden", "float32", None, None),
    ],
)
def test_what_is_supported(name, dtype, on, kernel):
    rows, k, n = MATMULS[name]
    x, w = (jax.ShapeDtypeStruct(shape, np.dtype(jnp.dtype(dtype))) for shape in ((64, rows, k), (64, k, n)))
    how = plan(x, w, None, on=on)
    assert supported(x, w, on=on) == (kernel is not None)
    assert how is None if kernel is None else isinstance(how, kernel)
    if isinstance(how, Streamed):
        assert how.stages * how.tile_k * (128 * w.dtype.itemsize + 4 * how.rows) <= 110_000
        assert k % how.tile_k == 0


def test_rows_of_one_kernel_share_its_reading():
    x, w = jax.ShapeDtypeStruct((512, 1, 7744), jnp.float32), jax.ShapeDtypeStruct((20, 7744, 512), jnp.float32)
    index = jax.ShapeDtypeStruct((512,), jnp.int32)
    how = plan(x, w, index, on=HOPPER)
    assert isinstance(how, Streamed)
    assert how.rows == 8
    jaxpr = jax.make_jaxpr(partial(matmul_mosaic, how=how))(x, w, index)
    (call,) = [eqn for eqn in jaxpr.jaxpr.eqns if "custom_vmap" in eqn.primitive.name]
    assert call.invars[0].aval.shape == (20 + 512 // 8, 8, 7744)  # not 512 readings of a kernel, but 84 at most


def test_dispatch_is_by_platform_and_capability(monkeypatch):
    x, w, _ = operands(MATMULS["tiles"], None, "float32")
    assert dispatch.implementations(x, w) == (("mosaic", "xla") if supported(x, w, on=capability()) else ("xla",))
    monkeypatch.setattr(dispatch, "capability", lambda: HOPPER)
    assert dispatch.implementations(x, w) == ("mosaic", "xla")
    for implementation, platform, used in (
        (None, "cuda", True),
        ("mosaic", "cuda", True),
        ("xla", "cuda", False),
        (None, "cpu", False),
    ):
        traced = jax.jit(partial(matmul, implementation=implementation)).trace(x, w)
        assert ("mosaic_gpu" in traced.lower(lowering_platforms=(platform,)).as_text()) == used
