"""The report as text."""

import base64
import re

import pytest

from volvox.report import html_report

CONFIG = {
    "algorithm": {
        "type": "volvox.evolve",
        "strategy": {"type": "volvox.GA", "population_size": 128},
        "sizes": [64, 64],
    },
    "versions": {"jax": "0.10.2"},
    "provenance": {"command": "train.py --name '<script>alert(1)</script>'"},
}
ROWS = [
    {"frames": 24_000 * i, "seconds": 60.0 * i, "validation_mean": 400.0 - i, "frames_per_second": 1000.0 * i}
    for i in range(1, 6)
]


def table(page):
    """Returns the first cell of each line of all tables, with the others."""
    lines = re.findall(r"<tr><th>(.*?)</th>(.*?)</tr>", page)
    return {name: re.findall(r"<td.*?>(.*?)</td>", cells) for name, cells in lines}


def test_results_and_settings(tmp_path):
    page = html_report(tmp_path / "new" / "report.html", ROWS, CONFIG, title="Frostbite & more").read_text()
    cells = table(page)
    assert "<title>Frostbite &amp; more</title>" in page
    assert (cells["frames"], cells["wall-clock time"]) == (["120,000"], ["0:05:00"])
    assert (cells["validation mean"], cells["frames per second"]) == (["395"], ["5,000"])
    assert (cells["strategy.population_size"], cells["sizes"], cells["jax"]) == (["128"], ["[64, 64]"], ["0.10.2"])


def test_a_new_elite_has_no_score(tmp_path):
    rows = [{"elite_score": 135.0, "elite_is_new": False}, {"elite_score": None, "elite_is_new": True}]
    page = html_report(tmp_path / "report.html", rows, CONFIG, title="Frostbite").read_text()
    assert "elite score" not in table(page)


def test_the_page_loads_and_runs_nothing(tmp_path):
    (tmp_path / "episode.mp4").write_bytes(b"a video")
    path = html_report(tmp_path / "report.html", ROWS, CONFIG, title="x", video=tmp_path / "episode.mp4")
    page = path.read_text()
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    assert "<script" not in page
    assert base64.b64encode(b"a video").decode() in page


@pytest.mark.parametrize("rows", [[], [{"loss": 1.0}], [{"seconds": None, "training_mean": float("nan")}]])
def test_rows_of_any_kind(tmp_path, rows):
    assert "data:image/png;base64," in html_report(tmp_path / "report.html", rows, {}, title="x").read_text()
