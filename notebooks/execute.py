"""Runs notebooks and stores their outputs, text and pictures, in them.

python notebooks/execute.py                             # all of this directory
python notebooks/execute.py notebooks/01_quickstart.ipynb
"""

import base64
import io
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

REPOSITORY = "volvox-rl/volvox"
"""Owner and name on GitHub, for the links to Colab."""
BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    f"(https://colab.research.google.com/github/{REPOSITORY}/blob/main/notebooks/{{name}})"
)


def execute(path: Path) -> nbformat.NotebookNode:
    """Returns the notebook with the outputs of a run in an empty directory."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # Runs are written to `tempfile.mkdtemp()`.
        environment = {**os.environ, "TMPDIR": folder}
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources, record_timing=False)
        client.execute(env=environment)
        text = re.sub(rf"{re.escape(folder)}/(tmp\w+)?", "runs", nbformat.writes(notebook))
    return nbformat.reads(text, as_version=4)


def clean(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """Keeps text and pictures; drops progress and warnings (standard error), videos and HTML. Writes the badge."""
    first = notebook.cells[0]
    first.source = re.sub(r"^\[!\[Open in Colab\].*$", BADGE.format(name=name), first.source, flags=re.MULTILINE)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata = {}
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr" and is_kept(output)]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data, output.metadata = {"image/png": smaller(output.data["image/png"])}, {}
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
    return notebook


def smaller(picture: str) -> str:
    """Returns a PNG with 128 colours, which takes a third of the space; both are base64."""
    file = io.BytesIO()
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(file, format="png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def is_kept(output: nbformat.NotebookNode) -> bool:
    """Returns whether an output is neither a video nor other HTML."""
    return "text/html" not in output.get("data", {})


def main() -> None:
    given = [Path(argument) for argument in sys.argv[1:]]
    for path in given or sorted(Path(__file__).parent.glob("*.ipynb")):
        notebook = clean(execute(path), path.name)
        nbformat.write(notebook, path)
        print(f"{path}: {path.stat().st_size / 1_000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
