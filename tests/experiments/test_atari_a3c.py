"""The actor-critic's script as a user runs it: real Atari, in processes of its own."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "atari_a3c.py"
TINY = [
    *("--game", "Pong", "--num-envs", "4", "--segment-length", "5", "--updates-per-step", "3"),
    *("--checkpoint-every", "1", "--episodic-life"),
]


@pytest.fixture(scope="module")
def a3c(script):
    return script("atari_a3c.py", TINY)


def test_a_run_interrupted_and_resumed_ends_whole(tmp_path, a3c, rows, wait_for_rows):
    run_dir = tmp_path / "run"
    flags = ("--run-dir", run_dir, "--no-video")
    interrupted = a3c.start(*flags)
    wait_for_rows(run_dir, 2, interrupted)
    interrupted.send_signal(signal.SIGINT)
    interrupted.communicate(timeout=120)
    assert interrupted.returncode == 130
    done = len(rows(run_dir))

    code, _, err = a3c.run(*flags, "--resume", "--learning-rate", "0.5")
    assert code == 2
    assert "learning_rate" in err

    frames = (done + 1) * 3 * 5 * 4 * 4
    code, out, err = a3c.run("--run-dir", run_dir, "--resume", "--frames", frames, "--score-episodes", "1")
    assert code == 0, err
    assert "policy:" in out
    table = rows(run_dir)
    assert [row["iteration"] for row in table] == list(range(1, done + 2))
    assert [row["update"] for row in table] == [3 * (i + 1) for i in range(done + 1)]
    assert all(row["lag_max"] <= 1 for row in table)
    present = set(os.listdir(run_dir))
    assert {"config.json", "metrics.jsonl", "checkpoints", "learning_curve.png", "score.json"} <= present
    assert any(name.endswith(".mp4") for name in present)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--game", "Pongg"), "Pong"),
        (("--num-envs", "5"), "num_envs=5"),
        (("--frames", "0"), "frames=0"),
        (("--segment-length", "0"), "segment_length"),
        (("--micro-batch", "7"), "micro_batch=7"),
        (("--lag", "0"), "lag=0"),
    ],
)
def test_bad_settings_are_refused(tmp_path, a3c, flags, message):
    a3c.refuses(tmp_path / "run", flags, message)


@pytest.mark.parametrize("preset", ["modern", "ga3c"])
@pytest.mark.parametrize("network", ["small", "nature", "lstm", "ga3c", "ga3c-large"])
def test_presets_and_networks_make_an_algorithm(preset, network, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("atari_a3c", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "atari_a3c", script)  # dataclasses look their module up
    spec.loader.exec_module(script)
    settings = script.read_settings(["--preset", preset, "--network", network])
    algorithm, steps = script.make_algorithm(settings)
    assert steps > 0
    assert algorithm.config["loss_reduction"] == ("sum" if preset == "ga3c" else "mean")
    assert algorithm.config["network"]["num_parameters"] > 500_000
