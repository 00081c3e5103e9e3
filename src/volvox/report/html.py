"""The report of a run: one HTML file that contains its pictures and its video, and loads nothing."""

import base64
import html
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from volvox.report.metrics import SCORES, columns, format_duration, format_number, latest
from volvox.report.plots import learning_curve

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em }
img, video { max-width: 100%; height: auto } table { border-collapse: collapse }
th { font-weight: normal; color: #666; text-align: left; width: 18em } td { overflow-wrap: anywhere }
th, td { padding: 0.15em 1em 0.15em 0; vertical-align: top; border-top: 1px solid #eee }
"""
# The page neither loads nor runs anything, whatever a name or a setting contains.
_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"


def html_report(
    path: str | os.PathLike[str],
    rows: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    *,
    title: str,
    video: str | os.PathLike[str] | None = None,
    random: float | None = None,
) -> Path:
    """Writes results and settings of a run as one HTML file, for a browser without a network.

        html_report("report.html", rows, config, title="Frostbite", video="episode.mp4")

    Args:
      path: File to write; its directory is made if it is missing.
      rows: Metrics, one mapping a step, in order.
      config: Content of `config.json`: settings under "algorithm", versions under "versions", and so on.
      title: Heading, such as the name of the environment.
      video: MP4 file to include.
      random: Score of random play, see `volvox.report.learning_curve`.

    Returns:
      The path.

    Raises:
      FileNotFoundError: There is no such video.
    """
    figure = io.BytesIO()
    learning_curve(rows, title=title, random=random).savefig(figure, format="png", dpi=120)
    sections = {
        "Results": _results(rows),
        "Learning curves": f'<img alt="Learning curves" src="{_data("image/png", figure.getvalue())}">',
        "An episode": ""
        if video is None
        else f'<video controls preload="auto" src="{_data("video/mp4", Path(video).read_bytes())}"></video>',
        "Settings": _table(flat_settings(config.get("algorithm", {})).items()),
        "Versions": _table(flat_settings(config.get("versions", {})).items()),
        "How it was run": _table(flat_settings(config.get("provenance", {})).items()),
    }
    body = "\n".join(f"<section><h2>{name}</h2>\n{content}</section>" for name, content in sections.items() if content)
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
{body}
</body>
</html>
"""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)
    return path


def flat_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns nested settings as text by their paths, such as `env.game`."""
    flat = flatten_dict(dict(settings), sep=".")
    return {path: value if isinstance(value, str) else json.dumps(value) for path, value in flat.items()}


def _results(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns tables of counts, and of the last and the largest value of each score and rate."""
    if not rows:
        return "<p>No step of this run is complete yet.</p>"
    data, last = columns(rows), latest(rows)
    counts = [("steps", str(len(rows)))]
    counts += [(name, format_number(last[name])) for name in ("frames", "timesteps", "episodes") if name in last]
    counts += [("wall-clock time", format_duration(last["seconds"]))] if "seconds" in last else []
    scores = [
        (name, format_number(last[name]) if name in last else "not known yet", format_number(np.nanmax(data[name])))
        for name in (*SCORES, "frames_per_second")
        if name in data
    ]
    tables = [counts, [("", "last", "largest"), *scores]]
    return "".join(_table((name.replace("_", " "), *cells) for name, *cells in table) for table in tables)


def _table(lines: Iterable[Sequence[str]]) -> str:
    cells = [[html.escape(cell) for cell in line] for line in lines]
    body = "".join(f"<tr><th>{name}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>" for name, *rest in cells)
    return f"<table>{body}</table>" if body else ""


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
