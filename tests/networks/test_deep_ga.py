"""The published networks: sizes, flat order, initialisation, values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.networks import MLP, DeepGA, genotype
from volvox.ops.flat import leaf_offsets


@pytest.mark.parametrize(("size", "expected"), [("large", 4_052_658), ("small", 1_008_450)])
def test_published_number_of_parameters(atari_spec, size, expected):
    assert genotype(DeepGA(18, size=size), atari_spec).policy.config["num_parameters"] == expected


def test_flat_order_is_the_published_layer_order(atari_spec):
    net = genotype(DeepGA(18), atari_spec)
    offsets = leaf_offsets(jax.eval_shape(net.policy.init, jax.random.key(0)))
    order = sorted((offset, layer, leaf) for layer, leaves in offsets.items() for leaf, offset in leaves.items())
    layers = ["Conv_0", "Conv_1", "Conv_2", "Dense_0", "Dense_1"]
    assert [(layer, leaf) for _, layer, leaf in order] == [(n, leaf) for n in layers for leaf in ("kernel", "bias")]
    assert offsets["Conv_0"]["bias"] == 8 * 8 * 4 * 32
    assert offsets["Dense_0"]["kernel"] == 77_984


def test_first_generation_spreads_as_init(atari_spec, normal_like):
    net = genotype(DeepGA(18, size="small"), atari_spec)
    initial = jax.jit(net.policy.init)(jax.random.key(0))
    first = jax.jit(net.from_noise)(normal_like(initial))
    for params in (initial, first):
        for layer, leaves in params.items():
            fan_in = np.prod(leaves["kernel"].shape[:-1])
            std = (0.1 if layer == "Dense_1" else 1.0) / np.sqrt(fan_in)
            np.testing.assert_allclose(np.std(leaves["kernel"]), std, rtol=0.05)
            assert not leaves["bias"].any()


@pytest.mark.parametrize("size", ["large", "small"])
def test_many_networks_compute_what_flax_computes(atari_spec, normal_like, size):
    module = DeepGA(18, size=size)
    net = genotype(module, atari_spec)
    shapes = jax.eval_shape(net.policy.init, jax.random.key(0))
    params = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *(net.from_noise(normal_like(shapes, i)) for i in range(3))
    )
    x = jnp.asarray(np.random.default_rng(0).integers(0, 256, (3, 1, 84, 84, 4), np.uint8))
    ours = jax.jit(jax.vmap(lambda p, x: net.policy.apply(p, x, ())[0]))(params, x)
    plain = jax.jit(module.apply)
    expected = jnp.stack([plain({"params": jax.tree.map(lambda a, i=i: a[i], params)}, x[i]) for i in range(3)])
    assert ours.dtype == jnp.float32
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


def test_integers_are_scaled_and_floats_are_not(atari_spec, normal_like):
    module = DeepGA(18, size="small")
    net = genotype(module, atari_spec)
    params = net.from_noise(normal_like(jax.eval_shape(net.policy.init, jax.random.key(0))))
    x = np.random.default_rng(0).integers(0, 256, (2, 84, 84, 4), np.uint8)
    scaled = (x / 255).astype(np.float32)
    np.testing.assert_allclose(
        module.apply({"params": params}, x), module.apply({"params": params}, scaled), rtol=1e-4, atol=1e-6
    )


def test_unknown_size_raises(atari_spec):
    with pytest.raises(ValueError, match=r"large, small; got 'huge'"):
        genotype(DeepGA(18, size="huge"), atari_spec)  # pyright: ignore[reportArgumentType]


def test_wrong_number_of_actions_raises(atari_spec):
    with pytest.raises(ValueError, match=r"DeepGA gives .*\[B, 6\].*Frostbite requires \[B, 18\]"):
        genotype(DeepGA(6), atari_spec)


def test_mlp_flattens_and_casts(make_spec):
    net = genotype(MLP(2, hidden=()), make_spec((3, 2), num_actions=2, dtype=np.int32))
    params = net.policy.init(jax.random.key(0))
    x = jnp.arange(12).reshape(2, 3, 2)
    output, _ = net.policy.apply(params, x, ())
    np.testing.assert_allclose(output, x.reshape(2, 6) @ params["Dense_0"]["kernel"], rtol=1e-5)
