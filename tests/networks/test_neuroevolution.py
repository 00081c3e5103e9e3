"""The published networks: sizes, flat order, initialisation, values; and virtual batch normalisation."""

import jax
import jax.numpy as jnp
import numpy as np
import probes as probe
import pytest
from flax import linen as nn

from volvox import reference_batch
from volvox.envs import atari
from volvox.networks import MLP, DeepGA, VirtualBatchNormNet, genotype
from volvox.networks.genotypes import VirtualBatchNorm
from volvox.ops.flat import num_parameters

PONG = atari("Pong", num_envs=2, groups=1)


def test_first_generation_spreads_as_init(normal_like):
    net = genotype(DeepGA(6, size="small"), PONG.spec)
    initial = jax.jit(net.policy.init)(jax.random.key(0))
    first = jax.jit(net.from_noise)(normal_like(initial))
    for params in (initial, first):
        for layer, leaves in params.items():
            fan_in = np.prod(leaves["kernel"].shape[:-1])
            std = (0.1 if layer == "Dense_1" else 1.0) / np.sqrt(fan_in)
            np.testing.assert_allclose(np.std(leaves["kernel"]), std, rtol=0.05)
            assert not leaves["bias"].any()


SPEC = probe.target(size=3).spec


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(VirtualBatchNorm()(nn.Dense(5, use_bias=False)(x)))
        return nn.Dense(3)(x)


REFERENCE = np.random.RandomState(0).randn(20, 3).astype(np.float32)


def test_outputs_are_the_formulas():
    net = genotype(Net(), SPEC, reference=REFERENCE)
    params = jax.jit(net.policy.init)(jax.random.key(0))
    params["VirtualBatchNorm_0"]["bias"] = jnp.arange(5.0)
    seen = np.random.RandomState(1).randn(4, 3).astype(np.float32)
    output, state = jax.jit(lambda params: net.policy.apply(net.prepare(params), seen, ()))(params)
    assert state == ()

    first, second = (np.asarray(params[name]["kernel"], np.float64) for name in ("Dense_0", "Dense_1"))
    reference, hidden = REFERENCE @ first, seen @ first
    hidden = (hidden - reference.mean(0)) / np.sqrt(reference.var(0) + 1e-3) + np.arange(5)
    np.testing.assert_allclose(output, np.maximum(hidden, 0) @ second, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "batch"), [(Net(), REFERENCE[:, :2]), (Net(), REFERENCE.astype(int)), (MLP(3), REFERENCE)]
)
def test_batches_and_modules_that_do_not_fit_are_refused(module, batch):
    with pytest.raises(ValueError):
        genotype(module, SPEC, reference=batch)


def test_atari_network_and_its_reference_batch():
    frames = reference_batch(PONG, size=5, seed=3)
    assert frames.shape == (5, 84, 84, 4)
    assert frames.dtype == np.uint8
    np.testing.assert_array_equal(frames, reference_batch(PONG, size=5, seed=3))
    assert not np.array_equal(frames, reference_batch(PONG, size=5, seed=4))
    assert len({frame.tobytes() for frame in frames}) > 2  # some frames of a paused game are the same
    net = genotype(VirtualBatchNormNet(6), PONG.spec, reference=frames)
    # The convolutions and dense layers of the small deep-GA network; a bias each, but none before normalisation.
    convolutions = 8 * 8 * 4 * 16 + 16 + 4 * 4 * 16 * 32 + 32
    size = num_parameters(jax.eval_shape(net.policy.init, jax.random.key(0)))
    assert size == convolutions + 11 * 11 * 32 * 256 + 256 + 257 * 6
