"""The notebooks run from top to bottom as they stand, and carry no outputs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.slow
def test_notebook_runs(path, tmp_path):
    cells = json.loads(path.read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells), "clear the outputs before committing"
    # In a process of its own: the client's libraries warn of their own deprecations.
    program = (
        "import sys, nbformat; from nbclient import NotebookClient;"
        "nb = nbformat.read(sys.argv[1], 4); NotebookClient(nb, timeout=300, kernel_name='python3').execute();"
        "nbformat.write(nb, sys.argv[2])"
    )
    executed = tmp_path / "executed.ipynb"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), str(executed)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    for cell in json.loads(executed.read_text())["cells"]:
        for output in cell.get("outputs", []):
            assert output["output_type"] != "error", output


def test_there_are_notebooks():
    assert [path.name for path in NOTEBOOKS]
