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
    assert found["interval_95"] == [found["slope"]] * 2  # the same seeds at each N, by whose factors all regrets scale
    assert module.slope(points, "N", ("b",))["slope"] == pytest.approx(1.0, abs=1e-3)


def test_equal_seeds_leave_no_doubt(module):
    points = [{"N": 9, "s": s, "regrets": {"a": [float(s**2)] * 4}} for s in (1, 2, 4)]
    assert module.slopes(points) == {"s": {"slope": 2.0, "interval_95": [2.0, 2.0]}}
    assert module.slopes(points[:1]) == {}  # one point has no slope


def test_the_interval_resamples_seeds_that_differ_in_slope(module):
    """Regrets of three seeds that grow as N^0, N^(1/2) and N^1; resamples of one seed only are the extremes."""
    grows = np.array([0.0, 0.5, 1.0])
    points = [{"N": n, "s": 2, "regrets": {"a": (n**grows).tolist()}} for n in (1.0, 100.0)]
    found = module.slope(points, "N")
    low, high = found["interval_95"]
    assert found["slope"] == pytest.approx(np.log10((1 + 10 + 100) / 3) / 2, abs=1e-3)
    assert low == 0.0  # 1 / 27 of the resamples
    assert high == 1.0


def test_where_no_regret_is_positive_there_is_no_slope(module):
    points = [{"N": n, "s": 2, "regrets": {"a": [0.0, -1.0, 0.5]}} for n in (1_000, 2_000)]
    assert module.slope(points, "N") == {"slope": None, "interval_95": None}


def test_where_a_resample_has_no_positive_regret_there_is_no_interval(module):
    points = [{"N": n, "s": 2, "regrets": {"a": [-1.0, -1.0, 10.0 * n]}} for n in (1_000, 2_000)]
    found = module.slope(points, "N")
    assert found == {"slope": pytest.approx(1.0, abs=1e-3), "interval_95": None}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": 0}, "seeds must be an integer of at least 1, got 0"),
        ({"episodes": ()}, r"episodes=\(\): give one or several numbers of at least 1"),
        ({"episodes": (-5, 1_000)}, r"episodes=\(-5, 1000\): give"),
        ({"sparsities": (0,)}, r"sparsities=\(0,\): give"),
        ({"model": "hidden", "sparsities": (1, 2)}, r"sparsities=\(1, 2\) belong to model='costly'"),
        ({"episodes": (1_000, 20_000)}, "episodes=20000 must be fewer than dimension=20000"),
        (
            {"episodes": (83,), "sparsities": (9,)},
            "episodes=83: with s=9 exploration alone takes 84; give more",
        ),
    ],
)
def test_bad_settings_are_refused_before_long_work(module, given, message):
    with pytest.raises(ValueError, match=message):
        module.Settings(**given)


@pytest.mark.parametrize("name", ["costly", "costly_s", "hidden"])
def test_committed_slopes_are_those_of_the_committed_regrets(module, name):
    committed = json.loads((RESULTS / f"{name}.json").read_text())
    assert module.slopes(committed["points"]) == committed["slopes"]


@pytest.mark.slow
def test_a_study_says_with_what_it_was_made(module, tmp_path, monkeypatch):
    small = ("--episodes", "60", "120", "--dimension", "130", "--signals", "1", "--seeds", "3")
    monkeypatch.setattr("sys.argv", ["sparse_mdp_regret.py", *small, "--run-dir", str(tmp_path / "a")])
    assert module.main() == 0
    written = json.loads((tmp_path / "a" / "regret.json").read_text())
    assert set(written) == {"settings", "versions", "provenance", "points", "slopes"}
    assert written["settings"] == {
        **{"model": "costly", "episodes": [60, 120], "sparsities": [2], "dimension": 130, "exponent": 2 / 3},
        **{"signals": 1, "seeds": 3},
    }
    assert {"jax", "volvox"} <= set(written["versions"])
    assert [(point["N"], len(point["regrets"]["0.2500"])) for point in written["points"]] == [(60, 3), (120, 3)]
    assert written["slopes"] == module.slopes(written["points"])
    with pytest.raises(FileExistsError, match=r"regret\.json is there already: give another --run-dir"):
        module.main()
