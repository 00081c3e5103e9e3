"""The floors of docs/architecture.md: imports go down only."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "volvox"
FLOOR = {
    "types": 0,
    "files": 0,
    "machine": 0,
    "optimizers": 0,
    "trees": 0,
    "validation": 0,
    "ops": 1,
    "networks": 2,
    "envs": 2,
    "population": 2,
    "sparsity": 3,
    "rollout": 3,
    "evolution": 4,
    "actor_critic": 4,
    "off_policy": 4,
    "checkpoint": 5,
    "report": 5,
    "train": 6,
    "tune": 6,
    "__init__": 7,
}


def imported(path: Path) -> set[str]:
    """Rooms of volvox that a file imports: `volvox.ops.flat` is in the room `ops`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
            assert "volvox" not in names, f"{path}: import a floor, not all of volvox"
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the floor"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("volvox.")}


FILES = sorted(ROOT.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_file_has_a_floor():
    assert len(FILES) > 20
    assert {room(path) for path in FILES} == set(FLOOR)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path):
    here = room(path)
    for there in imported(path):
        if there not in FLOOR:  # a name of volvox/__init__.py
            assert here == "__init__", f"{path} imports volvox.{there}"
            continue
        down = FLOOR[there] < FLOOR[here] or there == here
        assert down, f"{path.relative_to(ROOT)} (floor {FLOOR[here]}) imports {there}"
