"""The heterogeneous matmul of XLA and of Pallas against the formula, over the shapes that benchmarks share."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layer_shapes import MATMULS

from volvox.ops import matmul as dispatch
from volvox.ops.matmul import matmul
from volvox.ops.matmul_mosaic import capability, matmul_mosaic, plan
from volvox.ops.matmul_xla import matmul_xla

HOPPER = (9, 0)
INDICES = {"identity": None, "one-block": (0,), "unsorted": (2, 0, 0, 3, 2, 2, 0, 2, 2)}
DTYPES = {  # of rows and kernels
    "single": ("float32", "float32"),
    "half": ("bfloat16", "bfloat16"),
    "half-kernels": ("float32", "bfloat16"),
}
BY_INDEX = [kind for kind, index in INDICES.items() if index is not None]
SERVED = ("deep_ga_large_hidden", "deep_ga_small_hidden", "tiles")
on_a_gpu = pytest.mark.skipif((capability() or (0,))[0] not in (9, 10), reason="needs a Hopper or Blackwell GPU")


def operands(shape, index, dtypes="single"):
    """x `[B, M, K]`, w `[P, K, N]`, index; some kernels of "unsorted" are not used."""
    random = np.random.default_rng(0)
    blocks, kernels = (3, 3) if index is None else (len(index), max(index) + 1)
    x = random.standard_normal((blocks, shape.rows, shape.k), np.float32)
    w = random.standard_normal((kernels, shape.k, shape.n), np.float32)
    x, w = (jnp.asarray(a, dtype) for a, dtype in zip((x, w), DTYPES[dtypes], strict=True))
    return x, w, None if index is None else jnp.array(index, jnp.int32)


def check(multiply, name, kind, dtypes):
    """Sums in single precision of k products of two standard normal numbers, rounded once to the dtype."""
    x, w, index = operands(MATMULS[name], INDICES[kind], dtypes)
    out = multiply(x, w, index)
    assert out.dtype == jnp.result_type(x, w)
    chosen = np.asarray(w, np.float64) if index is None else np.asarray(w, np.float64)[np.asarray(index)]
    rtol = 0 if out.dtype == jnp.float32 else float(jnp.finfo(out.dtype).eps)
    expected = np.asarray(x, np.float64) @ chosen
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, rtol=rtol, atol=8e-6 * x.shape[2] ** 0.5)


def mosaic(x, w, index):
    return matmul_mosaic(x, w, index, tiles=plan(x, w, index, compute_capability=capability()))


each_kind = pytest.mark.parametrize("kind", INDICES)


@each_kind
@pytest.mark.parametrize("name", ["tiles", "prime", "scalar"])
def test_xla_is_the_formula(name, kind):
    with jax.default_matmul_precision("highest"):  # GPUs round single-precision operands otherwise
        for dtypes in DTYPES:
            check(jax.jit(matmul_xla), name, kind, dtypes)


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("kind", BY_INDEX)
@pytest.mark.parametrize("name", SERVED)
def test_mosaic_is_the_formula(name, kind):
    for dtypes in DTYPES:
        check(jax.jit(mosaic), name, kind, dtypes)


@pytest.mark.gpu
@on_a_gpu
def test_gradients_of_mosaic_are_those_of_einsum():
    x, w, index = operands(MATMULS["tiles"], INDICES["unsorted"])

    def loss(multiply, x, w):
        return jnp.sin(multiply(x, w)).sum()

    def plain(x, w):
        return jnp.einsum("bmk,bkn->bmn", x, w[index])

    with jax.default_matmul_precision("highest"):
        ours = jax.jit(jax.grad(partial(loss, partial(matmul, index=index)), (0, 1)))(x, w)
        reference = jax.jit(jax.grad(partial(loss, plain), (0, 1)))(x, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), ours, reference)


@pytest.mark.slow
def test_mosaic_is_the_formula_in_a_simulator():
    """It finds races between threads, but a missing wait for a copy changes nothing here."""
    params = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.params")  # private so far
    callbacks = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks")

    def multiply(x, w, index):
        tiles = plan(x, w, index, compute_capability=HOPPER)
        return matmul_mosaic(x, w, index, tiles=tiles._replace(stages=min(tiles.stages, 2)))

    with params.force_gpu_interpret_mode(params.InterpretGPUParams(detect_races=True)):
        check(multiply, "tiles", "unsorted", "single")
    assert not callbacks.get_races().races_found


INDEX = jax.ShapeDtypeStruct((512,), jnp.int32)


@pytest.mark.parametrize("semantics", ["Lane", "Warpgroup"])
@pytest.mark.parametrize("dtypes", ["single", "half-kernels"])
def test_the_kernel_lowers_for_cuda(dtypes, semantics, monkeypatch):
    """Without a GPU, with programs of lanes (jax 0.10) and of warpgroups (jax 0.11)."""
    plgpu = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")
    params = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics[semantics])
    monkeypatch.setattr(plgpu, "kernel", partial(plgpu.kernel, compiler_params=params))
    (rows, k, n), (of_x, of_w) = MATMULS["tiles"], DTYPES[dtypes]
    x, w = jax.ShapeDtypeStruct((512, rows, k), of_x), jax.ShapeDtypeStruct((300, k, n), of_w)
    multiply = partial(matmul_mosaic, tiles=plan(x, w, INDEX, compute_capability=HOPPER))
    assert "mosaic_gpu" in jax.jit(multiply).trace(x, w, INDEX).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("name", "dtype", "on", "used"),
    [
        *((name, "float32", HOPPER, True) for name in SERVED),
        *((name, "bfloat16", (10, 0), True) for name in SERVED),
        ("deep_ga_large_patches_0", "bfloat16", HOPPER, False),  # 441 rows
        ("deep_ga_large_output", "float32", HOPPER, False),  # 18 columns
        ("deep_ga_large_hidden", "float64", HOPPER, False),
        ("deep_ga_large_hidden", "float32", (12, 0), False),
        ("deep_ga_large_hidden", "float32", None, False),
    ],
)
def test_the_plan_is_by_shape_dtype_and_capability(name, dtype, on, used):
    rows, k, n = MATMULS[name]
    x, w = (jax.ShapeDtypeStruct(shape, np.dtype(jnp.dtype(dtype))) for shape in ((512, rows, k), (300, k, n)))
    tiles = plan(x, w, INDEX, compute_capability=on)
    assert (tiles is not None) == used
    assert plan(x, w, None, compute_capability=on) is None
    if tiles is not None:
        assert tiles.stages * tiles.tile_k * (128 * w.dtype.itemsize + 4 * tiles.rows) <= 100 * 1024
        assert k % tiles.tile_k == 0


@pytest.mark.parametrize(("num_kernels", "rows"), [(512, 1), (20, 8), (15, None)])
def test_rows_of_one_kernel_share_its_reading_unless_they_are_many(num_kernels, rows):
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 1, 7744), (num_kernels, 7744, 512)))
    tiles = plan(x, w, INDEX, compute_capability=HOPPER)
    assert (tiles and tiles.rows) == rows


def test_dispatch_is_by_platform_and_capability(monkeypatch):
    x, w, index = operands(MATMULS["tiles"], INDICES["unsorted"])
    monkeypatch.setattr(dispatch, "capability", lambda: HOPPER)
    for platform, used in (("cuda", True), ("cpu", False)):
        traced = jax.jit(matmul).trace(x, w, index)
        assert ("mosaic_gpu" in traced.lower(lowering_platforms=(platform,)).as_text()) == used
