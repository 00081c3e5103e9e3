"""One suite for every implementation of the heterogeneous matmul, over the shapes that benchmarks share."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layer_shapes import MATMULS, MatmulShape

from volvox.ops import matmul as dispatch
from volvox.ops.matmul import dense, matmul
from volvox.ops.matmul_mosaic import Streamed, Tiled, capability, matmul_mosaic, plan

HOPPER = (9, 0)
INDICES = {
    "identity": None,
    "one-block": (0,),
    "one-kernel": (0, 0, 0),
    "unsorted": (2, 0, 0, 3, 2, 2, 0, 2, 2),
}


DTYPES = {  # of rows and kernels
    "single": ("float32", "float32"),
    "half": ("bfloat16", "bfloat16"),
    "half-kernels": ("float32", "bfloat16"),  # what a network's dense layers are with weights in half precision
    "float16": ("float16", "float16"),
}


def operands(shape, index, dtypes="single", seed=0):
    """x `[B, M, K]`, w `[P, K, N]`, index; some kernels of "unsorted" are not used."""
    random = np.random.default_rng(seed)
    blocks, kernels = (3, 3) if index is None else (len(index), max(index) + 1)
    x = random.standard_normal((blocks, shape.rows, shape.k), np.float32)
    w = random.standard_normal((kernels, shape.k, shape.n), np.float32)
    x, w = (jnp.asarray(a, dtype) for a, dtype in zip((x, w), DTYPES[dtypes], strict=True))
    return x, w, None if index is None else jnp.array(index, jnp.int32)


def golden(x, w, index):
    chosen = np.asarray(w, np.float64) if index is None else np.asarray(w, np.float64)[np.asarray(index)]
    return np.asarray(x, np.float64) @ chosen


def tolerance(dtype, k):
    """Of sums in single precision of k products of two standard normal numbers, rounded once to the dtype."""
    return {"rtol": 0 if dtype == jnp.float32 else float(jnp.finfo(dtype).eps), "atol": 8e-6 * k**0.5}


def pytest_generate_tests(metafunc):
    """A test for each of a suite's shapes, so that each failure is told."""
    if "shape_name" in metafunc.fixturenames:
        large = ("deep_ga_large_hidden", "deep_ga_large_patches_1", "deep_ga_large_patches_2")
        names = [pytest.param(name, marks=[pytest.mark.slow] * (name in large)) for name in metafunc.cls.shapes]
        metafunc.parametrize("shape_name", names)


def served_by_kernels(on):
    """Names of the shapes that the kernels serve on such a GPU, in one dtype at least, a kernel for each block."""
    found = []
    for name, (rows, k, n) in MATMULS.items():
        shapes = [
            (jax.ShapeDtypeStruct((3, rows, k), of_x), jax.ShapeDtypeStruct((3, k, n), of_w))
            for of_x, of_w in DTYPES.values()
        ]
        if any(plan(x, w, on=on) for x, w in shapes):
            found.append(name)
    return tuple(found)


class Suite:
    """What every implementation is held to; subclasses have `multiply`, the operation; `serves` says what it takes."""

    shapes = tuple(MATMULS)
    kinds = tuple(INDICES)
    dtypes = ("single", "half", "half-kernels")

    def serves(self, x, w, index):
        return True

    def test_formula(self, shape_name):
        """Every kind of index and every dtype that it serves."""
        served = 0
        for kind in self.kinds:
            for dtypes in self.dtypes:
                x, w, index = operands(MATMULS[shape_name], INDICES[kind], dtypes)
                if not self.serves(x, w, index):
                    continue
                served += 1
                out = self.multiply(x, w, index)
                assert out.dtype == jnp.result_type(x, w)
                np.testing.assert_allclose(
                    np.asarray(out, np.float64),
                    golden(x, w, index),
                    **tolerance(out.dtype, x.shape[2]),
                    err_msg=f"{kind}, {dtypes}",
                )
        assert served


class TestXla(Suite):
    """The reference, which serves everything."""

    def multiply(self, x, w, index):
        with jax.default_matmul_precision("highest"):  # GPUs round operands of single precision otherwise
            return jax.jit(partial(matmul, implementation="xla"))(x, w, index)


@pytest.mark.gpu
@pytest.mark.skipif(
    (capability() or (0,))[0] not in (9, 10), reason="no GPU that the kernels are for: Hopper, Blackwell"
)
class TestMosaic(Suite):
    """The kernels where they run."""

    shapes = served_by_kernels(capability() or HOPPER)

    def multiply(self, x, w, index):
        return jax.jit(partial(matmul, implementation="mosaic"))(x, w, index)

    def serves(self, x, w, index):
        return plan(x, w, index, on=capability()) is not None

    @pytest.mark.parametrize("kind", ["identity", "unsorted"])
    def test_gradients(self, kind):
        x, w, index = operands(MATMULS["tiles"], INDICES[kind])

        def loss(implementation, x, w):
            return jnp.sin(matmul(x, w, index, implementation=implementation)).sum()

        with jax.default_matmul_precision("highest"):
            ours, reference = (jax.jit(jax.grad(partial(loss, name), (0, 1)))(x, w) for name in ("mosaic", "xla"))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), ours, reference)

    def test_nested_vmap_of_dense(self):
        x, w, _ = operands(MATMULS["tiles"], None)
        x, w = (jnp.stack([a, 2 * a]) for a in (x, w))
        text = jax.jit(jax.vmap(jax.vmap(dense))).lower(x, w).as_text()
        assert "mosaic_gpu" in text
        np.testing.assert_allclose(jax.jit(jax.vmap(jax.vmap(dense)))(x, w), golden(x, w, None), rtol=1e-4, atol=1e-3)


@pytest.mark.slow
class TestMosaicInterpreted(Suite):
    """The kernels simulated on any machine, as far as this jax has a simulator.

    It looks out for races between threads, but does not model what a GPU does by itself: taking a wait for a copy or
    for the tensor cores out of a kernel changes nothing here.
    """

    shapes = ("tiles", "half_a_tile")
    kinds = ("identity", "unsorted")

    @pytest.fixture(autouse=True)
    def simulator(self):
        # Private so far.
        params = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.params")
        callbacks = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks")
        with params.force_gpu_interpret_mode(params.InterpretGPUParams(detect_races=True)):
            yield
        assert not callbacks.get_races().races_found

    def serves(self, x, w, index):
        return plan(x, w, index, on=HOPPER) is not None

    def multiply(self, x, w, index):
        return matmul_mosaic(x, w, index, how=plan(x, w, index, on=HOPPER))

    @pytest.mark.parametrize(("rows", "k"), [(2, 160), (13, 32), (70, 320)])
    def test_a_slot_is_filled_again_when_it_has_been_read(self, rows, k):
        """More tiles than are in flight, a single tile, and rows that fill no item."""
        x, w, index = operands(MatmulShape(rows, k, 128), (1, 0, 1), "half" if rows > 16 else "single")
        out = matmul_mosaic(x, w, index, how=plan(x, w, index, on=HOPPER)._replace(stages=2))
        np.testing.assert_allclose(np.asarray(out, np.float64), golden(x, w, index), **tolerance(out.dtype, k))


STREAMED = ("deep_ga_large_hidden", "deep_ga_small_hidden", "tiles", "two-rows", "eight-rows")
TILED = ("deep_ga_large_patches_0", "deep_ga_large_patches_1", "deep_ga_large_patches_2", "half_a_tile", "wide")
LOWERED = [(name, dtypes) for name in STREAMED for dtypes in DTYPES]
LOWERED += [(name, dtypes) for name in TILED for dtypes in ("half", "float16")]


@pytest.mark.slow_except("wide-half-Warpgroup", "wide-float16-Lane", "half_a_tile-half-Lane")
@pytest.mark.parametrize("semantics", ["Lane", "Warpgroup"])
@pytest.mark.parametrize(("name", "dtypes"), LOWERED, ids=lambda value: value)
def test_the_kernels_lower_for_cuda(name, dtypes, semantics, monkeypatch):
    """512 items through as many kernels, and through 300 by index: what the kernels serve lowers without a GPU.

    Programs of lanes are what jax 0.10 makes of kernels, programs of warpgroups what jax 0.11 does.
    """
    plgpu = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")
    params = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics[semantics])
    monkeypatch.setattr(plgpu, "kernel", partial(plgpu.kernel, compiler_params=params))
    more = {"two-rows": (2, 96, 128), "eight-rows": (8, 64, 256), "wide": (70, 64, 128)}
    rows, k, n = MATMULS.get(name) or more[name]
    of_x, of_w = DTYPES[dtypes]
    for num_kernels, index in ((512, None), (300, jax.ShapeDtypeStruct((512,), jnp.int32))):
        x, w = jax.ShapeDtypeStruct((512, rows, k), of_x), jax.ShapeDtypeStruct((num_kernels, k, n), of_w)
        how = plan(x, w, index, on=HOPPER)
        assert how is not None
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
def test_what_the_kernels_can_serve(name, dtype, on, kernel):
    rows, k, n = MATMULS[name]
    x, w = (jax.ShapeDtypeStruct(shape, np.dtype(jnp.dtype(dtype))) for shape in ((64, rows, k), (64, k, n)))
    how = plan(x, w, on=on)
    assert how is None if kernel is None else isinstance(how, kernel)
    if isinstance(how, Streamed):
        assert how.stages * how.tile_k * (128 * w.dtype.itemsize + 4 * how.rows) <= 100 * 1024
        assert k % how.tile_k == 0


@pytest.mark.parametrize(("num_kernels", "rows"), [(512, 1), (20, 8), (16, 8), (15, None), (1, None)])
def test_many_rows_of_one_kernel_are_left_to_tensor_cores(num_kernels, rows):
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 1, 7744), (num_kernels, 7744, 512)))
    how = plan(x, w, jax.ShapeDtypeStruct((512,), jnp.int32), on=HOPPER)
    assert (how and how.rows) == rows


def test_the_shapes_that_the_kernels_serve():
    """Those of the suite on a GPU: none may be lost unnoticed."""
    dense = ("deep_ga_large_hidden", "deep_ga_small_hidden", "tiles")
    patches = ("deep_ga_large_patches_0", "deep_ga_large_patches_1", "deep_ga_large_patches_2", "half_a_tile")
    assert set(served_by_kernels(HOPPER)) == {*dense, *patches}
    assert set(served_by_kernels((10, 0))) == set(dense)


def test_rows_of_one_kernel_share_its_reading():
    x, w = jax.ShapeDtypeStruct((512, 1, 7744), jnp.float32), jax.ShapeDtypeStruct((20, 7744, 512), jnp.float32)
    index = jax.ShapeDtypeStruct((512,), jnp.int32)
    how = plan(x, w, index, on=HOPPER)
    assert isinstance(how, Streamed)
    assert how.rows == 8
    jaxpr = jax.make_jaxpr(partial(matmul_mosaic, how=how))(x, w, index)
    (call,) = [eqn for eqn in jaxpr.jaxpr.eqns if "custom_vmap" in eqn.primitive.name]
    assert call.invars[0].aval.shape == (20 + 512 // 8, 8, 7744)  # not 512 readings of a kernel, but 84 at most


def test_a_forced_implementation_is_not_dropped_under_vmap(monkeypatch):
    """Four times four rows for each kernel, and four times eight, which are more than the kernel takes."""
    monkeypatch.setattr(dispatch, "capability", lambda: HOPPER)
    x, w, _ = operands(MatmulShape(4, 96, 256), None)
    many = jax.vmap(partial(matmul, implementation="mosaic"), (0, None))
    text = jax.jit(many).trace(jnp.stack([x] * 4), w).lower(lowering_platforms=("cuda",)).as_text()
    assert "mosaic_gpu" in text
    with pytest.raises(ValueError, match=r"'mosaic' cannot multiply \(3, 32, 96\) by \(3, 96, 256\)"):
        jax.jit(many).trace(jnp.stack([x] * 8), w)


def test_dispatch_is_by_platform_and_capability(monkeypatch):
    x, w, _ = operands(MATMULS["tiles"], None)
    assert dispatch.implementations(x, w) == (("mosaic", "xla") if plan(x, w, on=capability()) else ("xla",))
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
