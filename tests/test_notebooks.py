"""The notebooks run from top to bottom with small budgets, and hold the outputs of a whole run: text and pictures."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MACHINE_PATH = re.compile(r"(?<![\w/.:])/(tmp|home|root|work|usr|opt|Users)/")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


GAME = {
    "num_envs=32": "num_envs=4",
    "num_validation_episodes=4": "num_validation_episodes=1",
    "num_episodes=30": "num_episodes=2",
}
GAME |= {"population_size=64, num_parents=8": "population_size=8, num_parents=2"}
SMALLER = {
    "01_quickstart": {"steps=8,": "steps=1,", "steps=9": "steps=2", "max_episode_steps=400": "max_episode_steps=20"}
    | GAME,
    "02_overlap": {"num_envs=32": "num_envs=4", "population_size=32": "population_size=8", "seconds=1": "seconds=0.1"},
    "03_evolution_strategies": {
        "steps=25": "steps=2",
        "steps=20": "steps=1",
        "num_envs=64": "num_envs=4",
        "population_size=64": "population_size=4",
        "frostbite.spec.num_outputs)": 'frostbite.spec.num_outputs, size="small")',
        "seed in range(3)": "seed in range(1)",
        "seconds=2": "seconds=0.1",
    },
    "04_novelty_search": {"=250": "=40", "steps=150": "steps=6", '"checkpoint_every": 150': '"checkpoint_every": 6'},
    "05_actor_critic_ppo": {"1_500_000": "30_000", "150_000": "20_000", "250_000": "15_000"},
    "06_sparse_td3": {
        "1_000": "100",
        "2_500": "600",
        "every=500, end=10_000": "every=50, end=1_000",
        "=20_000": "=1_200",
        "num_episodes=10": "num_episodes=1",
    },
    "07_environment_and_network": {"100_000": "20_000", "800_000": "41_000", "steps=15": "steps=2"},
    "08_honest_comparisons": {
        "30_000": "4_000",
        "num_learners=15": "num_learners=3",
        "num_episodes=100": "num_episodes=10",
        "max_episode_steps=300": "max_episode_steps=20",
    }
    | GAME,
    "09_population_of_learners": {
        "60_000": "11_000",
        "40_000": "4_000",
        "10_000": "2_000",
        '"num_trials": 12': '"num_trials": 4',
        "num_learners=12": "num_learners=4",
    },
}
"""Budgets of each notebook, and those of the test."""


@each_notebook
@pytest.mark.slow
def test_notebook_runs(path, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    for budget, smaller in SMALLER[path.stem].items():
        assert any(budget in cell.source for cell in notebook.cells if cell.cell_type == "code")
        for cell in notebook.cells:
            cell.source = cell.source.replace(budget, smaller)
    nbformat.write(notebook, tmp_path / path.name)
    # In a process of its own: the client's libraries warn of their own deprecations.
    command = [sys.executable, str(FOLDER / "execute.py"), str(tmp_path / path.name)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]


@each_notebook
def test_outputs_are_stored(path):
    nbformat = pytest.importorskip("nbformat")
    assert path.stat().st_size <= 400_000
    cells = nbformat.read(path, as_version=4).cells
    assert f"/notebooks/{path.name})" in cells[0].source  # the link to Colab
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    texts = [output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert not [text for text in texts if MACHINE_PATH.search(text)]
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_there_are_notebooks():
    assert len(NOTEBOOKS) == 9
