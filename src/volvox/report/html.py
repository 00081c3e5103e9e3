"""The report of a run: one HTML file that holds its pictures and its video, and loads nothing."""

import base64
import html
import io
import itertools
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from volvox.checkpoint import write_file
from volvox.evolution.schedules import Cutoff
from volvox.report.plots import learning_curve
from volvox.report.rows import numbers
from volvox.report.runs import SCORES, by_place, is_unscored, number_text, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PARTS = {
    "share_emulators": ("emulators", "#E69F00"),
    "share_inference": ("inference", "#56B4E9"),
    "share_decoding": ("decoding", "#009E73"),
    "share_learning": ("learning", "#009E73"),
}
_FACTS = (("frames", "frames"), ("episodes", "episodes"), ("update", "updates"))
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1000px; margin: 2em auto; padding: 0 1em }
h1 { margin-bottom: 0 } h2 { margin-top: 1.6em; border-bottom: 1px solid #ddd } p.about { color: #666; margin-top: 0 }
img, video { max-width: 100%; height: auto } video { max-height: 70vh; background: #000 }
table { border-collapse: collapse } th { font-weight: normal; color: #666; text-align: left; width: 18em }
th, td { padding: 0.15em 1em 0.15em 0; vertical-align: top } tr + tr { border-top: 1px solid #eee }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere } td.number { text-align: right }
.bar { display: flex; height: 1.8em; margin: 0.6em 0 } .bar span { color: #fff; padding-left: 0.4em; overflow: hidden;
white-space: nowrap }
"""
# Whatever a name or a setting holds, nothing is loaded from elsewhere and nothing is run.
_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"


def html_report(
    path: str | os.PathLike[str],
    rows: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    *,
    title: str,
    video: str | os.PathLike[str] | None = None,
    random: float | None = None,
    least: float | None = None,
) -> Path:
    """Writes what a run did and how, as one HTML file that is read without a network.

        html_report("report.html", rows, config, title="Frostbite", video="episode.mp4")

    Args:
      path: Where to write; the folder is made if missing.
      rows: Metrics, one mapping a step, in order.
      config: What `config.json` holds: settings under "algorithm", versions under "versions", and whatever else.
      title: The heading, for example the environment's name.
      video: An MP4 file to put in, if there is one.
      random: The score of random play, see `volvox.report.learning_curve`.
      least: The least possible score, likewise.

    Returns:
      The path.

    Raises:
      FileNotFoundError: There is no such video.
    """
    path = Path(path)
    settings = config.get("algorithm", {})
    if isinstance(limits := settings.get("max_episode_steps"), list):
        settings = {**settings, "max_episode_steps": dict(zip(Cutoff._fields, limits, strict=False))}
    about = {name: value for name, value in config.items() if name not in ("algorithm", "versions", "key")}
    sections = [
        ("Results", _results(rows)),
        ("Learning curves", _picture(learning_curve(rows, title=title, random=random, least=least))),
        ("Rates", _rates(rows)),
        ("Where the time goes", _bound(rows)),
        ("An episode", "" if video is None else _video(Path(video))),
        ("Settings", _table(by_place(settings))),
        ("Versions", _table(by_place(config.get("versions", {})))),
        ("How it was run", _table(by_place(about))),
    ]
    body = "\n".join(f"<section><h2>{name}</h2>\n{content}</section>" for name, content in sections if content)
    shown = html.escape(title)
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{shown}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{shown}</h1>
<p class="about">{html.escape(_summary(rows, settings))}</p>
{body}
</body>
</html>
"""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, page)
    return path


def _summary(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    named = settings.get("strategy", settings.get("settings", {}))
    name = str(named.get("type", settings.get("algorithm", ""))) if isinstance(named, Mapping) else ""
    steps = f"{len(rows)} step{'s' * (len(rows) != 1)}" if rows else "no step is complete yet"
    seconds = rows[-1].get("seconds") if rows else None
    time = f"in {_duration(seconds)}" if isinstance(seconds, int | float) else ""
    return " · ".join(filter(None, (name.rpartition(":")[2], f"{steps} {time}".strip())))


def _results(rows: Sequence[Mapping[str, Any]]) -> str:
    """Counts at the end, and of each score the last value and the largest."""
    if not rows:
        return "<p>No step of this run is complete yet.</p>"
    counts = [(label, number_text(rows[-1][name])) for name, label in _FACTS if name in numbers(rows[-1])]
    columns = {name: [row[name] for row in map(numbers, rows) if name in row] for name in SCORES}
    shown = {
        name: "new, not scored yet" if is_unscored(name, rows) else number_text(x[-1])
        for name, x in columns.items()
        if x
    }
    cells = "".join(_row(words(name), text, number_text(max(columns[name]))) for name, text in shown.items())
    table = f"<table>{_row('', 'last', 'largest')}{cells}</table>" if cells else ""
    return _table(dict(counts)) + table


def _row(name: str, *figures: str) -> str:
    cells = "".join(f"<td class=number>{figure}</td>" for figure in figures)
    return f"<tr><th>{name}</th>{cells}</tr>"


def _picture(figure: "Figure") -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    data = base64.b64encode(content.getvalue()).decode()
    return f'<img id="curve" alt="Learning curves" src="data:image/png;base64,{data}">'


def _rates(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rates of the last step that has them, and their medians."""
    found: dict[str, list[float]] = {}
    for name, value in itertools.chain.from_iterable(numbers(row).items() for row in rows):
        if name.endswith("_per_second"):
            found.setdefault(name.removesuffix("_per_second"), []).append(value)
    medians = {name: statistics.median(values) for name, values in found.items()}
    return _table(
        {
            f"{words(name)} per second": f"{number_text(values[-1])} last, {number_text(medians[name])} in the median"
            for name, values in found.items()
        }
    )


def _bound(rows: Sequence[Mapping[str, Any]]) -> str:
    """Shares of emulators, inference and the rest in the last step that was played with the stopwatch."""
    timed = [row for row in map(numbers, rows) if "share_emulators" in row]
    if not timed:
        return ""
    last = timed[-1]
    shares = {label: (last[name], color) for name, (label, color) in _PARTS.items() if name in last}
    largest = max(shares, key=lambda label: shares[label][0])
    bar = "".join(
        f'<span style="flex: {share:.4f} 0 0; background: {color}" title="{label}">{label} {share:.0%}</span>'
        for label, (share, color) in shares.items()
    )
    said = f"The run is bound by {largest}: the largest part, {shares[largest][0]:.0%} of the time if parts take turns."
    if speeds := [row["speed_over_turns"] for row in timed if "speed_over_turns" in row]:
        speed = f"{statistics.median(speeds):.2f} times as fast as the parts in turns"
        said += f" Overlapped, the loop is {speed} (median of {len(speeds)} measurements; with small networks this is "
        said += "far too high, because in turns each part is called from Python)."
    return f'<div class="bar">{bar}</div><p>{said}</p>'


def _video(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<video id="episode" controls preload="auto" src="data:video/mp4;base64,{data}"></video>'


def _table(cells: Mapping[str, str]) -> str:
    lines: Iterable[str] = (f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in cells.items())
    return f"<table>{''.join(lines)}</table>" if cells else ""


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{hours:.1f} hours" if hours >= 2 else f"{minutes:.1f} minutes" if minutes >= 2 else f"{seconds:.0f} s"
