"""What documents show passes pyright for a user, as do the plug-ins of `tests/plugins`; and what they say of rows."""

import ast
import importlib.resources
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SKETCHES = ["architecture.md"]  # of the loop, without the names that it needs
PLUGINS = [path for path in sorted((ROOT / "tests" / "plugins").glob("*.py")) if not path.name.startswith("test_")]


def snippets(text: str) -> list[str]:
    """The Python code of a document: blocks that are fenced, or indented after an empty line."""
    blocks = re.findall(r"(?<=\n\n)((?:(?: {4}.*)?\n)+)|```python\n([\s\S]*?)```", text)
    blocks = [fenced or "\n".join(line[4:] for line in indented.splitlines()) for indented, fenced in blocks]
    return [block.strip() for block in blocks if block.strip() and is_python(block.strip())]


def is_python(block: str) -> bool:
    try:
        tree = ast.parse(block)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call | ast.Import | ast.ImportFrom | ast.ClassDef) for node in ast.walk(tree))


def test_snippets_are_found():
    text = "A\n\n    pip install x\n\nB:\n\n    import volvox as vx\n\n    run = vx.load('a')\n    run.plot()\n\nEnd.\n"
    assert snippets(text) == ["import volvox as vx\n\nrun = vx.load('a')\nrun.plot()"]
    found = {path.name: snippets(path.read_text()) for path in DOCUMENTS}
    assert len(found["README.md"]) >= 4
    assert {"README.md", "extending.md", "environments.md"} <= {name for name, blocks in found.items() if blocks}
    unread = [name for name, blocks in found.items() if blocks and not any("import volvox" in x for x in blocks)]
    assert unread == SKETCHES, "a page with snippets needs `import volvox as vx` in the first of them"


def test_the_package_says_that_it_is_typed():
    assert importlib.resources.files("volvox").joinpath("py.typed").is_file()


def test_the_page_of_public_names_is_what_the_script_prints():
    """Every name has a docstring, or is no class, function or module."""
    page = runpy.run_path(str(ROOT / "docs" / "make_api.py"))["page"]()
    assert (ROOT / "docs" / "api.md").read_text() == page
    assert "|  |" not in page


def test_every_metric_of_the_committed_runs_is_explained():
    """Of the runs that `experiments/study.py` made; older ones have names of earlier versions too."""
    files = [*(ROOT / "experiments" / "results").glob("*/*/seed-*/metrics.jsonl")]
    names = {name for path in files for line in path.read_text().splitlines() for name in json.loads(line)}
    section = (ROOT / "docs" / "runs.md").read_text().split("\n## Metrics\n")[1].split("\n## ")[0]
    assert len(names) > 60
    assert names - set(re.findall(r"`(\w+)`", section)) == set()


@pytest.mark.slow
def test_documents_and_plug_ins_pass_pyright(tmp_path):
    for path in DOCUMENTS:
        if path.name in SKETCHES:
            continue
        (tmp_path / f"{path.stem.lower()}.py").write_text("\n".join(snippets(path.read_text())) + "\n")
    for path in PLUGINS:
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "wrong.py").write_text("import volvox as vx\n\nvx.GA(population_size='many')\n")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard", "pythonVersion": "3.11"}))
    program = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(tmp_path),
    ]
    said = json.loads(subprocess.run(program, capture_output=True, text=True, cwd=tmp_path).stdout)
    errors = [
        f"{Path(one['file']).name}:{one['range']['start']['line'] + 1}: {one['message']}"
        for one in said["generalDiagnostics"]
        if one["severity"] == "error"
    ]
    assert any(error.startswith("wrong.py:3") for error in errors), said["summary"]
    wrong = "\n".join(error for error in errors if not error.startswith("wrong.py"))
    assert not wrong, wrong
