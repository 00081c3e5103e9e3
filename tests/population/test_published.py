"""Individuals of the published format, rebuilt and played: both networks, against a decoding written out in NumPy."""

import json

import jax
import numpy as np
import pytest

from volvox import networks, play, population
from volvox.envs import atari
from volvox.ops import flat

pytestmark = pytest.mark.optimized

# Shapes of the weights in the order in which they lie in the noise; a bias follows each.
LAYERS = {
    "large": [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (11 * 11 * 64, 512), (512, 18)],
    "small": [(8, 8, 4, 16), (4, 4, 16, 32), (11 * 11 * 32, 256), (256, 18)],
}
STRIDES = (4, 2, 1)


def theta_zero(layers, noise):
    """Weights are noise times std / sqrt(fan in), std 0.1 in the last layer; biases are 0."""
    parts, at = [], 0
    for i, shape in enumerate(layers):
        std = 0.1 if i == len(layers) - 1 else 1.0
        fan_in, n = int(np.prod(shape[:-1])), int(np.prod(shape))
        parts += [noise[at : at + n] * np.float32(std / np.sqrt(fan_in)), np.zeros(shape[-1], np.float32)]
        at += n + shape[-1]
    return np.concatenate(parts)


def decoded(layers, published, table):
    n = sum(int(np.prod(shape)) + shape[-1] for shape in layers)
    first, *mutations = published
    theta = theta_zero(layers, table[first : first + n])
    for index, power in mutations:
        theta = theta + np.float32(power) * table[index : index + n]
    return theta


def logits(layers, theta, image):
    """The network, one image `[84, 84, 4]` in [0, 1], in doubles: SAME padding, ReLU after all layers but the last."""
    x, at = image.astype(float), 0
    for i, shape in enumerate(layers):
        n = int(np.prod(shape))
        weights, bias = theta[at : at + n].reshape(shape).astype(float), theta[at + n : at + n + shape[-1]]
        at += n + shape[-1]
        if len(shape) == 4:
            size, stride, length = shape[0], STRIDES[i], x.shape[0]
            out = -(-length // stride)
            before = max((out - 1) * stride + size - length, 0) // 2
            padded = np.zeros((length + size, length + size, x.shape[-1]))
            padded[before : before + length, before : before + length] = x
            windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (0, 1))[::stride, ::stride]
            x = np.einsum("xycij,ijco->xyo", windows[:out, :out], weights) + bias
        else:
            x = x.reshape(-1) @ weights + bias
        if i < len(layers) - 1:
            x = np.maximum(x, 0)
    return x


@pytest.mark.parametrize("size", ["small", pytest.param("large", marks=pytest.mark.slow)])
def test_a_published_individual_is_rebuilt_to_the_bit_and_plays(size, tmp_path):
    layers = LAYERS[size]
    env = atari("Frostbite", num_envs=2, groups=1, preprocessing="uber")
    net = networks.genotype(networks.DeepGA(18, size=size), env.spec)
    n = sum(int(np.prod(shape)) + shape[-1] for shape in layers)
    code = population.encoding(net, population.Table(size=n + 100_000))
    published = [40_123, [99_999, 0.002], [0, 0.002], [77, 0.0020000000949949026], [512, 0.005]]
    path = tmp_path / "elite.json"
    path.write_text(json.dumps(published))

    params = population.rebuild(code, population.load(path))
    table = np.random.RandomState(123).randn(n + 100_000).astype(np.float32)
    theta = decoded(layers, published, table)
    np.testing.assert_array_equal(np.asarray(flat.flatten(params)).view(np.int32), theta.view(np.int32))

    image = np.random.default_rng(0).uniform(size=(84, 84, 4)).astype(np.float32)
    variables = jax.jit(net.prepare)(params)
    ours, _ = net.policy.apply(variables, image[None], ())
    np.testing.assert_allclose(ours[0], logits(layers, theta, image), rtol=1e-3, atol=1e-5)

    score = play(env, net.policy, variables, num_episodes=2, max_episode_steps=9)
    np.testing.assert_array_equal(score.lengths, 9)  # no game of Frostbite is over so soon
