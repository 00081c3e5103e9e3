"""The wheel works in a fresh environment, without the source tree."""

import os
import re
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SMALLER = {
    "num_envs=32": "num_envs=4",
    "population_size=64": "population_size=12",
    "steps=600": "steps=20",
    "steps=10,": "steps=1,",
    "run.watch()": "run.watch(max_episode_steps=20)",
}


def run(*command, cwd):
    """Runs a command without the import paths of the tests, and returns its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout


def test_training_needs_no_safetensors():
    code = "import sys, volvox; volvox.train, volvox.learn; print('safetensors' in sys.modules)"
    assert run(sys.executable, "-c", code, cwd=ROOT) == "False\n"


@pytest.mark.slow
def test_the_wheel_runs_the_example_of_readme(tmp_path):
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--check-build-dependencies")
    run(sys.executable, *build, "--wheel-dir", str(tmp_path), str(ROOT), cwd=tmp_path)
    (wheel,) = tmp_path.glob("volvox_rl-*.whl")
    assert wheel.stat().st_size <= 2_000_000
    names = {"volvox/py.typed", "volvox/envs/atari_scores.csv", "volvox/runs/agents/frostbite-ga.safetensors"}
    assert names <= set(zipfile.ZipFile(wheel).namelist())

    run(sys.executable, "-m", "venv", "--without-pip", "fresh", cwd=tmp_path)
    python = str(tmp_path / "fresh" / "bin" / "python")
    install = ("-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
    run(sys.executable, *install, "-c", str(ROOT / "constraints.txt"), str(wheel), cwd=tmp_path)
    assert "envpool plays Pong" in run(str(tmp_path / "fresh" / "bin" / "volvox"), "doctor", cwd=tmp_path)

    assert "mean return" in run(str(tmp_path / "fresh" / "bin" / "volvox"), "play", "zoo:cartpole-ppo", cwd=tmp_path)

    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", (ROOT / "README.md").read_text(), re.MULTILINE)
    (example,) = (block for block in blocks if "vx.evolve(" in block)
    for setting, smaller in SMALLER.items():
        assert setting in example
        example = example.replace(setting, smaller)
    run(python, "-c", textwrap.dedent(example), cwd=tmp_path)
    assert (tmp_path / "runs" / "frostbite" / "episode.mp4").stat().st_size > 0
