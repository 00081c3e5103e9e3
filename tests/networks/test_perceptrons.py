"""Perceptrons against their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict

from volvox import networks
from volvox.networks import MLP, ActorAndCritic, QNetwork, fan_in_uniform, genotype
from volvox.networks.perceptrons import actor_and_critics


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


FAN_IN = {"kernel_init": fan_in_uniform, "bias_init": fan_in_uniform}
IMAGES, ROWS = (np.zeros((1, 84, 84, 4), np.uint8),), (np.zeros((1, 36), np.float32),)
PAIRS = (*ROWS, np.zeros((1, 8), np.float32))


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (MLP(3, **FAN_IN), ROWS),
        (networks.GaussianMLP(3, **FAN_IN), ROWS),
        (networks.NatureTorso(**FAN_IN), IMAGES),
        (networks.GA3C(3), IMAGES),
        (QNetwork(), PAIRS),
        (networks.Grouped(QNetwork(), block=4), PAIRS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_kernels_and_biases_of_all_networks_are_within_the_root_of_the_fan_in(module, inputs):
    """Wide layers fill the interval ±1/√fan_in, block-circulant layers too."""
    params = flatten_dict(jax.jit(module.init)(jax.random.key(0), *inputs)["params"])
    layers = {path[:-1]: x for path, x in params.items() if path[-1] in ("kernel", "circulant")}
    assert len(layers) >= 3
    for path, kernel in layers.items():
        bias, bound = params[*path, "bias"], (1 + 1e-6) * np.prod(kernel.shape[:-1]) ** -0.5
        assert 0 < np.abs(bias).max() <= bound
        if bias.size >= 32:  # enough for the range of a sample
            np.testing.assert_allclose([np.ptp(bias), np.ptp(kernel)], 2 * bound, rtol=0.25)
            assert np.abs(kernel).max() <= bound
            np.testing.assert_allclose(kernel.std(), bound / 3**0.5, rtol=0.1)


def test_initialisers_are_flax_initialisers():
    constant = nn.initializers.constant
    module = MLP(2, (3,), kernel_init=constant(0.5), bias_init=constant(0.25))
    params = flatten_dict(module.init(jax.random.key(0), jnp.ones((1, 4)))["params"])
    for path, x in params.items():
        np.testing.assert_array_equal(x, 0.5 if path[-1] == "kernel" else 0.25)
    features = networks.NextObservationNetwork((3,), (3,), kernel_init=constant(0.5))
    for path, x in flatten_dict(features.init(jax.random.key(0), *PAIRS)["params"]).items():
        np.testing.assert_array_equal(x, 0.5 if path[-1] == "kernel" else 0.0)


def test_first_actions_are_not_saturated(make_spec):
    """Observations as HalfCheetah's: eight positions and angles, nine velocities."""
    made = actor_and_critics(ActorAndCritic.mlp(6), make_spec((17,), action_shape=(6,)))
    observations = np.random.default_rng(0).normal(size=(1_000, 17)) * np.repeat([0.3, 3.0], (8, 9))
    init = jax.jit(made.init)
    for seed in range(3):
        actor = init(jax.random.key(seed)).actor
        assert np.abs(made.act(actor, jnp.asarray(observations, jnp.float32))).max() < 0.9


def test_actions_are_within_the_bounds_whatever_rounding_does(make_spec):
    random = np.random.default_rng(0)
    low, high = (np.float32(sign * random.uniform(0.1, 3.0, 200)) for sign in (-1, 1))
    spec = make_spec((4,), action_shape=(200,))._replace(action_low=low, action_high=high)
    made = actor_and_critics(ActorAndCritic(MLP(200, ()), QNetwork((2,))), spec)
    for action, bound in ((1.0, high), (-1.0, low)):
        scaled = np.asarray(made.scale(jnp.full((1, 200), action)))[0]
        assert ((scaled >= low) & (scaled <= high)).all()
        np.testing.assert_allclose(scaled, bound, rtol=1e-5)
