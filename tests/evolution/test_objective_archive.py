"""The archive, and novelty against brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.evolution import objective as archives


def brute_force(behaviors, others, k):
    distances = np.sqrt(((behaviors[:, None].astype(float) - others[None]) ** 2).sum(-1))
    nearest = np.sort(distances, axis=1)[:, :k]
    return nearest.mean(1) if nearest.shape[1] else np.zeros(len(behaviors))


@pytest.mark.parametrize("held", [0, 1, 3, 40, 64, 700])  # of 700, the nearest are looked for block by block
def test_novelty_is_the_mean_distance_to_the_nearest_held(held):
    random = np.random.RandomState(0)
    # Far from the origin, where |a|^2 + |b|^2 - 2ab alone would lose all digits.
    room = 700 if held != 64 else 64
    behaviors, others = (1_000 + random.rand(n, 3).astype(np.float32) for n in (7, room))
    others[:2] = behaviors[:2]
    archive = archives.Archive(jnp.zeros((room, 3)), jnp.int32(0)).add(others, jnp.arange(room) < held)
    got = archives.novelty_in(archive, behaviors, 5)
    np.testing.assert_allclose(got, brute_force(behaviors, others[:held], 5), rtol=1e-4, atol=1e-4)


def test_what_is_not_finite_is_nobodys_neighbour_and_has_no_novelty():
    behaviors = np.array([[0.0], [np.nan], [3.0], [np.inf]])
    others = np.array([[1.0], [np.nan], [7.0]])
    got = archives.novelty(jnp.asarray(behaviors), jnp.asarray(others), jnp.ones(3, bool), 2)
    np.testing.assert_allclose(got, [(1 + 7) / 2, -np.inf, (2 + 4) / 2, -np.inf])


def test_a_full_archive_forgets_the_oldest():
    archive = archives.Archive(jnp.zeros((4, 1)), jnp.int32(0))
    for first in (0, 3, 6):
        rows = first + jnp.arange(3.0)[:, None]
        archive = archive.add(rows, jnp.array([True, False, True]))
    assert archive.added == 6
    np.testing.assert_array_equal(np.sort(np.asarray(archive.behaviors)[:, 0]), [3, 5, 6, 8])
    assert archive.held.all()


def test_the_nearest_are_not_found_by_sorting():
    """XLA makes a sort of all distances of `top_k` unless it is kept from it; that takes thirty times as long."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1_000, 128), (10_000, 128))]
    held = jax.ShapeDtypeStruct((10_000,), bool)
    compiled = jax.jit(archives.novelty, static_argnums=3).lower(*shapes, held, 10).compile().as_text()
    assert " sort(" not in compiled
    assert "TopK" in compiled
