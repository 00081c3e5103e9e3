"""The comparison of ways to train with few weights: one small run, and its figures from given returns."""

import functools
import json

import pytest

TINY = [
    *("--task", "InvertedPendulum", "--num-learners", "2", "--num-envs", "2", "--hidden", "32", "32"),
    *("--batch-size", "16", "--random-timesteps", "100", "--replay-size", "2000"),
    *("--timesteps-per-iteration", "150", "--timesteps", "300"),
    *("--every", "20", "--increment", "0.05", "--tolerance", "1.0", "--episodes", "2"),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")  # of equal returns
def test_ways_are_trained_resumed_and_compared(tmp_path, script):
    run_dir = tmp_path / "sparse"
    for ways in (["dense"], ["dense", "gst"]):
        script("group_sparse.py", *TINY, "--run-dir", run_dir, "--resume", "--ways", *ways)
    found = json.loads((run_dir / "group_sparse.json").read_text())["ways"]
    assert list(found) == ["dense", "gst"]
    assert found["dense"]["average_compression"] == 0
    # Large layers have 3 * 1 024 weights, of 1 249 of the actor and 1 281 of each critic.
    assert 0.4 < found["gst"]["average_compression"] < found["gst"]["final_compression"] < 3 * 1024 / 3_811
    assert len(found["gst"]["return_of_seeds"]) == 2
    curves = json.loads((run_dir / "curves.json").read_text())
    assert curves["gst"]["compression"][-1] == pytest.approx(found["gst"]["final_compression"], abs=1e-4)
    options = ("--run-dir", run_dir, "--resume", "--ways", "gst", "--seed", "3")
    _, err = script("group_sparse.py", *TINY, *options, code=2)
    assert "other settings" in err


def test_committed_intervals_follow_from_the_committed_returns(module):
    path = module.Path(module.__file__).parent / "results" / "group_sparse" / "halfcheetah" / "group_sparse.json"
    ways = json.loads(path.read_text())["ways"]
    dense = ways.pop("dense")
    for way in ways.values():
        found = module.difference_interval(way["return_of_seeds"], dense["return_of_seeds"])
        assert found == pytest.approx(way["return_minus_dense_interval_95"])
    assert module.difference_interval([1.0], [0.0, 2.0]) is None


@pytest.mark.slow
def test_every_way_makes_an_algorithm(module):
    settings = module.settings_of([*TINY, "--task", "Humanoid"])
    sparse = {}
    for way in module.get_args(module.Way):
        algorithm = module.make_algorithm(settings, way)
        optimizer = algorithm.config["settings"].optimizer
        if isinstance(optimizer, functools.partial):
            sparse[way] = optimizer
        algorithm.close()
    assert set(module.get_args(module.Way)) - set(sparse) == {"dense", "gst-grouping-only"}
    assert sparse["n-of-m"].args[1].m == 8
    assert sparse["n-of-m"].keywords["dense"] == ("Dense_0/kernel",)


def test_n_of_m_has_the_final_sparsity(module):
    flags = [*TINY, "--block", "1", "--final-sparsity", "0.5", "--kept"]
    rule = module.rule_of(module.settings_of([*flags, "2"]), "n-of-m")
    assert (rule.n, rule.m) == (2, 4)
    flags[-2] = "0.55"
    with pytest.raises(ValueError, match="3/m"):
        module.rule_of(module.settings_of([*flags, "3"]), "n-of-m")


def test_bad_settings_are_refused(module):
    with pytest.raises(ValueError, match="timesteps"):
        module.make_algorithm(module.settings_of([*TINY, "--timesteps", "100"]), "gst")
