"""The continuous-control script as a user runs it: real MuJoCo, in processes of its own."""

import json

import pytest

TINY = [
    *("mujoco", "--task", "InvertedPendulum", "--num-envs", "4", "--segment-length", "5"),
    *("--updates-per-iteration", "3"),
]


@pytest.fixture(scope="module")
def mujoco(script):
    return script("mujoco_a3c.py", TINY)


@pytest.mark.slow
def test_a_run_is_scored(tmp_path, mujoco, rows):
    run_dir = tmp_path / "run"
    code, _, err = mujoco.run("--run-dir", run_dir, "--frames", 200, "--score-episodes", 3)
    assert code == 0, err
    table = rows(run_dir)
    assert [row["update"] for row in table] == [3 * (i + 1) for i in range(len(table))]
    assert table[-1]["frames"] >= 200
    scores = json.loads((run_dir / "score.json").read_text())
    assert set(scores) == {"policy", "policy, sampled", "random", "of"}
    assert scores.pop("of")["which"] == "last"
    assert all(len(score["returns"]) == 3 and score["mean"] > 0 for score in scores.values())
    assert not list(run_dir.glob("*.mp4"))  # nothing to film: observations are no images


@pytest.mark.parametrize(
    ("flags", "message"), [(("--task", "InvertedPendulm"), "InvertedPendulum"), (("--frames", "0"), "frames=0")]
)
def test_bad_settings_are_refused(tmp_path, mujoco, flags, message):
    assert message in mujoco.refusal(tmp_path / "run", *flags)
