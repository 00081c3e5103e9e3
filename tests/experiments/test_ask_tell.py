"""The script of evosax's algorithms as a user runs it."""

import json

import pytest

TINY = [
    *("cartpole", "--population-size", "8", "--num-envs", "8", "--num-validation-episodes", "2", "--hidden", "4"),
    *("--generations", "2"),
]


@pytest.mark.slow
def test_a_run_is_scored(tmp_path, script, rows):
    run_dir = tmp_path / "run"
    script("ask_tell.py", *TINY, "--run-dir", run_dir, "--score-episodes", 3)
    assert [row["generation"] for row in rows(run_dir)] == [1, 2]
    assert all(row["noise_std"] > 0 for row in rows(run_dir))
    assert set(json.loads((run_dir / "score.json").read_text())) == {"policy", "random", "of"}
    assert not (run_dir / "elite.json").exists()


@pytest.mark.parametrize("algorithm", ["cma-es", "sep-cma-es", "snes", "differential-evolution"])
def test_every_algorithm_is_made(module, read, algorithm):
    made, generations = module.make_algorithm(read(module, [*TINY, "--algorithm", algorithm]))
    assert made.config["strategy"].algorithm.__module__.startswith("evosax")
    assert generations == 2
