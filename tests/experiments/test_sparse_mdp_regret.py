"""The slopes of regret: of made-up regrets, and that the committed ones are what the script finds."""

import json
from pathlib import Path

import numpy as np
import pytest

RESULTS = Path(__file__).parents[2] / "experiments" / "results" / "sparse_mdp"


@pytest.fixture
def module(load):
    return load("sparse_mdp_regret")


def test_the_slope_is_of_the_worst_case(module):
    """The worst case grows as N^(2/3); the other is lower and grows faster. Seeds differ by factors that cancel."""
    factors = np.array([0.5, 1.0, 1.5])
    points = [
        {"N": n, "s": 2, "regrets": {"a": (n ** (2 / 3) * factors).tolist(), "b": [0.01 * n, 0.02 * n, 0.03 * n]}}
        for n in (1_000, 2_000, 4_000)
    ]
    found = module.slopes(points)["N"]
    assert found["slope"] == pytest.approx(2 / 3, abs=1e-3)
    assert found["interval_95"][0] < 2 / 3 < found["interval_95"][1]
    assert module.slope(points, "N", ("b",))["slope"] == pytest.approx(1.0, abs=1e-3)


def test_equal_seeds_leave_no_doubt(module):
    points = [{"N": 9, "s": s, "regrets": {"a": [float(s**2)] * 4}} for s in (1, 2, 4)]
    assert module.slopes(points) == {"s": {"slope": 2.0, "interval_95": [2.0, 2.0]}}
    assert module.slopes(points[:1]) == {}  # one point has no slope


@pytest.mark.parametrize("name", ["costly", "costly_s", "hidden"])
def test_committed_slopes_are_those_of_the_committed_regrets(module, name):
    committed = json.loads((RESULTS / f"{name}.json").read_text())
    assert module.slopes(committed["points"]) == committed["slopes"]
