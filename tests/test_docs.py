"""Runs the Python blocks of README and docs that follow a line `<!-- run -->`.

The marked blocks of one page run in order and share their names.
"""

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"<!-- run -->\n+((?: {4}.*\n|\n)+)")
PAGES = {
    str(path.relative_to(ROOT)): blocks
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if (blocks := BLOCK.findall(path.read_text() + "\n"))
}


QUICK = ("docs/how-to/strategy.md", "docs/how-to/learner.md", "docs/how-to/environment.md")


@pytest.mark.parametrize(
    "page", [page if page in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in PAGES]
)
def test_marked_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "".join(map(textwrap.dedent, PAGES[page]))
    exec(compile(source, page, "exec"), {"__name__": page})
