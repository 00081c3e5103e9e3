"""The report, read as text and seen in a headless browser."""

import base64
import re
import shutil
import subprocess

import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from volvox.report import html_report

CONFIG = {
    "algorithm": {"algorithm": "evolve", "strategy": {"type": "volvox:GA", "population_size": 128}, "hidden": [64, 64]},
    "key": {"impl": "threefry2x32", "data": [0, 0]},
    "versions": {"volvox": "0.1.0", "jax": "0.10.2"},
    "provenance": {"command": "train.py --name '<script>alert(1)</script>'"},
}
ROWS = [
    {
        "generation": i,
        "frames": 24_000 * i,
        "seconds": 60.0 * i,
        "training_mean": 100.0 + 10 * i,
        "validation_mean": None if i == 1 else 400.0 - i,
        "frames_per_second": 1000.0 * i,
    }
    | (
        {"share_emulators": 0.25, "share_inference": 0.15, "share_decoding": 0.6, "speed_over_turns": 1.06}
        if i == 2
        else {}
    )
    for i in range(1, 6)
]


def table(page):
    """First cell -> the others, of all tables of a page."""
    lines = re.findall(r"<tr><th>(.*?)</th>(.*?)</tr>", page)
    return {name: re.findall(r"<td.*?>(.*?)</td>", cells) for name, cells in lines}


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    path = tmp_path_factory.mktemp("video") / "episode.mp4"
    source = "-f lavfi -i testsrc=size=64x48:rate=10:duration=1 -pix_fmt yuv420p -c:v libx264"
    subprocess.run([get_ffmpeg_exe(), "-loglevel", "error", *source.split(), str(path)], check=True)
    return path


def test_what_it_says(tmp_path):
    path = html_report(tmp_path / "new" / "report.html", ROWS, CONFIG, title="Frostbite & more")
    page = path.read_text()
    cells = table(page)
    assert "<title>Frostbite &amp; more</title>" in page
    assert "GA · 5 steps in 5.0 minutes" in page
    assert cells["frames"] == ["120,000"]
    assert cells["validation mean"] == ["395", "398"]
    assert cells["training mean"] == ["150", "150"]
    assert cells["frames per second"] == ["5,000 last, 3,000 in the median"]
    assert cells["strategy.population_size"] == ["128"]
    assert cells["hidden"] == ["[64, 64]"]
    assert cells["jax"] == ["0.10.2"]
    assert "The run is bound by decoding: the largest part, 60% of the time" in page
    assert "1.06 times as fast" in page


def test_it_loads_and_runs_nothing(tmp_path, video):
    page = html_report(tmp_path / "report.html", ROWS, CONFIG, title="x", video=video).read_text()
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert base64.b64encode(video.read_bytes()).decode() in page


def test_the_curve_shows_random_play(tmp_path):
    pages = [
        html_report(tmp_path / "report.html", ROWS, CONFIG, title="x", **scores).read_text()
        for scores in ({}, {}, {"random": 100.0, "least": 0.0})
    ]
    assert pages[0] == pages[1] != pages[2]


@pytest.mark.parametrize("rows", [[], [{"loss": 1.0}], [{"seconds": None, "training_mean": float("nan")}]])
def test_rows_of_any_kind(tmp_path, rows):
    page = html_report(tmp_path / "report.html", rows, {}, title="x").read_text()
    assert ("No step of this run is complete yet." in page) == (not rows)
    assert "data:image/png;base64," in page


def test_a_missing_video_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        html_report(tmp_path / "report.html", ROWS, CONFIG, title="x", video=tmp_path / "none.mp4")
    assert list(tmp_path.iterdir()) == []


def test_a_browser_shows_it(tmp_path, video):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    path = html_report(tmp_path / "report.html", ROWS, CONFIG, title="Frostbite", video=video)
    said, asked = [], []
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function("document.getElementById('episode').readyState >= 2", timeout=20_000)
        assert page.title() == "Frostbite"
        width, height = page.evaluate("[document.images[0].naturalWidth, document.images[0].naturalHeight]")
        assert width > 1000
        assert height > 300
        assert page.evaluate("document.getElementById('episode').videoWidth") == 64
        assert page.locator("h2").all_inner_texts()[:3] == ["Results", "Learning curves", "Rates"]
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        browser.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_a_new_elite_has_no_score(tmp_path):
    rows = [{"elite_score": 135.0, "elite_is_new": False}, {"elite_score": None, "elite_is_new": True}]
    page = html_report(tmp_path / "report.html", rows, CONFIG, title="Frostbite").read_text()
    assert table(page)["elite score"] == ["new, not scored yet", "135"]
