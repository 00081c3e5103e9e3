"""Schedules of the sparsity, value by value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.sparsity import Cubic, RewardAware


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
    # One change for the fall, and as often returns hold up: 1, 2, 4, 8 and 16 times.
    assert np.diff(tries[:6]).tolist() == [2, 3, 5, 9, 17]
    assert found[-3:] == [0.7, 0.8, 0.9]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cubic(final_sparsity=1.0, begin=0, end=1),
        lambda: Cubic(final_sparsity=0.5, begin=5, end=5),
        lambda: RewardAware(final_sparsity=0.5, initial_sparsity=0.6),
        lambda: RewardAware(final_sparsity=0.5).advance((), jnp.int32(1), None),
    ],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(ValueError):
        make()


def test_infinite_returns_are_passed_over():
    schedule, found = RewardAware(final_sparsity=0.8, increment=0.1), []
    for returns in ([0.0, 50.0, 100.0, 100.0, 0.0], [0.0, np.inf, 50.0, 100.0, -np.inf, 100.0, np.nan, 0.0]):
        state = schedule.init()
        for step, value in enumerate(returns):
            sparsity, state = schedule.advance(state, jnp.int32(step), jnp.float32(value))
        found.append((float(sparsity), jax.tree.map(float, state)))
    assert found[0] == found[1]
    assert 0 < found[0][0] < 0.8
