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
from volvox.report.files import METRICS, REPORT, VIDEO, read_config, read_metrics
from volvox.report.metrics import SCORES, atari_scores, format_duration, format_number, latest, task_of
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


def html_report(run_dir: str | os.PathLike[str], path: str | os.PathLike[str] | None = None) -> Path:
    """Writes curves, results and settings of a run as one HTML file, for a browser without a network.

        html_report("runs/frostbite")

    The file includes `episode.mp4` of the run directory, if that exists. No code of the run is needed.

    Args:
      run_dir: The run directory.
      path: File to write, whose directory is made if it is missing; default `report.html` in the run directory.

    Returns:
      The path.

    Raises:
      ValueError: The directory holds no run.
    """
    directory, config = Path(run_dir), read_config(run_dir)
    rows, title = read_metrics(directory / METRICS), task_of(config)
    random = atari_scores(config["algorithm"].get("env")).get("random")
    figures = {"Learning curves": learning_curve(rows, title=title, random=random)}
    if any("pbt_parent" + EACH in row for row in rows):
        figures["Lineage"] = lineage(rows)
    sections = {"Results": _table(results(rows))}
    for name, figure in figures.items():
        figure.savefig(content := io.BytesIO(), format="png", dpi=120)
        sections[name] = f'<img alt="{name}" src="{_data("image/png", content.getvalue())}">'
    if (directory / VIDEO).exists():
        video = _data("video/mp4", (directory / VIDEO).read_bytes())
        sections["An episode"] = f'<video controls src="{video}"></video>'
    for heading, name in (("Settings", "algorithm"), ("Versions", "versions"), ("How it was run", "provenance")):
        sections[heading] = _table(flat_settings(config.get(name, {})))
    body = "\n".join(f"<section><h2>{name}</h2>\n{content}</section>" for name, content in sections.items())
    path = directory / REPORT if path is None else Path(path)
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
