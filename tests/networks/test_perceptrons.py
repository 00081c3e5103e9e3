"""Perceptrons against their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from volvox.networks import MLP, ActorAndCritic, QNetwork, genotype
from volvox.networks.perceptrons import actor_and_critics
from volvox.types import EnvSpec


def make_box(low, high):
    """Continuous actions between bounds, and four numbers to see."""
    low, high = np.float32(low), np.float32(high)
    return EnvSpec("box", (4,), np.dtype(np.float32), None, low.shape, low, high, 10, 1)


def test_mlp_flattens_and_casts(make_spec):
    net = genotype(MLP(2, hidden=()), make_spec((3, 2), num_actions=2, dtype=np.int32))
    params = jax.jit(net.policy.init)(jax.random.key(0))
    x = jnp.arange(12).reshape(2, 3, 2)
    output, _ = net.policy.apply(params, x, ())
    np.testing.assert_allclose(output, x.reshape(2, 6) @ params["Dense_0"]["kernel"], rtol=1e-5)


def test_densely_connected_layers_see_all_before_them():
    module = MLP(2, hidden=(4, 3), densely_connected=True)
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    params = jax.jit(module.init)(jax.random.key(0), x)["params"]
    weights = [np.asarray(params[f"Dense_{i}"]["kernel"]) for i in range(3)]
    seen = x
    for kernel in weights[:2]:
        seen = np.concatenate([np.tanh(seen @ kernel), seen], axis=-1)
    assert weights[2].shape == (4 + 3 + 6, 2)
    np.testing.assert_allclose(jax.jit(module.apply)({"params": params}, x), seen @ weights[2], rtol=1e-5, atol=1e-6)
    critic = jax.jit(QNetwork((4, 3), densely_connected=True).init)(jax.random.key(1), x, x[:, :2])["params"]
    assert critic["Dense_2"]["kernel"].shape == (4 + 3 + 8, 1)


@pytest.mark.parametrize("options", [{"activation": nn.relu}, {"activation": nn.relu, "layer_norm": True}])
def test_activation_and_normalisation_are_options(options):
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    module = MLP(2, hidden=(4,), **options)
    params = jax.jit(module.init)(jax.random.key(0), x)["params"]
    hidden = x @ params["Dense_0"]["kernel"]
    if "layer_norm" in options:
        hidden = (hidden - hidden.mean(1, keepdims=True)) / np.sqrt(hidden.var(1, keepdims=True) + 1e-6)
    expected = np.maximum(hidden, 0) @ params["Dense_1"]["kernel"]
    np.testing.assert_allclose(jax.jit(module.apply)({"params": params}, x), expected, rtol=1e-4, atol=1e-5)


def test_actions_are_within_the_bounds_whatever_rounding_does():
    random = np.random.default_rng(0)
    low, high = (np.float32(sign * random.uniform(0.1, 3.0, 200)) for sign in (-1, 1))
    spec = make_box(low, high)
    made = actor_and_critics(ActorAndCritic(MLP(200, ()), QNetwork((2,))), spec)
    for action, bound in ((1.0, high), (-1.0, low)):
        scaled = np.asarray(made.scale(jnp.full((1, 200), action)))[0]
        assert ((scaled >= low) & (scaled <= high)).all()
        np.testing.assert_allclose(scaled, bound, rtol=1e-5)
