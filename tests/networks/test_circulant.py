"""Grouped networks against dense networks with the formed matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox import networks
from volvox.networks.interception import use_kernels
from volvox.ops.matmul import to_dense


def test_a_grouped_network_is_the_dense_one_with_circulant_blocks():
    """Two layers are grouped, the input padded because the block does not divide it; the output is too small."""
    inputs = 33
    net = networks.MLP(3, hidden=(64, 32))
    x = jax.random.normal(jax.random.key(1), (5, inputs))
    grouped = networks.Grouped(net, block=4)
    params = jax.jit(grouped.init)(jax.random.key(0), x)["params"]
    inner = params["inner"]
    assert inner["Dense_0"]["circulant"].shape == (9, 4, 16)
    assert inner["Dense_1"]["circulant"].shape == (16, 4, 8)
    assert inner["Dense_2"]["kernel"].shape == (32, 3)
    dense = {"Dense_2": inner["Dense_2"]}
    for name, length in (("Dense_0", inputs), ("Dense_1", 64)):
        numbers = inner[name]["circulant"]
        kernel = to_dense(numbers.reshape(-1, numbers.shape[-1]), 4)[:length]
        dense[name] = {"kernel": kernel, "bias": inner[name]["bias"]}
    with use_kernels():
        found = jax.jit(grouped.apply)({"params": params}, x)
    np.testing.assert_allclose(found, jax.jit(net.apply)({"params": dense}, x), rtol=1e-4, atol=1e-5)


def test_initial_numbers_have_the_spread_of_dense_weights():
    """So the outputs of both have the same size."""
    net = networks.Grouped(networks.MLP(3, hidden=(400,)), block=4)
    params = jax.jit(net.init)(jax.random.key(0), jnp.zeros((1, 400)))
    assert float(params["params"]["inner"]["Dense_0"]["circulant"].std()) == pytest.approx(1 / 20, rel=0.05)


@pytest.mark.parametrize("options", [{"block": 3}, {"min_side": 33}])
def test_networks_that_cannot_be_grouped_are_refused(options):
    net = networks.MLP(3, hidden=(32,))
    with pytest.raises(ValueError):
        networks.Grouped(net, **options).init(jax.random.key(0), jnp.zeros((1, 64)))
    assert jax.jit(networks.Grouped(net, block=1).init)(jax.random.key(0), jnp.zeros((1, 64)))


def test_initial_std_is_that_of_the_inner_network():
    inner = networks.DeepGA(4, size="small")
    path = ("inner", "Dense_1", "kernel")
    assert networks.Grouped(inner).initial_std(path) == inner.initial_std(path[1:]) == 0.1
    assert networks.Grouped(networks.MLP(4)).initial_std is None


def test_initial_state_is_that_of_the_inner_network():
    grouped = networks.Grouped(networks.RecurrentActorCritic(2, networks.MLP(32, hidden=(32,))))
    assert grouped.initial_state(3)[0].shape == (3, 256)
    assert networks.Grouped(networks.MLP(3)).initial_state is None
