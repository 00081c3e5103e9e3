"""The script that compares methods: the files that it writes, of made-up runs."""

import json
import sys

import pytest


@pytest.fixture
def runs(tmp_path):
    """Two methods of three seeds each, with scores of what they learned."""
    for method, learned, best in (("ga", "elite", 10.0), ("a3c", "policy", 2.0)):
        for seed in range(3):
            (folder := tmp_path / method / f"seed-{seed}").mkdir(parents=True)
            config = {"algorithm": {"env": {"task": "Pong-v5"}}, "key": {"data": [0, seed], "impl": "threefry2x32"}}
            (folder / "config.json").write_text(json.dumps(config))
            (folder / "metrics.jsonl").write_text(json.dumps({"frames": 100, "training_mean": best + seed}) + "\n")
            (folder / "score.json").write_text(json.dumps({learned: {"mean": 2 * best + seed}}))
    return [f"{method}={tmp_path / method}" for method in ("ga", "a3c")]


def test_table_figures_and_picture_are_written(load, runs, tmp_path, monkeypatch, capsys):
    module, out = load("compare_runs"), tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["compare_runs.py", "--runs", *runs, "--out", str(out)])
    assert module.main() == 0
    written = json.loads((out / "comparison.json").read_text())
    assert [(row["method"], row["runs"], row["score"]) for row in written["rows"]] == [("ga", 3, 11.0), ("a3c", 3, 3.0)]
    assert [pair["probability"] for pair in written["pairs"]] == [1.0]
    assert written["final"]["scores"] == {"ga": [20.0, 21.0, 22.0], "a3c": [4.0, 5.0, 6.0]}
    assert written["final"]["interquartile_mean"]["a3c"] == {"value": 5.0, "low": 4.0, "high": 6.0}
    assert "| ga | 3 | 11 | 10 to 12 | - |" in (out / "comparison.md").read_text()
    assert (out / "comparison.png").stat().st_size > 1_000
    assert "Pong-v5: training mean at 100 frames" in capsys.readouterr().out
    (tmp_path / "a3c" / "seed-1" / "score.json").unlink()
    assert module.final_scores(module.methods_of(runs)) == {}


def test_a_score_of_neither_elite_nor_policy_is_refused_before_anything_is_written(load, runs, tmp_path, monkeypatch):
    module, out = load("compare_runs"), tmp_path / "out"
    (tmp_path / "ga" / "seed-1" / "score.json").write_text('{"random": {"mean": 1}}')
    monkeypatch.setattr(sys, "argv", ["compare_runs.py", "--runs", *runs, "--out", str(out)])
    with pytest.raises(ValueError, match=r"seed-1/score.json has neither an elite nor a policy, but random; score"):
        module.main()
    assert not out.exists()
