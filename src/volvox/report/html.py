"""The report of a run: one HTML file that contains its pictures and its video, and loads nothing."""

import base64
import html
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from volvox.data.metrics import EACH
from volvox.report.metrics import SCORES, format_duration, format_number, latest
from volvox.report.plots import learning_curve, lineage

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em }
img, video { max-width: 100%; height: auto } table { border-collapse: collapse; width: 100%; table-layout: fixed }
th { font-weight: normal; color: gray; text-align: left; width: 40% } th, td { overflow-wrap: anywhere }
th, td { padding: 0.15em 1em 0.15em 0; vertical-align: top; border-top: 1px solid #8884 }
"""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{style}</style>
<h1>{title}</h1>
{body}
</html>
"""


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
    figures = {"Learning curves": learning_curve(rows, title=title, random=random)}
    if any("pbt_parent" + EACH in row for row in rows):
        figures["Lineage"] = lineage(rows)
    sections = {"Results": _table(results(rows))}
    for name, figure in figures.items():
        figure.savefig(content := io.BytesIO(), format="png", dpi=120)
        sections[name] = f'<img alt="{name}" src="{_data("image/png", content.getvalue())}">'
    if video is not None:
        sections["An episode"] = f'<video controls src="{_data("video/mp4", Path(video).read_bytes())}"></video>'
    for heading, name in (("Settings", "algorithm"), ("Versions", "versions"), ("How it was run", "provenance")):
        sections[heading] = _table(flat_settings(config.get(name, {})))
    body = "\n".join(f"<section><h2>{name}</h2>\n{content}</section>" for name, content in sections.items())
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_PAGE.format(title=html.escape(title), style=_STYLE, body=body))
    return path


def flat_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns nested settings as text by their paths, such as `env.game`.

    Settings of several learners are one entry: a setting in which they differ is a list.
    """
    each = settings.get("settings")
    if isinstance(each, list):
        names = ((name, [one[name] for one in each]) for name in each[0])
        merged = {name: x[0] if all(y == x[0] for y in x) else x for name, x in names}
        settings = {**settings, "settings": merged}
    flat = flatten_dict(dict(settings), sep=".")
    return {path: value if isinstance(value, str) else json.dumps(value) for path, value in flat.items()}


def results(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the number of steps, and the latest counts, scores and rates as text."""
    found = latest(rows)
    shown = ("frames", "timesteps", "episodes", *SCORES, "frames_per_second")
    results = {"steps": str(len(rows))}
    for name in (name for name in shown if name in found):
        results[name.replace("_", " ")] = format_number(found[name])
        if each := next((row[name + EACH] for row in reversed(rows) if name + EACH in row), None):
            low, high = format_number(min(each)), format_number(max(each))
            results[name.replace("_", " ")] += f" (learners {low} to {high}, best {int(np.argmax(each))})"
    return results | ({"wall-clock time": format_duration(found["seconds"])} if "seconds" in found else {})


def _table(lines: Mapping[str, str]) -> str:
    cells = ((html.escape(name), html.escape(text)) for name, text in lines.items())
    return f"<table>{''.join(f'<tr><th>{name}</th><td>{text}</td></tr>' for name, text in cells)}</table>"


def _data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
