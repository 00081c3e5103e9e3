"""Makes experiments/README.md: a table of all runs beside published scores, and a list of runs that are not done yet.

    python experiments/results_table.py

It reads `results/**/run.json`, which describe runs and the place of their scores, `wanted.csv`, the list of all runs,
and `published.csv`. `study.py` runs the list and writes `run.json`.
"""

import argparse
import ast
import csv
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from volvox.report import interquartile_mean, read_metrics
from volvox.report.files import write_file

HERE = Path(__file__).parent
RESULTS, WANTED, PUBLISHED, README = HERE / "results", HERE / "wanted.csv", HERE / "published.csv", HERE / "README.md"
HEAD = """# Experiments

`python experiments/results_table.py` makes this page from `experiments/results/`, `wanted.csv` and `published.csv`; do
not edit it. [docs/results/index.md](../docs/results/index.md) draws the conclusions.

## Scripts

`--help` documents each, and `atari_ga.py desktop --help` the flags of a preset. `study.py` runs the list of runs that
are not done yet. `benchmark.py` compares learning with references ([results](results/benchmark/small.md)).

{scripts}

## Columns

- **Score**: interquartile mean over seeds with a 95% bootstrap interval that resamples seeds within each task (Agarwal
  et al. 2021, arXiv 2108.13264). One or two seeds have no interval. The interval of three seeds is their range and
  covers less than 95% ([how much](../docs/how-to/compare.md)). Seeds that diverged are counted and left out.
- **Protocol**: policies take their likeliest actions unless the protocol says otherwise.
- **Exact**: mean over all no-op starts without sticky actions, each played once. **Human-normalised**: random play is 0
  and a human tester is 1. Both are for Atari only.
- **Budget**: frames of a population include validation unless it says "of training". A timestep has 4 frames on Atari,
  5 on HalfCheetah, 4 on Hopper and 2 on InvertedPendulum.
- **Wall-clock**: time of all seeds of the row together. **Command**: as it ran at that commit. Defaults may
  have changed since, such as `lag` of PQN; `config.json` of a run has the values that were used.
- **Published** values were reached with other budgets and protocols, which are named.
"""
COLUMNS = ("method", "task", "protocol", "budget", "seeds", "score", "human-normalised", "exact", "published")
COLUMNS += ("wall-clock", "command", "hardware", "commit", "date", "note")
SIDE_BY_SIDE = """## Games side by side, {budget}

Mean returns with sticky actions (0.25, 100 episodes, at most 27 000 timesteps), human-normalised in parentheses, and
frames played in millions in italics. A3C samples its actions; the others take the likeliest.
"""
GAMES_BUDGET = "2.5 million frames"
BESIDE = {"A2C": "A3C"}
"""Method whose runs a published method is compared with, where the names differ."""
KEY = ("method", "task", "seeds", "command")
"""Columns that identify a run."""


def wanted(path: Path = WANTED) -> list[dict[str, str]]:
    """Reads the list of all runs, in the order in which `study.py` runs them."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def scripts() -> list[str]:
    """Returns the lines of a table of the scripts, with the first line of each one's docstring."""
    texts = {path.name: path.read_text() for path in sorted(HERE.glob("*.py"))}
    about = {name: ast.get_docstring(ast.parse(text)) or "" for name, text in texts.items() if "__main__" in text}
    rows = [{"script": f"[{name}]({name})", "what it does": said.split("\n")[0]} for name, said in about.items()]
    return table(("script", "what it does"), rows)


def finished(results: Path = RESULTS) -> list[dict[str, Any]]:
    """Returns the contents of each `run.json`, and its folder."""
    found = []
    for path in sorted(results.rglob("run.json")):
        runs = json.loads(path.read_text())
        found += [{**run, "folder": path.parent} for run in (runs if isinstance(runs, list) else [runs])]
    return found


def look_up(folder: Path, place: str) -> Any:
    """Returns the value at a place such as `score.json:elite:mean`.

    If the place before the last name is a list, this returns the value of each of its members. The names of members of
    a list are numbers, and -1 is the last.

    Raises:
      FileNotFoundError: There is no such file.
      KeyError: There is no such place in it.
    """
    file, *keys, last = place.split(":")
    node = json.loads((folder / file).read_text())
    try:
        for key in keys:
            node = node[key]
        if isinstance(node, list):
            return [item[int(last) if isinstance(item, list) else last] for item in node]
        return node[last]
    except (IndexError, TypeError, ValueError) as error:  # values of other kinds
        raise KeyError(place) from error


def seeds_of(run: dict[str, Any], place: str) -> list[float | None]:
    """Returns the score of each seed of a run; None for seeds that diverged.

    Raises:
      FileNotFoundError, KeyError: There is no such place, or no numbers are there.
    """
    found = look_up(run["folder"], place)
    values = found if isinstance(found, list) else [found]
    if not values or not all(value is None or isinstance(value, int | float) for value in values):
        raise KeyError(place)
    return values


def has_diverged(run: dict[str, Any]) -> bool:
    """Whether all seeds diverged."""
    return "interval" not in run and all(score is None for score in seeds_of(run, run["score"]))


def number(value: float) -> str:
    """Writes a score: `6 936`, `20.1` or `0.025`."""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1_000 else f"{value:.4g}"


def scored(*tasks: Sequence[float | None]) -> str:
    """Writes the interquartile mean and its interval, and the number of seeds that diverged."""
    finite = [kept for task in tasks if (kept := [score for score in task if score is not None])]
    lost = sum(map(len, tasks)) - sum(map(len, finite))
    if not finite:
        return "diverged"
    diverged = f"; {lost} of {sum(map(len, tasks))} seeds diverged and are left out" if lost else ""
    found, few = interquartile_mean(*finite), min(map(len, finite))
    if found.low is None:
        return f"{number(found.value)} ({'one seed' if few == 1 else f'{few} seeds'}: no interval){diverged}"
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]{diverged}"


def listed(values: Iterable[Any]) -> str:
    """Writes the distinct values, in order of appearance."""
    return ", ".join(dict.fromkeys(str(value) for value in values))


def row_of(runs: list[dict[str, Any]], published: list[dict[str, str]]) -> dict[str, str]:
    """Returns the row of runs that differ only in their seeds."""
    first = runs[0]
    scores = [score for run in runs for score in seeds_of(run, run["score"])]
    seeds, score = of_all_seeds(first) if "interval" in first else (len(scores), scored(scores))
    return {
        "method": first["method"],
        "task": first["task"],
        "protocol": protocol_of(first),
        "budget": listed(run["budget"] for run in runs),
        "seeds": str(seeds),
        "score": score,
        "human-normalised": middle(value for run in runs for value in human_normalized(run)),
        "exact": middle(value for run in runs for value in exact(run)),
        "published": "; ".join(
            (f"{line['method']} " if line["method"] in BESIDE else "")
            + f"{line['value']} ({line['protocol']}; {line['source']})"
            for line in published
            if first["method"].startswith(BESIDE.get(line["method"], line["method"]))
            and first["task"].startswith(line["task"])
        ),
        "wall-clock": minutes(run["seconds"] for run in runs),
        "command": f"`{without_seed(first['command'])}`",
        **{name: listed(run[name] for run in runs) for name in ("hardware", "commit", "date")},
        "note": listed(run["note"] for run in runs if "note" in run),
    }


def of_all_seeds(run: dict[str, Any]) -> tuple[int, str]:
    """Returns the number of seeds, and the score and interval that the run itself computed over its seeds."""
    seeds = re.fullmatch(r"(\d+)-(\d+)", run["seeds"])
    if seeds is None:
        raise ValueError(
            f"{run['folder']}: seeds {run['seeds']!r} with an interval; give the first and last, as in 0-7."
        )
    value, (low, high) = (look_up(run["folder"], run[name]) for name in ("score", "interval"))
    return int(seeds[2]) - int(seeds[1]) + 1, f"{number(value)} [{number(low)}, {number(high)}]"


def human_normalized(run: dict[str, Any]) -> list[float]:
    """Returns the human-normalised scores of a run, if it has any."""
    if not run["score"].endswith(":mean"):
        return []
    score = look_up(run["folder"], run["score"].removesuffix(":mean"))
    return [] if score.get("human_normalized") is None else [score["human_normalized"]]


def exact(run: dict[str, Any]) -> list[float]:
    """Returns the exact scores of a run: at the place that `run.json` names, or beside the score; [] without one."""
    if "exact" in run:
        return [look_up(run["folder"], run["exact"])]
    file, *keys = run["score"].split(":")
    if len(keys) != 2 or f"{keys[0]}, exact" not in json.loads((run["folder"] / file).read_text()):
        return []
    return [look_up(run["folder"], f"{file}:{keys[0]}, exact:{keys[1]}")]


def middle(values: Iterable[float]) -> str:
    """Writes the interquartile mean of the values, if there are any."""
    values = list(values)
    return number(interquartile_mean(values).value) if values else ""


def minutes(seconds: Iterable[float | None]) -> str:
    """Writes the time of all runs together."""
    spent = list(seconds)
    known = [each for each in spent if each is not None]
    return f"{sum(known) / 60:.0f} min" if len(known) == len(spent) else "not noted"


def protocol_of(run: dict[str, Any]) -> str:
    """Returns the protocol of a score, from the run or the file of the score."""
    if run.get("protocol"):
        return run["protocol"]
    file, *keys, _ = run["score"].split(":")
    saved = score = json.loads((run["folder"] / file).read_text())
    for key in keys:
        score = score[key]
    if not isinstance(score, dict):
        return "not noted"
    protocol = score.get("about") or score.get("protocol") or "not noted"
    protocol += ", sampled actions" * keys[-1].endswith(", sampled") if keys else ""
    which = saved.get("of", {}).get("which") if [key.split(",")[0] for key in keys] == ["policy"] else None
    return f"{protocol}, {which} policy" if which else protocol


def without_seed(command: str) -> str:
    """Returns a command without the flags that differ between seeds."""
    return re.sub(r" --(seed \d+|resume|no-video)\b", "", command)


def first_seeds(tasks: Iterable[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Returns the runs of the first seeds of each task, equally many of each."""
    ordered = [sorted(runs, key=lambda run: [int(seed) for seed in re.findall(r"\d+", run["seeds"])]) for runs in tasks]
    return [runs[: min(map(len, ordered))] for runs in ordered]


def side_by_side(runs: list[dict[str, Any]], budget: str = GAMES_BUDGET) -> list[str]:
    """Returns the lines of a table with games as rows and methods as columns; [] if no run has this budget.

    The last rows are interquartile means of human-normalised scores of the methods that have runs of all games.
    """
    cells: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in runs:
        if run["budget"] == budget and human_normalized(run):
            cells.setdefault(run["task"], {}).setdefault(run["method"], []).append(run)
    if not cells:
        return []
    methods = sorted({method for game in cells.values() for method in game}, key=lambda name: (len(name), name))
    rows = []
    for game, played in sorted(cells.items()):
        by_chance = middle(
            {look_up(run["folder"], "score.json:random:mean") for each in played.values() for run in each}
        )
        rows.append({"game": game, "random play": by_chance} | {name: cell(each) for name, each in played.items()})
    complete = [method for method in methods if all(method in played for played in cells.values())]
    over = [(f"all {len(cells)} games", [*cells])]
    if "Skiing-v5" in cells:
        over.append(("without Skiing", [game for game in cells if game != "Skiing-v5"]))
    for about, games in over:
        if len(complete) > 1 and len(games) > 1:
            taken = {m: first_seeds(cells[game][m] for game in games) for m in complete}
            scores = {m: [[human_normalized(run)[0] for run in each] for each in found] for m, found in taken.items()}
            means = {m: f"{interquartile_mean(*each).value:.1%}" for m, each in scores.items()}
            rows.append({"game": f"human-normalised, {about}", **means})
    return [SIDE_BY_SIDE.format(budget=budget), *table(("game", "random play", *methods), rows), ""]


def cell(runs: list[dict[str, Any]]) -> str:
    """Writes score, human-normalised score, number of seeds, and frames in millions of a method in a game."""
    score = middle(score for run in runs for score in seeds_of(run, run["score"]) if score is not None)
    human = interquartile_mean([value for run in runs for value in human_normalized(run)]).value
    frames = [read_metrics(run["folder"] / "metrics.jsonl")[-1]["frames"] / 1e6 for run in runs]
    number_of_seeds = f", {len(runs)} seeds" if len(runs) > 1 else ""
    return f"{score} ({human:.1%}{number_of_seeds}) *{listed(f'{x:.2f}' for x in frames)}*"


def page(results: Path = RESULTS, wanted_path: Path = WANTED, published_path: Path = PUBLISHED) -> str:
    """Returns the page."""
    runs, published = finished(results), wanted(published_path)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for run in sorted(runs, key=has_diverged):  # diverged runs have no protocol of their own, and join a group
        key = (run["method"], run["task"], protocol_of(run), without_seed(run["command"]))
        if has_diverged(run):
            key = next((other for other in groups if (*other[:2], other[3]) == (*key[:2], key[3])), key)
        groups.setdefault(key, []).append(run)
    done = {tuple(run[name] for name in KEY) for run in runs}
    missing: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line in wanted(wanted_path):
        if tuple(line[name] for name in KEY) not in done:
            missing.setdefault((line["method"], line["task"], without_seed(line["command"])), []).append(line)
    lines = [
        HEAD.format(scripts="\n".join(scripts())),
        *side_by_side(runs),
        "## Runs\n",
        *table(COLUMNS, [row_of(group, published) for _, group in sorted(groups.items())]),
        "\n## Not run\n",
        "Seeds in the order in which `study.py` runs them, and the command of the first.\n",
        *table(
            ("method", "task", "seeds", "budget", "command"),
            [
                {**same[0], "seeds": listed(line["seeds"] for line in same), "command": f"`{same[0]['command']}`"}
                for same in missing.values()
            ],
        ),
    ]
    return "\n".join(lines) + "\n"


def table(columns: Iterable[str], rows: Iterable[dict[str, str]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    columns = list(columns)
    body = [[row.get(name, "") for name in columns] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *body)]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    write_file(README, page())
