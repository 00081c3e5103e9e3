"""Group-sparse training of both kinds of learners, and of other networks."""

import dataclasses

import jax
import numpy as np
import optax
import probes as probe
import pytest
from flax import linen as nn

import volvox as vx
from volvox import networks
from volvox.sparsity import GroupSparse, masks_of

ENV = probe.target(size=1, num_envs=8, groups=2)
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
        numbers, kept = critic["inner"]["Dense_1"]["circulant"], mask["inner"]["Dense_1"]["circulant"]
        assert numbers.shape == (8, 4, 8)
        assert kept.shape == (8, 1, 8)
        # 0.9 of the weights are not stored, so 0.1 * 4 of the blocks are kept.
        assert int(kept.sum()) == round(64 * 0.4)
        assert not np.asarray(numbers)[~np.broadcast_to(kept, numbers.shape)].any()
        assert mask["inner"]["Dense_0"]["kernel"].ndim == 0  # one flag: the layer stays dense
    # Actor 1 * 32 + 32 * 32 + 32 + 65 biases, each critic 2 * 32 + 32 * 32 + 32 + 65.
    stored = (1153 + 2 * 1185) - 3 * (1024 - 26 * 4 - 64 / 32)
    assert metrics["compression"] == pytest.approx(1 - stored / (1153 + 2 * 1185))
    algorithm.close()

    settings = vx.A3C(
        optimizer=gst.optimizer(optax.adam), learning_rate=1e-3, segment_length=4, updates_per_iteration=40
    )
    algorithm = vx.learn(settings, gst.network(networks.GaussianMLP(1, hidden=(32, 32))), ENV)
    state = algorithm.init(jax.random.key(0))
    for _ in range(3):
        state, metrics = algorithm.step(state)
    kept = masks_of(state.learning.optimizer)["inner"]["Dense_1"]["circulant"]
    assert 26 <= int(kept.sum()) < 64
    assert 0.5 < metrics["compression"] < 0.9
    algorithm.close()
