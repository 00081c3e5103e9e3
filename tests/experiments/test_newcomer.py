"""A run is handed over: another process than the one that trained it loads, films, compares, reports and exports it."""

import shutil
import subprocess
import sys

import pytest

FLAGS = [
    *("quick", "--game", "Assault", "--population-size", "8", "--num-envs", "4", "--max-episode-steps", "20"),
    *("--frames", "1_000", "--no-video"),
]
HANDED_OVER = """
import volvox as vx
from volvox.cli import main

print(vx.load("handed/0").evaluate(num_episodes=2))
for words in (
    "info handed/0",
    "watch handed/0",
    "compare a=handed/0 b=handed/1 --out both.png",
    "report handed/0",
    "export handed/0 policy.stablehlo",
    "play policy.stablehlo --episodes 1 --protocol sticky",
):
    assert main(words.split()) == 0, words
"""


@pytest.mark.slow
def test_a_run_is_trained_handed_over_loaded_filmed_compared_reported_and_exported(tmp_path, script):
    pytest.importorskip("envpool")
    code, _, err = script("atari_ga.py", *FLAGS, "--run-dir", tmp_path / "runs" / "0")
    assert code == 0, err
    (tmp_path / "runs").rename(tmp_path / "handed")
    shutil.copytree(tmp_path / "handed" / "0", tmp_path / "handed" / "1")
    done = subprocess.run([sys.executable, "-c", HANDED_OVER], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for text in (
        "(sticky actions 0.25, 2 episodes",
        "handed/0/episode.mp4: return",
        "interquartile mean over runs",
        "(sticky actions 0.25, 1 episode",
    ):
        assert text in done.stdout
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert "<video" in (tmp_path / "handed" / "0" / "report.html").read_text()
