"""The script that compares methods: the files that it writes for made-up runs."""

import json
import sys


def test_table_figures_and_picture_are_written(load, tmp_path, monkeypatch, capsys):
    for method, result, best in (("a3c", "policy", 2.0), ("ga", "elite", 10.0)):
        for seed in range(3):
            (folder := tmp_path / method / f"seed-{seed}").mkdir(parents=True)
            env = {"type": "volvox.envs.atari", "game": "Pong"}
            (folder / "config.json").write_text(json.dumps({"algorithm": {"env": env}, "key": {}}))
            (folder / "metrics.jsonl").write_text(json.dumps({"frames": 100, "training_mean": best + seed}) + "\n")
            (folder / "score.json").write_text(json.dumps({result: {"mean": 2 * best + seed}}))
    runs = [f"{method}={tmp_path / method}" for method in ("a3c", "ga")]
    module, out = load("compare_runs"), tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["compare_runs.py", "--runs", *runs, "--out", str(out)])
    assert module.main() == 0
    written = json.loads((out / "comparison.json").read_text())
    assert [(row["method"], row["runs"], row["score"]) for row in written["rows"]] == [("ga", 3, 11.0), ("a3c", 3, 3.0)]
    assert [pair["probability"] for pair in written["pairs"]] == [1.0]
    assert written["final"]["scores"] == {"ga": [20.0, 21.0, 22.0], "a3c": [4.0, 5.0, 6.0]}
    assert written["final"]["interquartile_mean"]["a3c"] == {"value": 5.0, "low": 4.0, "high": 6.0}
    assert all((out / f"comparison.{suffix}").stat().st_size > 0 for suffix in ("md", "png"))
    assert "Pong" in capsys.readouterr().out
    (tmp_path / "a3c" / "seed-1" / "score.json").unlink()
    assert module.final_scores(module.parse_methods(runs)) == {}
