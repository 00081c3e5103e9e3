"""Virtual batch normalisation against the formula, and as a policy of a population."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from volvox import networks, population
from volvox.envs import atari, probe
from volvox.loop import reference_batch

SPEC = probe.target(size=3).spec


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(networks.VirtualBatchNorm()(nn.Dense(5, use_bias=False)(x)))
        return nn.Dense(3)(x)


REFERENCE = np.random.RandomState(0).randn(20, 3).astype(np.float32)


def test_outputs_are_the_formulas():
    net = networks.reference_genotype(Net(), SPEC, REFERENCE)
    params = net.policy.init(jax.random.key(0))
    params["VirtualBatchNorm_0"]["bias"] = jnp.arange(5.0)
    seen = np.random.RandomState(1).randn(4, 3).astype(np.float32)
    output, state = net.policy.apply(net.prepare(params), seen, ())
    assert state == ()

    first, second = (np.asarray(params[name]["kernel"], np.float64) for name in ("Dense_0", "Dense_1"))
    reference, hidden = REFERENCE @ first, seen @ first
    hidden = (hidden - reference.mean(0)) / np.sqrt(reference.var(0) + 1e-3) + np.arange(5)
    np.testing.assert_allclose(output, np.maximum(hidden, 0) @ second, rtol=1e-4, atol=1e-5)


def test_many_networks_each_have_their_own_statistics():
    net = networks.reference_genotype(Net(), SPEC, REFERENCE)
    params = jax.vmap(net.policy.init)(jax.random.split(jax.random.key(0), 6))
    seen = jax.random.normal(jax.random.key(1), (6, 4, 3))
    outputs, _ = jax.vmap(lambda p, x: net.policy.apply(net.prepare(p), x, ()))(params, seen)
    for i in range(6):
        one = jax.tree.map(lambda x, i=i: x[i], params)
        np.testing.assert_allclose(outputs[i], net.policy.apply(net.prepare(one), seen[i], ())[0], rtol=1e-4, atol=1e-5)


def test_the_first_generation_is_scaled_noise_with_biases_of_zero():
    net = networks.reference_genotype(Net(), SPEC, REFERENCE)
    code = population.encoding(net, population.Table(size=5_000))
    assert code.num_parameters == 15 + 5 + 15 + 3
    first = net.from_noise(jax.tree.map(lambda x: jnp.ones(x.shape), code.like))
    np.testing.assert_array_equal(first["VirtualBatchNorm_0"]["bias"], np.zeros(5))
    np.testing.assert_allclose(first["Dense_1"]["kernel"], np.full((5, 3), 5**-0.5), rtol=1e-6)


def test_the_config_names_the_reference_batch():
    batches = (REFERENCE, REFERENCE.copy(), REFERENCE + 1)
    one, same, other = (networks.reference_genotype(Net(), SPEC, batch).policy.config for batch in batches)
    assert one == same != other


@pytest.mark.parametrize(
    ("module", "batch", "message"),
    [
        (Net(), REFERENCE[:, :2], r"reference batch is float32 \[20, 2\]"),
        (Net(), REFERENCE.astype(int), "reference batch is int64"),
        (networks.MLP(3), REFERENCE, "no VirtualBatchNorm layer"),
    ],
)
def test_what_does_not_fit_is_refused(module, batch, message):
    with pytest.raises(ValueError, match=message):
        networks.reference_genotype(module, SPEC, batch)


def test_atari_network_and_its_reference_batch():
    env = atari("Pong", num_envs=2, groups=1)
    frames = reference_batch(env, size=5, seed=3)
    assert frames.shape == (5, 84, 84, 4)
    assert frames.dtype == np.uint8
    np.testing.assert_array_equal(frames, reference_batch(env, size=5, seed=3))
    assert not np.array_equal(frames, reference_batch(env, size=5, seed=4))
    assert len({frame.tobytes() for frame in frames}) > 2  # some frames of a paused game are the same
    net = networks.reference_genotype(networks.VirtualBatchNormNet(6), env.spec, frames)
    # The convolutions and dense layers of the small deep-GA network; a bias each, but none before normalisation.
    convolutions = 8 * 8 * 4 * 16 + 16 + 4 * 4 * 16 * 32 + 32
    assert net.policy.config["num_parameters"] == convolutions + 11 * 11 * 32 * 256 + 256 + 257 * 6
