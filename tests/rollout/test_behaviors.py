"""Behaviours equal their definition over the whole episode."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox.rollout import Last, Trajectory, behaviors
from volvox.types import TimeStep


def timestep(first, values):
    values = jnp.asarray(values, jnp.float32)
    nothing = jnp.zeros(values.shape[0], bool)
    return TimeStep(values, values[:, 0], jnp.asarray(first), nothing, nothing, {"place": values})


def stream(behavior, steps):
    records = behaviors.start(behavior, steps[0][1].shape[0])
    for first, values in steps:
        records = behaviors.advance(behavior, records, timestep(first, values))
    return np.asarray(jax.vmap(behavior.final)(records))


def walk(length, seed=0):
    values = np.random.RandomState(seed).rand(length, 1, 2)
    return [([i == 0], values[i]) for i in range(length)], values[:, 0]


def test_last_is_the_last_value():
    steps, values = walk(5)
    np.testing.assert_allclose(stream(Last("place", 2), steps)[0], values[-1], rtol=1e-6)


@pytest.mark.parametrize("length", [1, 4, 7, 30])
def test_trajectory_is_sampled_and_its_end_repeated(length):
    steps, values = walk(length)
    got = stream(Trajectory("place", 2, every=3, length=4), steps).reshape(4, 2)
    expected = values[[min(3 * i, length - 1) for i in range(4)]]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_a_record_begins_anew_where_an_episode_does():
    before, _ = walk(9, seed=1)
    steps, values = walk(4)
    got = stream(Trajectory("place", 2, every=1, length=4), before + steps)
    np.testing.assert_allclose(got.reshape(4, 2), values, rtol=1e-6)


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="place"):
        stream(Last("place", 3), walk(1)[0])
    with pytest.raises(ValueError, match="length"):
        Trajectory("ram", 2, every=400, length=1)


def test_a_trajectory_that_does_not_cover_the_episode_is_refused():
    spec = probes.countdown().spec
    behaviors.check(Trajectory("elapsed_steps", 1, every=50, length=12), spec, 600)
    with pytest.raises(ValueError, match="length=100"):
        behaviors.check(Trajectory("elapsed_steps", 1, every=50, length=12), spec, 5_000)
