"""Chunks of a population."""

import numpy as np
import pytest

from volvox.distributed.ray_evaluator import chunk_sizes, split
from volvox.types import Population


@pytest.mark.parametrize("share_bases", [True, False])
def test_chunks_hold_each_episode_once(share_bases):
    rows = np.arange(100, dtype=np.int32)
    bases = {"kernel": np.arange(90, dtype=np.float32).reshape(30, 3)}
    fields = rows % 30, rows, np.full(100, 0.1, np.float32), rows < 0, rows % 2 + 1, -rows / np.float32(7)
    members, sizes = Population(bases, *fields), chunk_sizes(150, 2, 4)
    assert sum(sizes) == 150
    assert max(sizes) <= 16
    assert sizes == sorted(sizes, reverse=True)
    played = []
    for size, (chunk, part) in zip(sizes, split(members, sizes, share_bases=share_bases), strict=True):
        assert chunk.seed.size == max(sizes)
        assert chunk.episodes.sum() == size
        if share_bases:
            assert chunk.bases is None  # no weights travel
        bases = members.bases if share_bases else chunk.bases
        for i in range(size):
            member, episode = part[0][i], part[1][i]
            played.append((member, episode))
            assert chunk.seed[i] == member
            base = bases["kernel"][chunk.parent[i]]
            np.testing.assert_array_equal(base, members.bases["kernel"][member % 30])
    assert sorted(played) == [(i, j) for i in range(100) for j in range(i % 2 + 1)]
    assert played[0] == (0, 0)  # the highest priority
