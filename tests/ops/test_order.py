import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.ops.order import after, rounded

pytestmark = pytest.mark.optimized


def test_after_changes_no_value_and_touches_no_large_leaf():
    x = {"count": jnp.int32(7), "token": jnp.arange(8, dtype=jnp.uint8), "large": jnp.ones((3, 4))}
    y = (jnp.array([1.5, -2.0]), jnp.zeros((0,)), jnp.array(True))
    tied = after(x, y, jnp.int32(0))
    for name in x:
        np.testing.assert_array_equal(tied[name], x[name])
    assert tied["large"] is x["large"]


def test_after_is_a_dependence_the_compiler_keeps():
    def f(x, y, zero):
        return after(x, jnp.sin(y), zero)

    text = jax.jit(f).lower(jnp.int32(1), jnp.ones(3), jnp.int32(0)).compile().as_text()
    assert "sine" in text  # an unused sine would have been removed


def test_after_refuses_what_cannot_carry_the_order():
    with pytest.raises(ValueError, match="add a counter"):
        after({"large": jnp.ones((3, 4))}, jnp.ones(1), jnp.int32(0))


def test_rounded_product_is_not_contracted():
    """Inside a jitted fusion base + scale * noise equals NumPy's two roundings, bit for bit."""
    random = np.random.default_rng(0)
    base = random.standard_normal(100_003).astype(np.float32)
    noise = random.standard_normal(100_003).astype(np.float32)
    scale = np.float32(0.0023)
    expected = base + scale * noise
    fused = jax.jit(lambda b, n, s, zero: b + rounded(s * n, zero))(base, noise, scale, jnp.int32(0))
    np.testing.assert_array_equal(np.asarray(fused).view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rounded_takes_floats_of_all_sizes(dtype):
    """Also float64, with JAX_ENABLE_X64."""
    with jax.enable_x64(True):
        x = jnp.asarray([1.5, -0.1, np.inf], dtype)
        np.testing.assert_array_equal(rounded(x, jnp.int32(0)), np.asarray([1.5, -0.1, np.inf], dtype))
