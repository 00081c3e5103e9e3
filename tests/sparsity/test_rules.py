"""Rules for masks, kernel by kernel, and schedules, value by value, against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.sparsity import Cubic, Dynamic, KeepNOfM, Magnitude, RewardAware
from volvox.sparsity.masks import Kernel
from volvox.sparsity.rules import erdos_renyi

STEP, KEY = jnp.int32(1), jax.random.key(0)


def weights(group=1, seed=0):
    """A kernel `[24, 8]` as `[R, g, 8]`."""
    random = np.random.default_rng(seed)
    return jnp.asarray(random.standard_normal((24 // group, group, 8)), jnp.float32)


def first_mask(rule, kernel):
    return rule.init(KEY, {"a": Kernel(kernel, block=1)})["a"]


@pytest.mark.parametrize("group", [1, 4])
def test_the_smallest_groups_are_pruned(group):
    kernel = weights(group)
    rule = Magnitude(schedule=Cubic(final_sparsity=0.25, begin=0, end=1), group=group)
    everything = jnp.ones((24 // group, 1, 8), bool)
    mask = rule.update(KEY, everything, kernel, kernel, STEP, jnp.float32(0.25))
    sizes = np.sqrt((np.asarray(kernel) ** 2).mean(1))
    np.testing.assert_array_equal(mask[:, 0], sizes > np.sort(sizes.ravel())[48 // group - 1])


def test_pruned_weights_with_the_largest_gradients_are_restored_first():
    kernel, gradient = weights(), weights(seed=3)
    rule = Magnitude(schedule=Cubic(final_sparsity=0.5, begin=0, end=1))
    old = rule.update(KEY, jnp.ones((24, 1, 8), bool), kernel, gradient, STEP, jnp.float32(0.5))
    gradient = 1e-9 * gradient  # small gradients are compared, too
    new = np.asarray(rule.update(KEY, old, jnp.where(old, kernel, 0), gradient, STEP, jnp.float32(0.375)))
    restored = new & ~np.asarray(old)
    assert restored.sum() == 24
    assert (new | ~np.asarray(old)).all()
    assert np.abs(gradient)[restored].min() > np.abs(gradient)[~new].max()


def test_two_of_every_four_weights_are_kept():
    kernel = weights()
    mask = np.asarray(first_mask(KeepNOfM(n=2, m=4), kernel)).reshape(6, 4, 8)
    np.testing.assert_array_equal(mask.sum(1), 2)
    sizes = np.abs(np.asarray(kernel)).reshape(6, 4, 8)
    assert (np.where(mask, sizes, np.inf).min(1) > np.where(mask, 0, sizes).max(1)).all()


def test_n_of_m_replaces_weights_within_each_m():
    """The smallest tenth of kept weights is replaced by the weights of the same m with the largest gradients."""
    kernel, gradient = weights(), weights(seed=3)
    rule = KeepNOfM(n=1, m=4, drop=0.1)
    old = first_mask(rule, kernel)
    kernel = jnp.where(old, kernel, 0.0)
    new = np.asarray(rule.update(KEY, old, kernel, gradient, STEP, jnp.float32(0))).reshape(6, 4, 8)
    old, sizes, slopes = (np.abs(np.asarray(x)).reshape(6, 4, 8) for x in (old, kernel, gradient))
    dropped = old.astype(bool) & ~new
    np.testing.assert_array_equal(new.sum(1), 1)
    assert dropped.sum() == 5  # of 48
    assert sizes[dropped].max() < sizes[old.astype(bool) & new].min()
    best = np.where(old, -1, slopes).argmax(1)
    for i, j in zip(*np.nonzero(dropped.any(1)), strict=True):
        assert new[i, best[i, j], j]


def test_fewer_and_fewer_weights_change_until_an_end():
    kernel = weights()
    rule = Dynamic(sparsity=0.5, drop=0.4, end=100, grow="gradient")
    mask = first_mask(rule, kernel)
    for step, left in ((0, 1.0), (50, 0.5), (100, 0.0), (200, 0.0)):
        new = rule.update(KEY, mask, kernel, kernel, jnp.int32(step), jnp.float32(0))
        assert int((mask & ~new).sum()) == round(0.4 * left * 96), step


@pytest.mark.parametrize("grow", ["random", "gradient"])
def test_as_many_weights_are_restored_as_pruned(grow):
    kernel, gradient = weights(), weights(seed=3)
    rule = Dynamic(sparsity=0.5, drop=0.25, grow=grow)
    mask = first_mask(rule, kernel)
    kernel = jnp.where(mask, kernel, 0.0)
    new = np.asarray(rule.update(jax.random.key(1), mask, kernel, gradient, STEP, jnp.float32(0)))
    old = np.asarray(mask)
    assert old.sum() == new.sum() == 96
    dropped, restored = old & ~new, new & ~old
    assert dropped.sum() == restored.sum() == 24
    assert np.abs(kernel)[dropped].max() < np.abs(kernel)[old & new].min()
    if grow == "gradient":
        never = ~old & ~new
        assert np.abs(gradient)[restored].min() > np.abs(gradient)[never].max()


def test_small_numbers_of_half_precision_differ_in_size():
    """Their squares are 0 in float16."""
    kernel = jnp.array([2e-4, 1.5e-4, 1e-4], jnp.float16).reshape(3, 1, 1)
    rule = Magnitude(schedule=Cubic(final_sparsity=0.4, begin=0, end=1))
    mask = rule.update(KEY, jnp.ones((3, 1, 1), bool), kernel, kernel, STEP, jnp.float32(0.4))
    assert mask.ravel().tolist() == [True, True, False]


def test_densities_of_erdos_renyi():
    sides = {"a": (100, 100), "b": (10, 1_000), "c": (4, 2)}
    found = erdos_renyi(sides, 0.2, dict.fromkeys(sides, 1.0))
    assert found["c"] == 1.0  # it would be above
    assert found["b"] / found["a"] == pytest.approx((1_010 / 10_000) / (200 / 10_000))
    total = sum(found[name] * k * n for name, (k, n) in sides.items())
    assert total == pytest.approx(0.2 * (10_000 + 10_000 + 8))
    found = erdos_renyi(sides, 0.2, {"a": 1.0, "b": 0.125, "c": 0.5})
    assert (found["b"], found["c"]) == (0.125, 0.5)
    assert found["a"] == pytest.approx((0.2 * 20_008 - 1_250 - 4) / 10_000)  # what the others may not have


def test_the_cubic_schedule():
    schedule = Cubic(final_sparsity=0.8, begin=10, end=30)
    found = [schedule.advance((), jnp.int32(t), None)[0] for t in (0, 10, 20, 30, 99)]
    np.testing.assert_allclose(found, [0, 0, 0.7, 0.8, 0.8], rtol=1e-6)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (-500.0, 1.0), (3.0, 1e-3)])
def test_the_reward_aware_schedule_rises_stays_and_falls(shift, scale):
    schedule = RewardAware(final_sparsity=0.8, initial_sparsity=0.5, increment=0.1, tolerance=0.1, begin=2)
    state, found = schedule.init(), []
    #             no episode yet, too early, begins, best, within 10%, within 20%, below, below, below, back, ...
    returns = [np.nan, 0.0, 0.0, 100.0, 91.0, 85.0, 70.0, 10.0, 0.0, 95.0, 100.0, 200.0, 300.0]
    for step, value in enumerate(returns):
        sparsity, state = schedule.advance(state, jnp.int32(step), jnp.float32(shift + scale * value))
        found.append(float(sparsity))
    expected = [0.5, 0.5, 0.6, 0.7, 0.8, 0.8, 0.7, 0.6, 0.5, 0.6, 0.7, 0.8, 0.8]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_sparsity_at_which_returns_keep_falling_is_tried_less_and_less_often():
    """Returns that fall to nothing above 0.65, and later no longer do: one accident costs no time."""
    schedule = RewardAware(final_sparsity=0.9, initial_sparsity=0.5, increment=0.1, tolerance=0.1)
    advance = jax.jit(schedule.advance)
    _, state = advance(schedule.init(), 0, jnp.float32(0.0))
    found = []
    for step in range(1, 40):
        sparsity, state = advance(state, step, jnp.float32(100.0 if step > 34 or found[-1:] < [0.65] else 0.0))
        found.append(round(float(sparsity), 3))
    tries = [i for i, value in enumerate(found) if value > 0.65]
    # One change for the fall, then 1, 2, 4, 8 and 16 changes with returns within the tolerance.
    assert np.diff(tries[:6]).tolist() == [2, 3, 5, 9, 17]
    assert found[-3:] == [0.7, 0.8, 0.9]


def test_infinite_returns_are_passed_over():
    schedule, found = RewardAware(final_sparsity=0.8, increment=0.1), []
    for returns in ([0.0, 50.0, 100.0, 100.0, 0.0], [0.0, np.inf, 50.0, 100.0, -np.inf, 100.0, np.nan, 0.0]):
        state = schedule.init()
        for step, value in enumerate(returns):
            sparsity, state = schedule.advance(state, jnp.int32(step), jnp.float32(value))
        found.append((float(sparsity), jax.tree.map(float, state)))
    assert found[0] == found[1]
    assert 0 < found[0][0] < 0.8
