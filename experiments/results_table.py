"""Makes experiments/README.md: everything that was run in one table, beside what was published, and what was not run.

    python experiments/results_table.py

It reads `results/**/run.json`, which say what was run and where in the files beside them the score is; `wanted.csv`,
the runs wanted in their order; and `published.csv`. `study.py` runs what is wanted and writes `run.json`.
"""

import csv
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from volvox.report import interquartile_mean

HERE = Path(__file__).parent
RESULTS, WANTED, PUBLISHED, README = HERE / "results", HERE / "wanted.csv", HERE / "published.csv", HERE / "README.md"
HEAD = """# Experiments

This page is made by `python experiments/results_table.py` from the files in `experiments/results/`, `wanted.csv` and
`published.csv`; do not edit it. [docs/results.md](../docs/results.md) says what to conclude from the runs.

`python experiments/study.py` runs what is listed as not run, one after the other. Any script also runs by itself;
`--help` documents its flags.

- **Score** is the interquartile mean over seeds (the mean of the middle half; with fewer than four seeds, the mean of
  all) with a 95% bootstrap interval that resamples seeds within each task, as Agarwal et al. 2021 (arXiv 2108.13264).
  One or two seeds have no interval, because they do not say how much another run would differ.
- **Human-normalised** scores are 0 for random play and 1 for a human tester.
- **Wall-clock** is that of all seeds of the row together.
- **Published** values were reached with other budgets and protocols, which are named.
"""
COLUMNS = ("method", "task", "protocol", "budget", "seeds", "score", "published", "wall-clock", "command")
COLUMNS += ("hardware", "commit", "date")
KEY = ("method", "task", "seeds", "command")
"""What tells one run from another."""


def wanted(path: Path = WANTED) -> list[dict[str, str]]:
    """Returns the runs wanted, in the order in which they are to be run."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def finished(results: Path = RESULTS) -> list[dict[str, Any]]:
    """Returns what each `run.json` says, and the folder it is in."""
    found = []
    for path in sorted(results.rglob("run.json")):
        runs = json.loads(path.read_text())
        found += [{**run, "folder": path.parent} for run in (runs if isinstance(runs, list) else [runs])]
    return found


def look_up(folder: Path, place: str) -> Any:
    """Returns the value at a place such as `score.json:elite:mean`; None if the last name is missing.

    Where the place before the last name holds a list, it is that of each of its members.
    """
    file, *keys, last = place.split(":")
    node = json.loads((folder / file).read_text())
    for key in keys:
        node = node[key]
    return [item.get(last) for item in node] if isinstance(node, list) else node.get(last)


def seeds_of(run: dict[str, Any], place: str) -> list[float]:
    """Returns one score for each seed of a run; a seed that diverged has none."""
    values = look_up(run["folder"], place)
    return [value for value in (values if isinstance(values, list) else [values]) if value is not None]


def number(value: float) -> str:
    """Writes a score: `6 936`, `20.1` or `0.025`."""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1_000 else f"{value:.4g}"


def scored(tasks: Iterable[list[float]]) -> str:
    """Writes the interquartile mean and its interval."""
    tasks = [task for task in tasks if task]
    if not tasks:
        return "diverged"
    found = interquartile_mean(*tasks)
    if found.low is None:
        few = min(map(len, tasks))
        return f"{number(found.value)} ({'one seed' if few == 1 else f'{few} seeds'}: no interval)"
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"


def listed(values: Iterable[Any]) -> str:
    """Writes the different values, in order of appearance."""
    return ", ".join(dict.fromkeys(str(value) for value in values))


def row_of(runs: list[dict[str, Any]], published: list[dict[str, str]]) -> dict[str, str]:
    """Returns the row of runs that differ by seed."""
    first = runs[0]
    scores = [seeds_of(run, run["score"]) for run in runs]
    return {
        "method": first["method"],
        "task": first["task"],
        "protocol": protocol_of(first),
        "budget": listed(run["budget"] for run in runs),
        "seeds": str(sum(map(len, scores))),
        "score": scored([[score for seeds in scores for score in seeds]]),
        "published": "; ".join(
            f"{line['value']} ({line['protocol']}; {line['source']})"
            for line in published
            if first["method"].startswith(line["method"]) and first["task"].startswith(line["task"])
        ),
        "wall-clock": minutes(run["seconds"] for run in runs),
        "command": f"`{without_seed(first['command'])}`",
        **{name: listed(run[name] for run in runs) for name in ("hardware", "commit", "date")},
    }


def minutes(seconds: Iterable[float | None]) -> str:
    """Writes the time of all runs together."""
    spent = list(seconds)
    known = [each for each in spent if each is not None]
    return f"{sum(known) / 60:.0f} min" if len(known) == len(spent) else "not noted"


def protocol_of(run: dict[str, Any]) -> str:
    """Returns how a score was measured, as the score's file or the run says."""
    file, *keys, _ = run["score"].split(":")
    return run.get("protocol") or look_up(run["folder"], ":".join([file, *keys, "protocol"])) or "not noted"


def without_seed(command: str) -> str:
    """Returns a command without what differs between seeds."""
    return re.sub(r" --(seed \d+|resume|no-video)\b", "", command)


def over_tasks(method: str, runs: list[dict[str, Any]]) -> dict[str, str] | None:
    """Returns the row of human-normalised scores of a method over several games; None if there are none."""
    tasks: dict[str, list[float]] = {}
    for run in runs:
        place = re.sub(r"[^:]+$", "human_normalized", run["score"])
        tasks.setdefault(run["task"], []).extend(seeds_of(run, place))
    tasks = {task: scores for task, scores in tasks.items() if scores}
    if len(tasks) < 2:
        return None
    seeds = str(sum(map(len, tasks.values())))
    return {"method": method, "task": f"{len(tasks)} games, human-normalised", "seeds": seeds} | {
        "protocol": listed(map(protocol_of, runs)),
        "budget": listed(run["budget"] for run in runs),
        "score": scored(tasks.values()),
    }


def page(results: Path = RESULTS, wanted_path: Path = WANTED, published_path: Path = PUBLISHED) -> str:
    """Returns the page."""
    runs, published = finished(results), wanted(published_path)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    methods: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["method"], run["task"], protocol_of(run), without_seed(run["command"])), []).append(run)
        methods.setdefault((run["method"], protocol_of(run), run["budget"]), []).append(run)
    rows = [row_of(group, published) for _, group in sorted(groups.items())]
    rows += [row for (method, *_), group in sorted(methods.items()) if (row := over_tasks(method, group))]
    done = {tuple(run[name] for name in KEY) for run in runs}
    lines = [HEAD, "## What was run\n", *table(COLUMNS, rows)]
    missing = [line for line in wanted(wanted_path) if tuple(line[name] for name in KEY) not in done]
    lines += ["\n## Not run\n", "In the order in which they are to be run.\n"]
    shown = [{**line, "command": f"`{line['command']}`"} for line in missing]
    lines += table(("method", "task", "seeds", "budget", "command"), shown)
    return "\n".join(lines) + "\n"


def table(columns: Iterable[str], rows: Iterable[dict[str, str]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    columns = list(columns)
    body = [[row.get(name, "") for name in columns] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *body)]


if __name__ == "__main__":
    README.write_text(page())
