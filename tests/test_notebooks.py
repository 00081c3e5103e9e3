"""The notebooks run from top to bottom, and hold the outputs of such a run: text and pictures."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MACHINE_PATH = re.compile(r"(?<![\w/.:])/(tmp|home|root|work|usr|opt|Users)/")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@each_notebook
@pytest.mark.slow
@pytest.mark.optimized
def test_notebook_runs(path, tmp_path):
    copy = shutil.copy(path, tmp_path)
    # In a process of its own: the client's libraries warn of their own deprecations.
    command = [sys.executable, str(FOLDER / "execute.py"), str(copy)]
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
