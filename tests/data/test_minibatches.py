"""Shuffled minibatches: every row once in an epoch, from all groups, with normalised advantages."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox.data import metrics, minibatches, segments

T, B, G = 6, 4, 2


def layout(*, whole=False, micro_batch=None, num_epochs=3, num_minibatches=4, shape=(1,)):
    sizes = {"num_epochs": num_epochs, "num_minibatches": num_minibatches, "segment_length": T}
    env = probes.constant(num_envs=G * B, groups=G)
    env = env._replace(spec=env.spec._replace(observation_shape=shape))
    return minibatches.layout(types.SimpleNamespace(**sizes, micro_batch=micro_batch), env, whole)


def rings():
    """Two groups, whose rewards say (group, timestep, environment) in the segment at 1, and nothing at 0."""
    made = []
    for g in range(G):
        ring = segments.init(2, T, B, probes.constant().spec, jnp.zeros((B, 1)), with_values=True)
        place = 100.0 * g + 10 * jnp.arange(T)[:, None] + jnp.arange(B)
        made.append(
            ring._replace(reward=ring.reward.at[1].set(place), recurrent=ring.recurrent.at[1].set(place[0, :, None]))
        )
    return made


def batch_of(made, *, normalize=False, valid=None):
    """A batch whose targets are what `rings` has as rewards, and whose advantages are the same plus 1 000."""
    target = jnp.stack([ring.reward[1] for ring in rings()])
    valid = jnp.ones((G, T, B), bool) if valid is None else jnp.asarray(valid)
    return made.shuffle(jax.random.key(0), target, target + 1_000, valid, normalize=normalize)


@pytest.mark.parametrize(("whole", "micro_batch"), [(False, None), (False, 2), (True, None), (True, 1)])
def test_each_epoch_has_every_row_once_and_no_two_are_alike(whole, micro_batch):
    made = layout(whole=whole, micro_batch=micro_batch, num_minibatches=2 if whole else 4)
    batch, held = batch_of(made), rings()
    assert jax.tree.map(lambda x: (x.shape, x.dtype), batch) == jax.tree.map(lambda x: (x.shape, x.dtype), made.empty())
    take = jax.jit(lambda j, k: made.take(held, jnp.int32(1), batch, j, k))
    parts = [[take(j, k) for k in range(made.num_parts)] for j in range(made.num_updates)]
    epochs = np.split(np.array([[part.segment.reward for part in minibatch] for minibatch in parts]), 3)
    everything = np.sort(np.concatenate([ring.reward[1].ravel() for ring in held]))
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch.ravel()), everything)
    assert not np.array_equal(epochs[0], epochs[1])
    for minibatch in parts:
        for part in minibatch:
            np.testing.assert_array_equal(part.target, part.segment.reward)
            np.testing.assert_array_equal(part.advantage, part.target + 1_000)
            assert part.num_valid == T * B * G / made.num_minibatches
            assert (part.segment.reward < 100).mean() == 0.5  # as many of each group
            assert part.segment.reward.shape[0] == (T if whole else 1)
            if whole:
                np.testing.assert_array_equal(part.segment.recurrent[:, 0], part.segment.reward[0])


def test_advantages_are_normalised_over_the_valid_ones_of_a_minibatch():
    valid = np.random.default_rng(0).random((G, T, B)) < 0.7
    made = layout()
    plain, batch = batch_of(made, valid=valid), batch_of(made, valid=valid, normalize=True)
    np.testing.assert_array_equal(plain.rows, batch.rows)
    for j in range(made.num_updates):
        held = np.concatenate([valid[g].ravel()[batch.rows[j, g]] for g in range(G)])
        before, after = (np.asarray(x.advantage[j, :, 0]).ravel()[held] for x in (plain, batch))
        np.testing.assert_allclose(after, (before - before.mean()) / before.std(ddof=1), rtol=1e-4, atol=1e-5)
        assert batch.num_valid[j] == held.sum()


def test_a_minibatch_of_nothing_valid_is_finite():
    batch = batch_of(layout(), normalize=True, valid=np.zeros((G, T, B), bool))
    assert np.isfinite(batch.advantage).all()
    assert not batch.num_valid.any()


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("updates", [1, 7, 40])
def test_updates_are_spread_evenly_after_the_last_group_has_begun(groups, updates):
    made = layout(num_epochs=updates, num_minibatches=1)
    made = minibatches.Layout(**{**vars(made), "num_groups": groups})
    turns = [made.turn(jnp.int32(beat), g) for beat in range(T) for g in range(groups)]
    firsts, ends = np.array(turns).T
    assert not ends[: groups - 1].any()
    assert firsts[groups - 1] == 0 < ends[groups - 1]
    np.testing.assert_array_equal(firsts[groups:], ends[groups - 1 : -1])
    assert ends[-1] == updates
    assert np.ptp((ends - firsts)[groups - 1 :]) <= 1


def test_a_gradient_is_the_sum_over_parts():
    def loss(params, part):
        each = params["w"] * part.segment.reward * part.advantage
        return each.sum() / part.num_valid, metrics.means({"reward": part.segment.reward.sum()}, count=part.target.size)

    def computed(micro_batch):
        made = layout(micro_batch=micro_batch)
        return made.gradient(loss, {"w": jnp.float32(2)}, rings(), jnp.int32(1), batch_of(made), jnp.int32(5))

    (whole, means), (parts, sums) = computed(None), computed(2)
    np.testing.assert_allclose(whole["w"], parts["w"], rtol=1e-6)
    np.testing.assert_allclose(metrics.compute(means)["reward"], metrics.compute(sums)["reward"], rtol=1e-6)


def test_parts_are_about_64_timesteps_of_images_or_all():
    assert layout().num_parts == 1
    assert layout(shape=(4, 4, 1)).num_parts == 1
    sizes = types.SimpleNamespace(num_epochs=1, num_minibatches=4, segment_length=128, micro_batch=None)
    env = probes.constant(num_envs=8, groups=2)
    images = env._replace(spec=env.spec._replace(observation_shape=(84, 84, 4)))
    assert (made := minibatches.layout(sizes, images, False)).micro_batch == 32
    assert made.num_parts == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_minibatches": 5}, "num_minibatches=5 do not divide the 24 timesteps of a group"),
        ({"num_minibatches": 8, "whole": True}, r"8 do not divide the 4 environments \(the policy is recurrent\)"),
        ({"micro_batch": 4}, "micro_batch=4 does not divide the 6 rows of a group in a minibatch"),
    ],
)
def test_what_cannot_be_cut_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        layout(**options)
