"""The shape of the code: sizes, public names, and what their docstrings say."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import pydoc
import re
import tokenize
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import volvox

ROOT = Path(__file__).parent.parent / "src" / "volvox"
FILES = sorted(ROOT.rglob("*.py"))
SCRIPTS = sorted(path for name in ("benchmarks", "experiments") for path in (ROOT.parents[1] / name).glob("*.py"))
PACKAGES = ["volvox", *(m.name for m in pkgutil.iter_modules(volvox.__path__, "volvox.") if m.ispkg)]

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
each_package = pytest.mark.parametrize("name", PACKAGES)


def nodes(path: Path, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds))


@pytest.mark.parametrize("path", [*FILES, *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT.parents[1])))
def test_files_and_functions_are_short(path):
    assert len(path.read_text().splitlines()) <= 400
    for node in nodes(path, ast.FunctionDef, ast.AsyncFunctionDef):
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
        assert lines <= 100, f"{node.name} has {lines} lines after its docstring"


def lines_of_code(path: Path) -> int:
    """Lines that hold code: blank lines, comments and docstrings are not counted."""
    values = [(node, node.value) for node in nodes(path, ast.Expr)]
    strings = [node for node, value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    documentation = {i for node in strings for i in range(node.lineno, node.end_lineno + 1)}
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    with path.open() as file:
        tokens = [token for token in tokenize.generate_tokens(file.readline) if token.type not in layout]
    code = {i for token in tokens for i in range(token.start[0], token.end[0] + 1)}
    return len(code - documentation)


def test_there_is_little_code():
    # A commit that adds a feature, or refuses what was silently wrong, may raise these numbers; nothing else may.
    assert len(FILES) <= 131
    assert sum(map(lines_of_code, FILES)) <= 15_420


def inner(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from inner(constant)


@each_file
def test_closures_capture_less_than_five_names(path):
    for code in inner(compile(path.read_text(), str(path), "exec")):
        if code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"):
            continue  # run where they stand, and are no functions to a reader
        captured = [name for name in code.co_freevars if name != "__class__"]
        assert len(captured) < 5, f"{code.co_qualname} captures {', '.join(captured)}"


def fields(node: ast.ClassDef) -> list[str]:
    """Fields of a NamedTuple, a dataclass or a flax module."""
    bases = {ast.unparse(base) for base in node.bases}
    decorators = {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}
    if not bases & {"NamedTuple", "nn.Module"} and not decorators & {"dataclass", "dataclasses.dataclass"}:
        return []
    annotated = [field for field in node.body if isinstance(field, ast.AnnAssign)]
    names = [field.target.id for field in annotated if not ast.unparse(field.annotation).startswith("ClassVar")]
    return [name for name in names if not name.startswith("_")]


def documented(docstring: str) -> list[str]:
    """Names in the Attributes section of a docstring."""
    _, _, section = docstring.partition("Attributes:\n")
    return [name for line in re.findall(r"^ +([\w, ]+): ", section, flags=re.MULTILINE) for name in line.split(", ")]


@each_file
def test_every_field_is_documented(path):
    for node in nodes(path, ast.ClassDef):
        if not node.name.startswith("_"):
            missing = set(fields(node)) - set(documented(ast.get_docstring(node) or ""))
            assert not missing, f"{node.name}: no word on {', '.join(sorted(missing))}"


@each_package
def test_public_names_are_listed_and_documented(name):
    package = importlib.import_module(name)
    assert inspect.getdoc(package)
    assert isinstance(package.__all__, list)
    assert len(set(package.__all__)) == len(package.__all__)
    for public in package.__all__:
        value = getattr(package, public)
        assert not public.startswith("_")
        if isinstance(value, types.ModuleType | types.FunctionType | type):
            own = inspect.getdoc(value) if not isinstance(value, type) else value.__doc__
            assert own is not None, f"{name}.{public} has no docstring"
            assert not own.startswith(f"{public}("), f"{name}.{public} has only Python's own docstring"


@each_package
def test_what_a_package_imports_by_name_is_public(name):
    package = importlib.import_module(name)
    for node in nodes(Path(package.__file__), ast.ImportFrom):
        for alias in node.names:
            public = alias.asname or alias.name
            module = isinstance(getattr(package, public), types.ModuleType)
            assert public in package.__all__ or public.startswith("_") or module, f"{public} is not in __all__"


@each_package
def test_no_name_shadows_its_module(name):
    package = importlib.import_module(name)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    shadowing = [p for p in package.__all__ if p in modules and not isinstance(getattr(package, p), types.ModuleType)]
    assert not shadowing


def test_few_names_are_flat():
    assert len(volvox.__all__) <= 46


def public_records() -> dict[str, type]:
    """All public classes with fields, by where they are found: of packages, and of the modules that are public."""
    found: dict[str, type] = {}
    modules = [importlib.import_module(name) for name in PACKAGES]
    modules += [x for m in modules for x in (getattr(m, name) for name in m.__all__) if inspect.ismodule(x)]
    for module in modules:
        for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
            value = getattr(module, name)
            if inspect.isclass(value) and value.__module__.startswith("volvox"):
                found |= {f"{module.__name__}.{name}": value}
    return {
        name: value for name, value in found.items() if hasattr(value, "_fields") or dataclasses.is_dataclass(value)
    }


def test_help_shows_what_is_said_of_fields():
    records = public_records()
    assert len(records) > 60
    assert {"volvox.TimeStep", "volvox.loggers.LoggedRun"} <= set(records)  # of a package, and of a module
    for name, record in records.items():
        shown, words = pydoc.plain(pydoc.render_doc(record)), documented(inspect.getdoc(record) or "")
        assert "Alias for field number" not in shown, name
        if issubclass(record, tuple):
            assert all(getattr(record, field).__doc__.endswith(".") for field in record._fields), name
        else:  # the class's own documentation has them
            own = [field.name for field in dataclasses.fields(record) if field.name not in ("parent", "name")]
            assert not {field for field in own if not field.startswith("_")} - set(words), name


def test_settings_are_frozen_and_by_keyword():
    for name in ("A3C", "ES", "GA", "Novelty", "PPO", "Returns", "TD3"):
        settings = getattr(volvox, name)
        assert dataclasses.is_dataclass(settings)
        assert settings.__dataclass_params__.frozen
        assert all(field.kw_only for field in dataclasses.fields(settings))
