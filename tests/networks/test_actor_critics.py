"""Networks with two outputs: sizes, initial spread, options, recurrence."""

import jax
import jax.numpy as jnp
import numpy as np
import probes as probe
import pytest
from flax import linen as nn

from volvox.envs import atari
from volvox.networks import (
    GA3C,
    MLP,
    ActorCritic,
    GaussianMLP,
    NatureTorso,
    RecurrentActorCritic,
    SmallTorso,
)
from volvox.networks.actor_critics import actor_critic
from volvox.ops.flat import num_parameters

PONG = atari("Pong", num_envs=2, groups=1).spec
FRAMES = jnp.asarray(np.random.default_rng(0).integers(0, 256, (3, 84, 84, 4), np.uint8))


def dense(n, m):
    return n * m + m


NATURE = 8 * 8 * 4 * 32 + 32 + 4 * 4 * 32 * 64 + 64 + 3 * 3 * 64 * 64 + 64
SMALL = 8 * 8 * 4 * 16 + 16 + 4 * 4 * 16 * 32 + 32 + dense(11 * 11 * 32, 256)


@pytest.mark.parametrize(
    ("module", "size"),
    [
        (ActorCritic(6, SmallTorso()), SMALL + dense(256, 6) + dense(256, 1)),
        (ActorCritic(6, NatureTorso()), NATURE + dense(7 * 7 * 64, 512) + dense(512, 6) + dense(512, 1)),
        (RecurrentActorCritic(6, SmallTorso()), SMALL + 4 * (256 * 256 * 2 + 256) + dense(256, 6) + dense(256, 1)),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else str(x),
)
def test_sizes(module, size):
    net = actor_critic(module, PONG)
    assert net.policy.config is module
    params = jax.eval_shape(net.policy.init, jax.random.key(0))
    assert num_parameters(params) == size


def test_ga3c_is_its_formula():
    """Babaeizadeh et al. 2017 in NumPy: bytes over 128 less 1, convolutions with SAME padding, ReLU, two heads."""
    module = GA3C(6, size="large", first_stride=3)
    params = jax.jit(actor_critic(module, PONG).policy.init)(jax.random.key(0))
    layers = {name: (np.asarray(layer["kernel"]), np.asarray(layer["bias"])) for name, layer in params.items()}
    x = np.asarray(FRAMES, np.float32) / 128 - 1
    for i, s in enumerate((3, 2, 2)):
        kernel, bias = layers[f"Conv_{i}"]
        window, out = kernel.shape[0], -(-x.shape[1] // s)
        total = max((out - 1) * s + window - x.shape[1], 0)
        padded = np.pad(x, [(0, 0), *[(total // 2, total - total // 2)] * 2, (0, 0)])
        views = np.lib.stride_tricks.sliding_window_view(padded, (window, window), axis=(1, 2))[:, ::s, ::s]
        x = np.maximum(np.einsum("bhwcij,ijcf->bhwf", views, kernel) + bias, 0)
    hidden, policy, value = (layers[f"Dense_{i}"] for i in range(3))
    x = np.maximum(x.reshape(len(x), -1) @ hidden[0] + hidden[1], 0)
    output, values = jax.jit(module.apply)({"params": params}, FRAMES)
    np.testing.assert_allclose(output, x @ policy[0] + policy[1], atol=1e-4)
    np.testing.assert_allclose(values, (x @ value[0] + value[1])[:, 0], atol=1e-4)


def test_torsos_take_layer_normalisation():
    """It makes features independent of the scale of the images."""
    net = SmallTorso(hidden=(8,), layer_norm=True)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 84, 84, 4)), jnp.float32)
    params, apply = jax.jit(net.init)(jax.random.key(0), images), jax.jit(net.apply)
    np.testing.assert_allclose(apply(params, 100 * images), apply(params, 200 * images), atol=1e-2)
    assert "LayerNorm_0" in params["params"]
    assert "LayerNorm_0" in jax.eval_shape(GA3C(2, layer_norm=True).init, jax.random.key(0), FRAMES)["params"]


@pytest.mark.parametrize(
    "module", [SmallTorso(), ActorCritic(4, SmallTorso()), GA3C(6, size="huge"), GaussianMLP(6), ActorCritic]
)
def test_networks_that_do_not_fit_are_refused(module):
    with pytest.raises((TypeError, ValueError)):
        actor_critic(module, PONG)


def test_the_policy_acts_as_the_distribution_says():
    """Modes and samples; continuous actions are within the bounds."""
    net = actor_critic(ActorCritic(6, SmallTorso()), PONG)
    params = jax.jit(net.policy.init)(jax.random.key(0))
    output, state = jax.jit(net.policy.apply)(params, FRAMES, ())
    np.testing.assert_array_equal(output, jax.jit(net.apply)(params, FRAMES, ())[0])
    assert state == ()
    np.testing.assert_array_equal(net.policy.mode(output), output.argmax(-1))
    key = jax.random.key(1)
    np.testing.assert_array_equal(net.policy.sample(key, output), jax.random.categorical(key, output))
    policy = actor_critic(GaussianMLP(3, (8,)), probe.target(size=3).spec).policy
    output = jnp.concatenate([jnp.array([[0.5, -2.0, 3.0]] * 100), jnp.zeros((100, 3))], axis=-1)
    np.testing.assert_array_equal(policy.mode(output)[0], np.float32([0.5, -1.0, 1.0]))
    drawn = policy.sample(key, output)
    assert drawn.shape == (100, 3)
    assert jnp.abs(drawn).max() == 1.0
    assert jnp.unique(drawn[:, 0]).size > 50


@pytest.mark.parametrize(
    "module", [ActorCritic(2, MLP(4)), RecurrentActorCritic(2, MLP(4), width=3)], ids=["feed-forward", "recurrent"]
)
def test_unrolling_is_applying_step_by_step(module):
    spec = probe.corridor().spec
    net = actor_critic(module, spec)
    params = jax.tree.map(lambda x: x + 0.3, jax.jit(net.policy.init)(jax.random.key(0)))
    seen = jax.random.normal(jax.random.key(1), (5, 3, *spec.observation_shape))
    first = jax.random.bernoulli(jax.random.key(2), 0.3, (5, 3))
    begin = jax.tree.map(lambda x: x + 0.5, net.policy.initial_state(3))
    outputs, values = jax.jit(net.unroll)(params, seen, first, begin)
    state, apply = begin, jax.jit(net.apply)
    for t in range(5):
        state = jax.tree.map(lambda x, t=t: jnp.where(first[t][:, None], 0.0, x), state)
        output, value, state = apply(params, seen[t], state)
        np.testing.assert_allclose(outputs[t], output, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(values[t], value, rtol=1e-5, atol=1e-6)


def test_a_torso_in_half_precision_gives_outputs_in_single_precision():
    single, half = (
        actor_critic(ActorCritic(6, SmallTorso(dtype=dtype)), PONG).policy for dtype in (None, jnp.bfloat16)
    )
    params = jax.jit(single.init)(jax.random.key(0))

    def loss(params):
        logits, _ = half.apply(params, FRAMES, ())
        return (logits**2).sum(), logits

    (_, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    wanted, _ = jax.jit(single.apply)(params, FRAMES, ())
    assert logits.dtype == jnp.float32
    assert not np.array_equal(logits, wanted)
    np.testing.assert_allclose(logits, wanted, atol=0.05 * float(jnp.abs(wanted).max()))
    assert all(x.dtype == jnp.float32 and np.isfinite(x).all() for x in jax.tree.leaves(gradient))
