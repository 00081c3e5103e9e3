"""Group-sparse training of both kinds of learners, and of other networks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from flax import linen as nn

import volvox as vx
from volvox import networks
from volvox.sparsity import GroupSparse, masks_of

ENV = probes.target(size=1, num_envs=8, groups=2)
ACTOR = networks.MLP(1, hidden=(32, 32), activation=nn.relu)
CRITIC = networks.QNetwork(hidden=(32, 32))
TD3 = vx.TD3(learning_rate=1e-3, batch_size=32, random_timesteps=64, replay_size=2_000, timesteps_per_iteration=400)


def td3(gst, actor=ACTOR, critic=CRITIC, **settings):
    settings = dataclasses.replace(TD3, **{"optimizer": gst.optimizer(optax.adam), **settings})
    return vx.learn(settings, networks.ActorAndCritic(gst.network(actor), gst.network(critic)), ENV)


@pytest.mark.slow
def test_the_same_settings_train_both_kinds_of_learners():
    gst = GroupSparse(block=4, final_sparsity=0.9, increment=0.05, every=20)
    algorithm = td3(gst)
    state = algorithm.init(jax.random.key(0))
    _, before = masks_of(state.learning.optimizer.critics)
    assert before["inner"]["Dense_1"]["circulant"].all()
    state, metrics = algorithm.step(state)
    state, metrics = algorithm.step(state)
    optimizer = state.learning.optimizer
    for critic, mask in zip(state.learning.targets.critics, masks_of(optimizer.critics), strict=True):
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
    config = algorithm.config
    assert config["network"]["actor"]["block"] == 4
    assert config["settings"]["optimizer"]["optimizer"]["function"].endswith("adam")
    assert config["settings"]["optimizer"]["rule"]["schedule"]["increment"] == 0.05
    algorithm.close()

    settings = vx.A3C(
        optimizer=gst.optimizer(optax.adam), learning_rate=1e-3, segment_length=4, updates_per_iteration=40
    )
    algorithm = vx.learn(settings, gst.network(networks.GaussianMLP(1, hidden=(32, 32))), ENV)
    state = algorithm.init(jax.random.key(0))
    for _ in range(3):
        state, metrics = algorithm.step(state)
    live = masks_of(state.learning.optimizer)["inner"]["Dense_1"]["circulant"]
    assert 26 <= int(live.sum()) < 64
    assert 0.5 < metrics["compression"] < 0.9
    algorithm.close()


@pytest.mark.slow
def test_a_checkpoint_holds_the_masks(tmp_path):
    algorithm = td3(GroupSparse(final_sparsity=0.9, increment=0.05, every=20))
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    vx.checkpoint.save(tmp_path, 1, algorithm.save(state))
    restored = algorithm.restore(vx.checkpoint.restore(tmp_path, 1)).learning.optimizer
    for old, new in zip(jax.tree.leaves(state.learning.optimizer), jax.tree.leaves(restored), strict=True):
        if jax.dtypes.issubdtype(old.dtype, jax.dtypes.prng_key):
            old, new = jax.random.key_data(old), jax.random.key_data(new)
        np.testing.assert_array_equal(old, new)
    algorithm.close()


class Convolutions(nn.Module):
    """A small image's worth of features before a large layer."""

    @nn.compact
    def __call__(self, x):
        x = x.reshape(-1, 1, 1, 1) * jnp.ones((1, 4, 4, 8))
        x = nn.relu(nn.Conv(8, (3, 3))(x)).reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(32)(x))
        return nn.Dense(2)(x), nn.Dense(1)(x)[:, 0]


def clipped(learning_rate):
    return optax.chain(optax.clip_by_global_norm(0.5), optax.adam(learning_rate))


def test_only_what_is_grouped_is_pruned_and_the_rest_is_as_it_would_be():
    """Convolutions stay whole; gradients are clipped inside, where dead weights have none, and config says it all."""
    gst = GroupSparse(block=4, final_sparsity=0.9, increment=0.1, every=2)
    settings = vx.A3C(
        optimizer=gst.optimizer(clipped), max_gradient_norm=None, segment_length=4, updates_per_iteration=60
    )
    algorithm = vx.learn(settings, gst.network(Convolutions()), ENV)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    masks = masks_of(state.learning.optimizer)["inner"]
    assert masks["Conv_0"]["kernel"].ndim == masks["Dense_1"]["kernel"].ndim == 0
    assert masks["Dense_0"]["circulant"].shape == (32, 1, 8)
    config = algorithm.config["settings"]
    assert config["learning_rate"] == vx.A3C().learning_rate
    assert config["optimizer"]["optimizer"]["function"].endswith("test_group_sparse:clipped")
    algorithm.close()


@pytest.mark.slow
def test_recurrent_networks_keep_their_state():
    env = probes.countdown(num_envs=4)
    torso = networks.MLP(32, hidden=(32,))
    gst = GroupSparse(block=2, pruning=False)
    network = gst.network(networks.RecurrentActorCritic(env.spec.num_actions, torso))
    algorithm = vx.learn(vx.A3C(updates_per_iteration=2), network, env)
    assert algorithm.policy.initial_state(3)[0].shape == (3, 256)
    _, metrics = algorithm.step(algorithm.init(jax.random.key(0)))
    assert metrics["compression"] > 0  # the torso's second layer
    algorithm.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "min_side=33: no layer has as many inputs and outputs"),
        ({"block": 1}, "nothing would be: each kernel of these networks has fewer than min_side"),
    ],
)
def test_networks_of_small_layers_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        td3(GroupSparse(min_side=33, **settings))


def test_single_weights_of_critics_alone_may_be_large_enough():
    gst = GroupSparse(block=1)
    made = gst.optimizer(optax.sgd(0.5))  # the optimiser has its own rate
    algorithm = td3(gst, networks.MLP(1, hidden=(16,)), optimizer=made, learning_rate=None)
    assert algorithm.config["settings"]["learning_rate"] is None
    masks = masks_of(algorithm.init(jax.random.key(0)).learning.optimizer.critics)
    assert masks[0]["Dense_1"]["kernel"].shape == (1, 32, 1, 32)


def test_rates_that_change_do_not_scale_the_updates_of_dead_weights():
    gst = GroupSparse(block=4, end=4, every=1)
    settings = vx.A3C(
        optimizer=gst.optimizer(optax.adam), anneal_frames=1_000, segment_length=4, updates_per_iteration=9
    )
    algorithm = vx.learn(settings, gst.network(networks.GaussianMLP(1, hidden=(32, 32))), ENV)
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    live = masks_of(state.learning.optimizer)["inner"]["Dense_1"]["circulant"]
    numbers = np.asarray(state.learning.params["inner"]["Dense_1"]["circulant"])
    assert int(live.sum()) == round(64 * 0.4)
    assert not numbers[~np.broadcast_to(live, numbers.shape)].any()
    algorithm.close()


@pytest.mark.slow
def test_each_learner_may_have_a_rate_of_its_own():
    algorithm = td3(GroupSparse(block=4, end=4, every=1), num_learners=2, learning_rate=(1e-3, 1e-4))
    state, _ = algorithm.step(algorithm.init(jax.random.key(0)))
    live = masks_of(state.learning.optimizer.actor)["inner"]["Dense_1"]["circulant"]
    numbers = np.asarray(state.learning.params.actor["inner"]["Dense_1"]["circulant"])
    np.testing.assert_array_equal(live.sum((1, 2, 3)), round(64 * 0.4))
    assert not numbers[~np.broadcast_to(live, numbers.shape)].any()
    algorithm.close()
