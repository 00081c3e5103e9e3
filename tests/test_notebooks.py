"""The notebooks run from top to bottom with small budgets."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SMALLER = {
    "anneal_timesteps": {150_000: 11_000, 500_000: 6_000},
    "batch_size": {128: 16},
    "checkpoint_every": {150: 6},
    "end": {10_000: 200},
    "evaluate_every": {2_500: 200, 10_000: 2_000, 20_000: 4_000, 100_000: 2_500},
    "every": {500: 50},
    "max_episode_steps": {50: 20, 300: 20, 400: 20},
    "max_timesteps": {20_000: 4_000, 60_000: 11_000, 150_000: 11_000, 500_000: 6_000, 800_000: 5_000},
    "num_envs": {32: 4, 64: 8, 128: 16, 250: 40},
    "num_episodes": {10: 1, 30: 2, 100: 3},
    "num_evaluation_episodes": {4: 1, 5: 1},
    "num_learners": {8: 2, 12: 2, 15: 3},
    "num_parents": {8: 2},
    "num_trials": {12: 2},
    "num_validation_episodes": {4: 1},
    "population_size": {32: 8, 64: 8, 128: 16, 250: 40},
    "random_timesteps": {1_000: 100},
    "seconds": {1: 0.1, 2: 0.1},
    "steps": {3: 1, 8: 1, 9: 2, 15: 1, 20: 1, 25: 1, 150: 6},
    "timesteps_per_iteration": {1_000: 30},
}
"""Smaller budgets for the test, by argument and value."""
OTHERS = {
    "DeepGA(frostbite.spec.num_outputs)": "DeepGA(18, size='small')",
    "seed in range(3)": "seed in range(1)",
    'max_timesteps=4000, run_dir=f"{runs}/{name}", on_step': 'max_timesteps=400, run_dir=f"{runs}/{name}", on_step',
    'atari("Frostbite", num_envs=4, groups=2)': 'atari("Frostbite", num_envs=4, groups=2, max_episode_steps=99)',
    'for name in ("full", "rank-1")': 'for name in ("rank-1",)',
    "LowRank(rank=r) for r in (1, 4)}": "LowRank(rank=r) for r in (1,)}",
    'num_learners=2, run_dir=f"{runs}/sweep"': 'num_learners=1, pruner=None, run_dir=f"{runs}/sweep"',
    "vx.PPO(": "vx.PPO(num_epochs=1, ",
}
BUDGET = re.compile(rf'\b({"|".join(SMALLER)})("?[=:] ?)([\d_]+)')


def smaller(source):
    """A cell with small budgets."""
    source = BUDGET.sub(lambda x: x[1] + x[2] + str(SMALLER[x[1]].get(int(x[3]), x[3])), source)
    for whole, part in OTHERS.items():
        source = source.replace(whole, part)
    return source


@pytest.mark.slow
def test_a_notebook_is_executed(tmp_path):
    nbformat, path = pytest.importorskip("nbformat"), NOTEBOOKS[0]
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = smaller(cell.source)
    nbformat.write(notebook, tmp_path / path.name)
    # In a process of its own: the client's libraries warn of their own deprecations.
    command = [sys.executable, str(FOLDER / "execute.py"), str(tmp_path / path.name)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=lambda path: path.stem)
def test_cells_run(path, tmp_path, monkeypatch):
    """No cell raises. There is no kernel, so that the programs of all notebooks are compiled in one process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cells = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    source = "\n".join(smaller(cell) for cell in cells if "%pip" not in cell)  # that cell is for Colab
    exec(compile(source, path.name, "exec"), {"__name__": path.stem})
