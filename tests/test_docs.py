"""Runs the Python blocks of README and docs that follow a line `<!-- run -->`.

The marked blocks of one page run in order and share their names. Other blocks need a GPU, a cluster, an account, or
packages that the tests do without.
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


QUICK = ("docs/how-to/learner.md", "docs/how-to/environment.md")
SMALLER = {"num_trials=24, num_learners=8, max_timesteps=40_000": "num_trials=4, num_learners=2, max_timesteps=20_000"}


@pytest.mark.parametrize(
    "page", [page if page in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in PAGES]
)
def test_marked_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "".join(map(textwrap.dedent, PAGES[page]))
    for whole, part in SMALLER.items():
        source = source.replace(whole, part)
    exec(compile(source, page, "exec"), {"__name__": page})
