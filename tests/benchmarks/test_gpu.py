"""The script of the GPU's benchmark without a GPU: what it refuses, and parts that fail."""

import json

import gpu
import jax
import pytest


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is a GPU")
def test_without_a_gpu_it_points_to_the_dry_run(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["gpu.py", "--out", str(tmp_path / "gpu.json")])
    assert gpu.main() == 2
    assert "--dry-run" in capsys.readouterr().err
    assert not (tmp_path / "gpu.json").exists()


@pytest.mark.slow
def test_a_part_that_fails_stops_no_other(monkeypatch, tmp_path):
    commands = {
        "broken": (60, "no_such_script.py", ""),
        "slow": (1, "-c while(1):pass", ""),
        "silent": (60, "-c 0", ""),
        "good": (60, "-c", "print('{\"a\":1}')"),
    }
    monkeypatch.setattr(gpu, "PARTS", commands)
    monkeypatch.setattr("sys.argv", ["gpu.py", "--dry-run", "--out", str(tmp_path / "gpu.json")])
    assert gpu.main() == 1
    found = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert [found[name]["exit_code"] for name in ("broken", "slow", "good")] == [2, 124, 0]
    assert found["silent"]["exit_code"]
    assert "no_such_script" in found["broken"]["output"][-1]
    assert found["good"]["a"] == 1
