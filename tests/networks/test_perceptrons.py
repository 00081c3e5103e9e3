"""Perceptrons against their formulas."""

import jax
import jax.numpy as jnp
import numpy as np

from volvox.networks import MLP, QNetwork, genotype


def test_mlp_flattens_and_casts(make_spec):
    net = genotype(MLP(2, hidden=()), make_spec((3, 2), num_actions=2, dtype=np.int32))
    params = net.policy.init(jax.random.key(0))
    x = jnp.arange(12).reshape(2, 3, 2)
    output, _ = net.policy.apply(params, x, ())
    np.testing.assert_allclose(output, x.reshape(2, 6) @ params["Dense_0"]["kernel"], rtol=1e-5)


def test_densely_connected_layers_see_all_before_them():
    module = MLP(2, hidden=(4, 3), densely_connected=True)
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    params = module.init(jax.random.key(0), x)["params"]
    weights = [np.asarray(params[f"Dense_{i}"]["kernel"]) for i in range(3)]
    seen = x
    for kernel in weights[:2]:
        seen = np.concatenate([np.tanh(seen @ kernel), seen], axis=-1)
    assert weights[2].shape == (4 + 3 + 6, 2)
    np.testing.assert_allclose(module.apply({"params": params}, x), seen @ weights[2], rtol=1e-5, atol=1e-6)
    critic = QNetwork((4, 3), densely_connected=True).init(jax.random.key(1), x, x[:, :2])["params"]
    assert critic["Dense_2"]["kernel"].shape == (4 + 3 + 8, 1)
