"""The layers of docs/architecture.md: imports go down only."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "volvox"
LAYER = {
    "types": 0,
    "_checks": 0,
    "_settings": 1,
    "provenance": 0,
    "_formats": 0,
    "_programs": 0,
    "_resources": 0,
    "_manifest": 1,
    "_arguments": 1,
    "ops": 1,
    "checkpoint": 2,
    "networks": 3,
    "envs": 3,
    "population": 3,
    "data": 4,
    "sparsity": 4,
    "actor": 3,
    "rollout": 5,
    "_parts": 6,
    "evolution": 6,
    "learners": 6,
    "distributed": 7,
    "report": 7,
    "_config": 2,
    "loggers": 8,
    "_monitor": 8,
    "_restoring": 8,
    "_record": 9,
    "training": 10,
    "tuning": 9,
    "doctor": 8,
    "exported": 4,
    "exporting": 8,
    "testing": 10,
    "loading": 11,
    "__init__": 12,
    "cli": 12,
    "__main__": 13,
}


def imported(path: Path) -> set[str]:
    """Parts of volvox that a file imports: `volvox.ops.flat` is in the part `ops`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
            assert "volvox" not in names, f"{path}: import a layer, not all of volvox"
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the layer"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("volvox.")}


FILES = sorted(ROOT.rglob("*.py"))


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_file_has_a_layer():
    assert len(FILES) > 20
    assert {part(path) for path in FILES} == set(LAYER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path):
    here = part(path)
    for there in imported(path):
        if there not in LAYER:  # a name of volvox/__init__.py
            assert here == "__init__", f"{path} imports volvox.{there}"
            continue
        down = LAYER[there] < LAYER[here] or there == here
        assert down, f"{path.relative_to(ROOT)} (layer {LAYER[here]}) imports {there} (layer {LAYER[there]})"
