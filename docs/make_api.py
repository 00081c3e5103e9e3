"""Makes docs/api.md: every public name and the first sentence of its docstring.

python docs/make_api.py
"""

import inspect
import re
from pathlib import Path
from types import ModuleType

import volvox
from volvox.report.files import write_file

API = Path(__file__).parent / "api.md"
HEAD = """# Public names

This page is made by `python docs/make_api.py` from the docstrings; do not edit it. `help(vx.A3C)` documents every
setting, argument, shape and error. The names of a section are attributes of its module: `vx.envs.atari`.
"""


def first_sentence(thing: object) -> str:
    """Returns the first sentence of its docstring."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)):
        return "A type." if callable(getattr(thing, "__or__", None)) else "A constant."
    return re.split(r"(?<!\bal\.)(?<=[.?]) ", " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split()))[0]


def section(title: str, module: ModuleType) -> list[str]:
    """Returns a table of a module's public names; those that are in `volvox` itself are left to its table."""
    lines = [f"## {title}\n", first_sentence(module) + "\n", "| name | what it is |", "| --- | --- |"]
    for name in sorted(module.__all__, key=str.lower):
        thing = getattr(module, name)
        if isinstance(thing, ModuleType) and module is volvox:
            continue
        if module is not volvox and getattr(volvox, name, None) is thing:
            continue
        lines.append(f"| `{name}` | {first_sentence(thing)} |")
    return [*lines, ""]


def page() -> str:
    """Returns the page."""
    lines = [HEAD, *section("vx", volvox)]
    for name in volvox.__all__:
        if isinstance(module := getattr(volvox, name), ModuleType):
            lines += section(f"vx.{name}", module)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    write_file(API, page())
