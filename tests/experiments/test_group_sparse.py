"""Ways to train with few weights as a user compares them: real MuJoCo, in processes of their own."""

import json
import re

import pytest

TINY = [
    *("--task", "InvertedPendulum", "--num-learners", "2", "--num-envs", "2", "--hidden", "32", "32"),
    *("--batch-size", "16", "--random-timesteps", "100", "--replay-size", "2000"),
    *("--timesteps-per-iteration", "150", "--timesteps", "300"),
    *("--every", "20", "--increment", "0.05", "--tolerance", "1.0", "--episodes", "2"),
]


@pytest.fixture(scope="module")
def sparse(script):
    return script("group_sparse.py", TINY)


@pytest.mark.slow
def test_ways_are_compared_and_further_ones_added(tmp_path, sparse, load):
    run_dir = tmp_path / "sparse"
    code, out, err = sparse.run("--run-dir", run_dir, "--ways", "dense")
    assert code == 0, err
    code, out, err = sparse.run("--run-dir", run_dir, "--ways", "dense", "gst", "--resume")
    assert code == 0, err
    found = json.loads((run_dir / "group_sparse.json").read_text())["ways"]
    assert list(found) == ["dense", "gst"]
    assert found["dense"]["average_compression"] == 0
    # In large layers stand 3 * 1 024 weights, of 1 249 of the actor and 1 281 of each critic.
    assert 0.4 < found["gst"]["average_compression"] < found["gst"]["final_compression"] < 3 * 1024 / 3_811
    assert found["gst"]["return_over_dense"] > 0
    assert len(found["gst"]["return_of_seeds"]) == 2
    # An iteration ends with the beat in which its timesteps are complete, and of two learners one may begin an episode.
    assert {found["gst"]["updates"], found["dense"]["updates"]} <= {200, 201}
    assert (run_dir / "group_sparse.png").stat().st_size > 5_000
    curves = json.loads((run_dir / "curves.json").read_text())
    assert [len(row) for row in curves["gst"]["returns"]] == [2, 2]
    assert curves["gst"]["compression"][-1] == pytest.approx(found["gst"]["final_compression"], abs=1e-4)
    assert re.search(r"gst +\d+ .*%", out)
    # What cannot be compared is refused.
    module = load("group_sparse")
    flags = [*TINY, "--run-dir", str(run_dir), "--ways", "gst"]
    with pytest.raises(FileExistsError, match="already holds a run"):
        module.check_unused(run_dir / "gst")
    module.check_settings(module.settings_of(flags))
    with pytest.raises(ValueError, match=r"holds runs of other settings \(seed\)"):
        module.check_settings(module.settings_of([*flags, "--seed", "3"]))


def test_committed_intervals_follow_from_the_committed_returns(load):
    module = load("group_sparse")
    path = module.Path(module.__file__).parent / "results" / "group_sparse" / "halfcheetah" / "group_sparse.json"
    ways = json.loads(path.read_text())["ways"]
    dense = ways.pop("dense")
    for way in ways.values():
        found = module.difference_interval(way["return_of_seeds"], dense["return_of_seeds"])
        assert found == pytest.approx(way["return_minus_dense_interval_95"])
    assert module.difference_interval([1.0, 3.0], [0.0, 2.0]) == pytest.approx([1 - 6.085, 1 + 6.085], abs=1e-3)
    assert module.difference_interval([1.0], [0.0, 2.0]) is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--timesteps", "0"), "timesteps must be an integer of at least 1, got 0"),
        (("--timesteps", "100"), "timesteps=100: nothing is learned from random_timesteps=100"),
        (("--block", "3"), "block=3 does not divide"),
        (("--final-sparsity", "0.85"), "final_sparsity=0.85: n-of-m keeps 1 of m"),
    ],
)
def test_bad_settings_are_refused(load, flags, message):
    module = load("group_sparse")
    way = "n-of-m" if "n-of-m" in message else "gst"
    with pytest.raises(ValueError, match=re.escape(message)):
        module.make_algorithm(module.settings_of([*TINY, *flags]), way)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--block", "0"), "block must be an integer of at least 1, got 0"),
        (("--final-sparsity", "1.0"), "final_sparsity=1.0: give a share"),
        (("--final-sparsity", "0.5"), "final_sparsity=0.5 is below 0.75"),
        (("--discount", "2"), "discount"),
    ],
)
def test_flags_out_of_their_range_are_refused(load, capsys, flags, message):
    with pytest.raises(SystemExit, match="2"):
        load("group_sparse").settings_of([*TINY, *flags])
    assert message in capsys.readouterr().err


def test_iterative_pruning_is_compared_at_its_best_speed(load):
    """Of those that keep 95% of the dense return; none can be compared with where none does."""
    module = load("group_sparse")
    found = {
        way: {"return_over_dense": kept, "average_compression": compression}
        for way, kept, compression in (
            ("dense", 1.0, 0.0),
            ("iterative-fast", 0.9, 0.7),
            ("iterative-medium", 0.95, 0.5),
            ("iterative-slow", 1.0, 0.4),
            ("gst", 0.96, 0.8),
        )
    }
    assert module.at_equal_return(found) == {"over": "iterative-medium", "percentage_points": pytest.approx(30)}
    assert module.at_equal_return({**found, "gst": {**found["gst"], "return_over_dense": 0.94}}) is None


@pytest.mark.slow
@pytest.mark.parametrize("task", ["InvertedPendulum", "Humanoid"])
def test_every_way_can_be_made(load, task):
    module = load("group_sparse")
    settings = module.settings_of([*TINY, "--task", task, "--tolerance", "0.1"])
    configs = {way: module.make_algorithm(settings, way).config for way in module.get_args(module.Way)}
    grouped = {way for way, config in configs.items() if config["network"]["actor"]["type"].endswith("Grouped")}
    assert grouped == {"gst", "gst-grouping-only", "gst-unaware"}
    optimizers = {way: config["settings"]["optimizer"] for way, config in configs.items()}
    assert {way for way, optimizer in optimizers.items() if "rule" not in optimizer} == {"dense", "gst-grouping-only"}
    assert optimizers["n-of-m"]["rule"]["m"] == 8
    assert optimizers["n-of-m"]["dense"] == (["Dense_0/kernel"] if task == "Humanoid" else [])
    tolerances = [optimizers[way]["rule"]["schedule"]["tolerance"] for way in ("gst", "gst-unaware")]
    assert tolerances == [0.1, 1.0]
