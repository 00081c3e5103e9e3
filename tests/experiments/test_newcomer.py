"""A run is handed over: each command runs in its own process, which did not train it."""

import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
VOLVOX = ("-c", "import sys; from volvox.cli import main; sys.exit(main(sys.argv[1:]))")


def said(folder, *command):
    """Returns the output of a command."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_run_is_trained_handed_over_loaded_filmed_compared_reported_and_exported(tmp_path):
    pytest.importorskip("envpool")
    script = [str(EXPERIMENTS / "atari_ga.py"), "quick", "--population-size", "8", "--frames", "40_000", "--no-video"]
    for seed in ("0", "1"):
        said(tmp_path, *script, "--seed", seed, "--run-dir", f"runs/{seed}")
    (tmp_path / "runs").rename(tmp_path / "handed")

    load = "import volvox as vx; print(vx.load('handed/0').evaluate(num_episodes=2))"
    assert "(sticky actions 0.25, 2 episodes" in said(tmp_path, "-c", load)
    command = "atari_ga.py quick --population-size 8 --frames 40_000 --no-video --seed 0"
    assert command in said(tmp_path, *VOLVOX, "info", "handed/0")

    assert "handed/0/episode.mp4: return" in said(tmp_path, *VOLVOX, "watch", "handed/0")
    compared = said(tmp_path, *VOLVOX, "compare", "a=handed/0", "b=handed/1", "--out", "both.png")
    assert "interquartile mean over runs" in compared
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert "<video" in (tmp_path / said(tmp_path, *VOLVOX, "report", "handed/0").strip()).read_text()
    said(tmp_path, *VOLVOX, "export", "handed/0", "policy.stablehlo")
    played = said(tmp_path, *VOLVOX, "play", "policy.stablehlo", "--episodes", "1")
    assert "(sticky actions 0.25, 1 episode" in played
