"""Committed lineages rebuild the networks whose scores are committed beside them.

One start of some of them is played here. All starts of all take minutes, and are played where the environment has
`VOLVOX_LINEAGES=1`.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import volvox as vx

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
LINEAGES = sorted(str(path.parent.relative_to(RESULTS)) for path in RESULTS.rglob("elite.json"))
every_lineage = pytest.mark.skipif(os.environ.get("VOLVOX_LINEAGES") != "1", reason="minutes; VOLVOX_LINEAGES=1")


def exact_score(run):
    """Returns the exact score that is published: in `scores.json` of older runs, in the run's `score.json` of later."""
    older = json.loads((RESULTS / "lineages" / "scores.json").read_text())
    if run in older:
        return older[run]["exact"]
    return json.loads((RESULTS / run / "score.json").read_text())["elite, exact"]


@pytest.mark.parametrize("run", LINEAGES)
def test_every_lineage_has_a_committed_score(run):
    score = exact_score(run)
    assert len(score["returns"]) == len(score["lengths"]) == 30
    assert np.mean(score["returns"]) == pytest.approx(score["mean"], abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("run", LINEAGES[::18])
def test_one_start_of_a_lineage_scores_as_committed(run):
    """Of 30 starts the one with a single no-op."""
    loaded = vx.load(RESULTS / run)
    options = dict(loaded.algorithm.env.config)
    make = getattr(vx.envs, options.pop("type").rpartition(".")[2])  # atari or envpool
    env = make(**{**options, "noop_max": 1})
    score = vx.play(env, loaded.algorithm.policy, loaded.variables(), protocol="exact")
    committed = exact_score(run)
    (episode,) = zip(score.returns.tolist(), score.lengths.tolist(), strict=True)
    assert episode in zip(committed["returns"], committed["lengths"], strict=True)


@every_lineage
@pytest.mark.parametrize("run", LINEAGES)
def test_every_start_of_every_lineage_scores_as_committed(run):
    committed, score = exact_score(run), vx.load(RESULTS / run).evaluate(protocol="exact")
    assert score.mean == pytest.approx(committed["mean"], abs=0.005)
    order = np.lexsort((score.returns, score.lengths))
    committed_order = np.lexsort((committed["returns"], committed["lengths"]))
    for name in ("returns", "lengths"):
        np.testing.assert_array_equal(getattr(score, name)[order], np.asarray(committed[name])[committed_order])
