"""Runs the Python blocks of README and docs that follow a line `<!-- run -->`.

The marked blocks of one page run in order and share their names. Of the other blocks, the first of README is run by
the test of the wheel, and the rest are no programs: shell commands, a job of a cluster, the loop in words.
"""

import re
import textwrap
from pathlib import Path

import pytest

import volvox as vx

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"<!-- run -->\n+((?: {4}.*\n|\n)+)")
PAGES = {
    str(path.relative_to(ROOT)): blocks
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if (blocks := BLOCK.findall(path.read_text() + "\n"))
}

QUICK = ("docs/how-to/learner.md", "docs/how-to/environment.md")
SMALLER = {
    "num_trials=24, num_learners=8": "num_trials=2, num_learners=1, pruner=None",
    "max_timesteps=40_000": "max_timesteps=4_000",
    "workers=workers": "workers=workers, max_episode_steps=5",
    "vx.networks.DeepGA(env.spec.num_outputs)": 'vx.networks.DeepGA(env.spec.num_outputs, size="small")',
    "evaluate_every=20_000": "evaluate_every=2_000",
    "sweep.again(3)": "sweep.again(1)",
    "num_envs=64": "num_envs=4",
    "population_size=1_000": "population_size=16",
    "steps=100, ": "steps=1, ",
    "steps=1_000, ": "steps=1, ",
    "steps=200, ": "steps=10, ",
    "vx.TD3()": "vx.TD3(batch_size=16, random_timesteps=100, replay_size=2_000, timesteps_per_iteration=200)",
    "evaluate_every=50_000": "evaluate_every=400, num_evaluation_episodes=1",
    "stop_after=600": "max_timesteps=400",
    "num_episodes=30": "num_episodes=2",
    "vx.PPO(**settings)": "vx.PPO(rounds_per_iteration=2, **settings)",
    "evaluate_every=10_000": "evaluate_every=2_000",
    "max_timesteps=50_000": "max_timesteps=4_000",
    'steps=10, run_dir="runs/b"': 'steps=2, run_dir="runs/b"',
    "seconds=1.0": "seconds=0.1",
    "vx.PPO(": "vx.PPO(num_epochs=1, ",
}
"""Sizes of blocks, and smaller ones for tests."""


@pytest.mark.filterwarnings("ignore:Brax System:UserWarning", "ignore::DeprecationWarning")  # of Brax's packages
@pytest.mark.parametrize(
    "page", [page if page in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in PAGES]
)
def test_marked_blocks_run(page, tmp_path, monkeypatch):
    """No block raises."""
    monkeypatch.chdir(tmp_path)
    source = "".join(map(textwrap.dedent, PAGES[page]))
    for size, smaller in SMALLER.items():
        source = source.replace(size, smaller)
    exec(compile(source, page, "exec"), {"__name__": page, "vx": vx})
