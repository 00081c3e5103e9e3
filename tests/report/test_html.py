"""The report as text."""

import base64
import json
import re

import pytest

from volvox.report import html_report
from volvox.report.files import write_rows

CONFIG = {
    "algorithm": {
        "type": "volvox.evolve",
        "strategy": {"type": "volvox.GA", "population_size": 128},
        "env": {"type": "volvox.envs.gymnasium", "make_env": "Frostbite & more"},
        "sizes": [64, 64],
    },
    "key": {},
    "versions": {"jax": "0.10.2"},
    "provenance": {"command": "train.py --name '<script>alert(1)</script>'"},
}
ROWS = [
    {"frames": 24_000 * i, "seconds": 60.0 * i, "validation_mean": 400.0 - i, "frames_per_second": 1000.0 * i}
    for i in range(1, 6)
]


@pytest.fixture
def report(tmp_path):
    """Writes the files of a run and its report; returns the page."""

    def page(rows):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
        write_rows(tmp_path / "metrics.jsonl", rows)
        return html_report(tmp_path, tmp_path / "new" / "report.html").read_text()

    return page


def table(page):
    """Returns the first cell of each line of all tables, with the others."""
    lines = re.findall(r"<tr><th>(.*?)</th>(.*?)</tr>", page)
    return {name: re.findall(r"<td.*?>(.*?)</td>", cells) for name, cells in lines}


def test_results_and_settings(report):
    page = report(ROWS)
    cells = table(page)
    assert "<title>Frostbite &amp; more</title>" in page
    assert (cells["frames"], cells["wall-clock time"]) == (["120,000"], ["0:05:00"])
    assert (cells["validation mean"], cells["frames per second"]) == (["395"], ["5,000"])
    assert (cells["strategy.population_size"], cells["sizes"], cells["jax"]) == (["128"], ["[64, 64]"], ["0.10.2"])


def test_the_page_loads_and_runs_nothing(report, tmp_path):
    (tmp_path / "episode.mp4").write_bytes(b"a video")
    page = report(ROWS)
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    assert "<script" not in page
    assert base64.b64encode(b"a video").decode() in page


@pytest.mark.parametrize("rows", [[], [{"loss": 1.0}], [{"seconds": None, "training_mean": None}]])
def test_rows_of_any_kind(report, rows):
    assert "data:image/png;base64," in report(rows)
