"""Group-sparse training of a learner; golden runs have TD3's."""

import jax
import optax
import probes
import pytest

import volvox as vx
from volvox.sparsity import GroupSparse, masks_of


@pytest.mark.slow
def test_an_actor_critic_loses_blocks_and_keeps_its_small_layer():
    gst = GroupSparse(block=4, final_sparsity=0.9, increment=0.05, every=20)
    settings = vx.A3C(optimizer=gst.optimizer(optax.adam), segment_length=4, updates_per_iteration=40)
    network = gst.network(vx.networks.GaussianMLP(1, hidden=(32, 32)))
    algorithm = vx.learn(settings, network, probes.target(size=1, num_envs=8, groups=2))
    state = algorithm.init(jax.random.key(0))
    for _ in range(3):
        state, metrics = algorithm.step(state)
    algorithm.close()
    masks = masks_of(state.learning.optimizer)["inner"]
    assert 26 <= int(masks["Dense_1"]["circulant"].sum()) < 64
    assert masks["Dense_0"]["kernel"].ndim == 0  # one flag: the layer stays dense
    assert 0.5 < metrics["compression"] < 0.9
