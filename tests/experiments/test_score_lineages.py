"""Committed lineages rebuild the networks whose scores are committed beside them.

All starts of all lineages take minutes, and are played where the environment has `VOLVOX_LINEAGES=1`.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import volvox as vx

pytestmark = pytest.mark.optimized

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
COMMITTED = json.loads((RESULTS / "lineages" / "exact.json").read_text())
every_lineage = pytest.mark.skipif(os.environ.get("VOLVOX_LINEAGES") != "1", reason="minutes; VOLVOX_LINEAGES=1")


def test_every_lineage_has_a_committed_score():
    lineages = {str(path.parent.relative_to(RESULTS)) for path in RESULTS.rglob("elite.json")}
    assert lineages == set(COMMITTED)


@pytest.mark.slow
def test_the_first_starts_of_the_shortest_lineage_score_as_committed():
    """Of 30 starts the first two: with at most 2 no-ops there are no others."""
    run = "atari_ga/frostbite/random_search"
    loaded = vx.load(RESULTS / run)
    env = vx.envs.atari("Frostbite", noop_max=2)
    score = vx.play(env, loaded.algorithm.policy, loaded.variables(), protocol="exact")
    committed = list(zip(COMMITTED[run]["returns"], COMMITTED[run]["lengths"], strict=True))
    for episode in zip(score.returns.tolist(), score.lengths.tolist(), strict=True):
        committed.remove(episode)  # raises where there is none
    assert len(committed) == 28


@every_lineage
@pytest.mark.parametrize("run", sorted(COMMITTED))
def test_every_start_of_every_lineage_scores_as_committed(run):
    score = vx.load(RESULTS / run).evaluate(protocol="exact")
    assert score.mean == pytest.approx(COMMITTED[run]["mean"], abs=0.005)
    order = np.lexsort((score.returns, score.lengths))
    committed = np.lexsort((COMMITTED[run]["returns"], COMMITTED[run]["lengths"]))
    for name in ("returns", "lengths"):
        np.testing.assert_array_equal(getattr(score, name)[order], np.asarray(COMMITTED[run][name])[committed])
