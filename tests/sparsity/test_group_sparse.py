"""Grouped networks against the dense ones they stand for, and group-sparse training of both kinds of algorithms."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from volvox.actor_critic import a3c
from volvox.off_policy import td3

from volvox import networks
from volvox.envs import probe
from volvox.ops.circulant import formed
from volvox.sparsity import group_sparse, masks_of

ENV = probe.target(size=1, num_envs=8, groups=2)
ACTOR = networks.MLP(1, hidden=(32, 32), activation=nn.relu)
CRITIC = networks.QNetwork(hidden=(32, 32))
SMALL = {"batch_size": 32, "random_steps": 64, "replay_size": 2_000, "steps_per_iteration": 400}


@pytest.mark.parametrize(("inputs", "rows"), [(32, 8), (33, 9)])
def test_a_grouped_network_is_the_dense_one_with_circulant_blocks(inputs, rows):
    """Two layers are grouped, the input padded where the block does not divide it; the output is too small."""
    net = networks.MLP(3, hidden=(64, 32))
    x = jax.random.normal(jax.random.key(1), (5, inputs))
    grouped = networks.Grouped(net, block=4)
    params = grouped.init(jax.random.key(0), x)["params"]
    inner = params["inner"]
    assert inner["Dense_0"]["circulant"].shape == (rows, 4, 16)
    assert inner["Dense_1"]["circulant"].shape == (16, 4, 8)
    assert inner["Dense_2"]["kernel"].shape == (32, 3)
    dense = {"Dense_2": inner["Dense_2"]}
    for name, length in (("Dense_0", inputs), ("Dense_1", 64)):
        numbers = inner[name]["circulant"]
        kernel = formed(numbers.reshape(-1, numbers.shape[-1]), 4)[:length]
        dense[name] = {"kernel": kernel, "bias": inner[name]["bias"]}
    with networks.use_kernels():
        found = grouped.apply({"params": params}, x)
    np.testing.assert_allclose(found, net.apply({"params": dense}, x), rtol=1e-4, atol=1e-5)


def test_it_begins_as_dense_networks_do():
    """Each stored number is as large as a weight of a dense layer, so that outputs are."""
    params = networks.Grouped(networks.MLP(3, hidden=(400,)), block=4).init(jax.random.key(0), jnp.zeros((1, 400)))
    assert float(params["params"]["inner"]["Dense_0"]["circulant"].std()) == pytest.approx(1 / 20, rel=0.05)


def test_the_same_call_wraps_both_kinds_of_algorithms():
    gst = group_sparse(block=4, final_sparsity=0.9, increment=0.05, every=20)
    algorithm = gst(td3, ACTOR, CRITIC, ENV, learning_rate=1e-3, **SMALL)
    state = algorithm.init(jax.random.key(0))
    _, before = masks_of(state.learner.critics_optimizer)
    assert before["inner"]["Dense_1"]["circulant"].all()
    state, metrics = algorithm.step(state)
    state, metrics = algorithm.step(state)
    for critic, mask in zip(state.learner.target_critics, masks_of(state.learner.critics_optimizer), strict=True):
        numbers, live = critic["inner"]["Dense_1"]["circulant"][0], mask["inner"]["Dense_1"]["circulant"][0]
        assert numbers.shape == (8, 4, 8)
        assert live.shape == (8, 1, 8)
        # 0.9 of the weights are not stored, so 0.1 * 4 of the blocks live.
        assert int(live.sum()) == round(64 * 0.4)
        assert not np.asarray(numbers)[~np.broadcast_to(live, numbers.shape)].any()
        assert mask["inner"]["Dense_0"]["kernel"].ndim == 1  # one flag a learner: it lives whole
    # Actor 1 * 32 + 32 * 32 + 32 + 65 biases, each critic 2 * 32 + 32 * 32 + 32 + 65.
    stored = (1153 + 2 * 1185) - 3 * (1024 - 26 * 4 - 64 / 32)
    assert metrics["compression"] == pytest.approx(1 - stored / (1153 + 2 * 1185))
    assert algorithm.config["group_sparse"]["block"] == 4
    restored = algorithm.restore(algorithm.save(state))
    jax.tree.map(np.testing.assert_array_equal, restored.learner.critics_optimizer, state.learner.critics_optimizer)
    algorithm.close()

    options = {"segment_length": 4, "updates_per_step": 40}
    algorithm = gst(a3c, networks.GaussianMLP(1, hidden=(32, 32)), ENV, learning_rate=1e-3, **options)
    state = algorithm.init(jax.random.key(0))
    for _ in range(3):
        state, metrics = algorithm.step(state)
    live = masks_of(state.learner.optimizer)["inner"]["Dense_1"]["circulant"]
    assert 26 <= int(live.sum()) < 64
    assert 0.5 < metrics["compression"] < 0.9
    algorithm.close()


class Convolutions(nn.Module):
    """A small image's worth of features before a large layer."""

    @nn.compact
    def __call__(self, x):
        x = x.reshape(-1, 1, 1, 1) * jnp.ones((1, 4, 4, 8))
        x = nn.relu(nn.Conv(8, (3, 3))(x)).reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(32)(x))
        return nn.Dense(2)(x), nn.Dense(1)(x)[:, 0]


def test_only_what_is_grouped_is_pruned_and_the_rest_is_as_it_would_be():
    """Modules by name are grouped too; convolutions stay whole; gradients are clipped where dead weights have none."""
    gst = group_sparse(block=4, final_sparsity=0.9, increment=0.1, every=2)
    algorithm = gst(a3c, network=Convolutions(), env=ENV, segment_length=4, updates_per_step=60)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    masks = masks_of(state.learner.optimizer)["inner"]
    assert masks["Conv_0"]["kernel"].ndim == masks["Dense_1"]["kernel"].ndim == 0
    assert masks["Dense_0"]["circulant"].shape == (32, 1, 8)
    assert algorithm.config["max_gradient_norm"] is None
    about = algorithm.config["group_sparse"]
    assert (about["learning_rate"], about["max_gradient_norm"]) == (6e-4, 0.5)  # a3c's own
    algorithm.close()


def test_recurrent_networks_keep_their_state():
    env = probe.countdown(num_envs=4)
    torso = networks.MLP(32, hidden=(32,))
    gst = group_sparse(block=2, pruning=False)
    algorithm = gst(a3c, networks.RecurrentActorCritic(env.spec.num_actions, torso), env, updates_per_step=2)
    assert algorithm.network.initial_state(3)[0].shape == (3, 256)
    _, metrics = algorithm.step(algorithm.init(jax.random.key(0)))
    assert metrics["compression"] > 0  # the torso's second layer
    algorithm.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 1, "pruning": False}, "leave nothing to do"),
        ({"block": 8, "final_sparsity": 0.8}, "final_sparsity=0.8 is below 0.875, which block=8 alone reaches"),
        ({"final_sparsity": 1.0}, "final_sparsity=1.0: give a share"),
        ({"block": 0}, "block"),
        ({"end": 5, "begin": 9}, "end=5 must come after begin=9"),
    ],
)
def test_mistakes_are_told(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        group_sparse(**options)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (a3c, {"anneal_frames": 1_000}, "anneal_frames=1000: with pruning"),
        (td3, {"learning_rate": [1e-3, 1e-4]}, "with pruning give one number"),
    ],
)
def test_rates_that_pruning_does_not_take_are_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        group_sparse()(make, ACTOR, CRITIC, ENV, **options)


@pytest.mark.parametrize("options", [{}, {"block": 1}, {"pruning": False}])
def test_networks_of_small_layers_are_refused(options):
    with pytest.raises(ValueError, match="min_side=33: no layer has as many inputs and outputs"):
        group_sparse(min_side=33, **options)(td3, ACTOR, CRITIC, ENV, **SMALL)


def test_single_weights_of_critics_alone_may_be_large_enough():
    algorithm = group_sparse(block=1)(
        td3, networks.MLP(1, hidden=(16,)), CRITIC, ENV, optimizer=optax.sgd(0.5), **SMALL
    )
    assert algorithm.config["group_sparse"]["learning_rate"] is None  # the optimiser has its own
    masks = masks_of(algorithm.init(jax.random.key(0)).learner.critics_optimizer)
    assert masks[0]["Dense_1"]["kernel"].shape == (1, 32, 1, 32)


def test_a_factory_without_an_optimiser_is_refused():
    def make(network):
        return network

    with pytest.raises(ValueError, match="make takes no optimizer, learning_rate, optimizer_options"):
        group_sparse()(make, ACTOR)


def test_layers_called_by_keyword_are_grouped_too():
    class Called(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(32)(inputs=x)

    params = networks.Grouped(Called(), block=4).init(jax.random.key(0), jnp.zeros((1, 32)))["params"]
    assert params["inner"]["Dense_0"]["circulant"].shape == (8, 4, 8)


def test_a_block_that_does_not_divide_a_layer_is_refused():
    with pytest.raises(ValueError, match="block=3 does not divide the 32 outputs of"):
        group_sparse(block=3)(td3, ACTOR, CRITIC, ENV, **SMALL)
