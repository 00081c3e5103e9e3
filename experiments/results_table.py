"""Makes experiments/README.md: what was run in one table, beside what was published, and what was not run.

    python experiments/results_table.py

It reads `results/**/run.json`, which say what was run and where in the files beside them the score is; `wanted.csv`,
the runs wanted in their order; and `published.csv`. `study.py` runs what is wanted and writes `run.json`.
"""

import ast
import csv
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from volvox.checkpoint import write_file
from volvox.report import interquartile_mean, read_metrics

HERE = Path(__file__).parent
RESULTS, WANTED, PUBLISHED, README = HERE / "results", HERE / "wanted.csv", HERE / "published.csv", HERE / "README.md"
HEAD = """# Experiments

This page is made by `python experiments/results_table.py` from the files in `experiments/results/`, `wanted.csv` and
`published.csv`; do not edit it. [docs/results.md](../docs/results.md) says what to conclude from the runs.

## Scripts

`--help` documents presets and flags of each. `study.py` runs what is listed below as not run, one after the other.

{scripts}

## How to read the tables

- **Score** is the interquartile mean over seeds (the mean of the middle half; with fewer than four seeds, the mean of
  all) with a 95% bootstrap interval that resamples seeds within each task, as Agarwal et al. 2021 (arXiv 2108.13264).
  One or two seeds have no interval, because they do not say how much another run would differ. With three the interval
  is the range of the seeds and covers less than 95% ([how much](../docs/comparing.md)). docs/results.md has plain means
  over seeds, with Student's t or standard deviations. Seeds that diverged are left out and counted in the row of their
  task; rows over several games leave them out. They take equally many seeds of each.
- **Protocol**: policies are deterministic or take their likeliest actions unless something else is said. Preprocessing,
  the number of episodes and their cutoff are named where the score's file has them.
- **Exact** is the mean over all no-op starts without sticky actions, each played once, and **human-normalised** the
  score with random play as 0 and a human tester as 1 (docs/results.md has percentages). Both columns are filled only
  for Atari runs whose networks were scored in these ways. Exact is left out where the score is of drawn actions;
  `score.json` has that of the likeliest.
- **Budget**: frames of a population count validation unless "of training" is said. A timestep has 4 frames
  on Atari, 5 on HalfCheetah, 4 on Hopper and 2 on InvertedPendulum.
- **Wall-clock** is that of all seeds of the row together, with whatever else ran on the machine: of the whole process
  for runs that `study.py` made, and of training for older ones.
- **Commit** is the one that the run began with and, where it was resumed with another, the last one. Commands have
  the flags of today.
- **Published** values were reached with other budgets and protocols, which are named.
"""
COLUMNS = ("method", "task", "protocol", "budget", "seeds", "score", "human-normalised", "exact", "published")
COLUMNS += ("wall-clock", "command", "hardware", "commit", "date", "note")
SIDE_BY_SIDE = """## Games side by side, {budget}

Mean returns with sticky actions (0.25, 100 episodes, at most 27 000 timesteps), human-normalised in parentheses;
several seeds are a mean of their middle half. A3C draws its actions; the others take the likeliest. In italics, frames
played in millions: a run ends with the generation or iteration that reaches its budget.
[docs/results.md](../docs/results.md#thirteen-games) says what these numbers can and cannot say.
"""
GAMES_BUDGET = "2.5 million frames"
KEY = ("method", "task", "seeds", "command")
"""What tells one run from another; a study refuses a line whose place holds a run with another command."""


def wanted(path: Path = WANTED) -> list[dict[str, str]]:
    """Returns the runs wanted, in the order in which they are to be run."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def scripts() -> list[str]:
    """Returns the lines of a table of the scripts, with the first line of each one's docstring."""
    texts = {path.name: path.read_text() for path in sorted(HERE.glob("*.py"))}
    about = {name: ast.get_docstring(ast.parse(text)) or "" for name, text in texts.items() if "__main__" in text}
    rows = [{"script": f"[{name}]({name})", "what it does": said.split("\n")[0]} for name, said in about.items()]
    return table(("script", "what it does"), rows)


def finished(results: Path = RESULTS) -> list[dict[str, Any]]:
    """Returns what each `run.json` says, and the folder it is in."""
    found = []
    for path in sorted(results.rglob("run.json")):
        runs = json.loads(path.read_text())
        found += [{**run, "folder": path.parent} for run in (runs if isinstance(runs, list) else [runs])]
    return found


def look_up(folder: Path, place: str) -> Any:
    """Returns the value at a place such as `score.json:elite:mean`.

    Where the place before the last name holds a list, it is that of each of its members; a member that is a list has
    numbers for names, and -1 is the last.

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
    except (IndexError, TypeError, ValueError) as error:  # the values on the way are of other kinds, or too few
        raise KeyError(place) from error


def seeds_of(run: dict[str, Any], place: str) -> list[float | None]:
    """Returns one score for each seed of a run; that of a seed that diverged is None.

    Raises:
      FileNotFoundError, KeyError: There is no such place, or no numbers are there.
    """
    found = look_up(run["folder"], place)
    values = found if isinstance(found, list) else [found]
    if not values or not all(value is None or isinstance(value, int | float) for value in values):
        raise KeyError(place)
    return values


def has_diverged(run: dict[str, Any]) -> bool:
    """Whether there is a score of no seed, because all diverged."""
    return "interval" not in run and all(score is None for score in seeds_of(run, run["score"]))


def number(value: float) -> str:
    """Writes a score: `6 936`, `20.1` or `0.025`."""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1_000 else f"{value:.4g}"


def scored(*tasks: Sequence[float | None]) -> str:
    """Writes the interquartile mean and its interval, of the seeds that did not diverge, and how many did."""
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
    """Writes the different values, in order of appearance."""
    return ", ".join(dict.fromkeys(str(value) for value in values))


def row_of(runs: list[dict[str, Any]], published: list[dict[str, str]]) -> dict[str, str]:
    """Returns the row of runs that differ by seed."""
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
            f"{line['value']} ({line['protocol']}; {line['source']})"
            for line in published
            if first["method"].startswith(line["method"]) and first["task"].startswith(line["task"])
        ),
        "wall-clock": minutes(run["seconds"] for run in runs),
        "command": f"`{without_seed(first['command'])}`",
        **{name: listed(run[name] for run in runs) for name in ("hardware", "commit", "date")},
        "note": listed(run["note"] for run in runs if "note" in run),
    }


def of_all_seeds(run: dict[str, Any]) -> tuple[int, str]:
    """Returns the number of seeds, and a score that is of all of them together with its interval."""
    seeds = re.fullmatch(r"(\d+)-(\d+)", run["seeds"])
    if seeds is None:
        raise ValueError(
            f"{run['folder']}: seeds {run['seeds']!r} with an interval; give the first and last, as in 0-7."
        )
    value, (low, high) = (look_up(run["folder"], run[name]) for name in ("score", "interval"))
    return int(seeds[2]) - int(seeds[1]) + 1, f"{number(value)} [{number(low)}, {number(high)}]"


def human_normalized(run: dict[str, Any]) -> list[float]:
    """Returns the human-normalised score of each seed; none where the score's file has none."""
    if not run["score"].endswith(":mean"):
        return []
    score = look_up(run["folder"], run["score"].removesuffix(":mean"))
    return [] if score.get("human_normalized") is None else [score["human_normalized"]]


def exact(run: dict[str, Any]) -> list[float]:
    """Returns the exact score of each seed: where `run.json` says it is, or beside the score; none if there is none."""
    if "exact" in run:
        return [look_up(run["folder"], run["exact"])]
    file, *keys = run["score"].split(":")
    if len(keys) != 2 or f"{keys[0]}, exact" not in json.loads((run["folder"] / file).read_text()):
        return []
    return [look_up(run["folder"], f"{file}:{keys[0]}, exact:{keys[1]}")]


def middle(values: Iterable[float]) -> str:
    """Writes the interquartile mean of what there is."""
    values = list(values)
    return number(interquartile_mean(values).value) if values else ""


def minutes(seconds: Iterable[float | None]) -> str:
    """Writes the time of all runs together."""
    spent = list(seconds)
    known = [each for each in spent if each is not None]
    return f"{sum(known) / 60:.0f} min" if len(known) == len(spent) else "not noted"


def protocol_of(run: dict[str, Any]) -> str:
    """Returns how a score was measured, as the run or the score's file says."""
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
    """Returns a command without what differs between seeds."""
    return re.sub(r" --(seed \d+|resume|no-video)\b", "", command)


def first_seeds(tasks: Iterable[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Returns the runs of the first seeds of each task, as many as there are of the one that has the fewest."""
    ordered = [sorted(runs, key=lambda run: [int(seed) for seed in re.findall(r"\d+", run["seeds"])]) for runs in tasks]
    return [runs[: min(map(len, ordered))] for runs in ordered]


def over_tasks(method: str, runs: list[dict[str, Any]]) -> dict[str, str] | None:
    """Returns the row of human-normalised scores of a method over several games; None if there are none.

    Every game counts alike: where some have more seeds than others, the first seeds of each are taken.
    """
    tasks: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if human_normalized(run):
            tasks.setdefault(run["task"], []).append(run)
    if len(tasks) < 2:
        return None
    few, many = (choose(map(len, tasks.values())) for choose in (min, max))
    seeds = f"{few} a game" if few == many else f"the first {few} of each"
    taken = first_seeds(tasks.values())
    runs = [run for task in taken for run in task]
    return {"method": method, "task": f"{', '.join(tasks)}, human-normalised", "seeds": seeds} | {
        "protocol": listed(map(protocol_of, runs)),
        "score": scored(*([human_normalized(run)[0] for run in task] for task in taken)),
        "wall-clock": minutes(run["seconds"] for run in runs),
        "command": "those of the games",
        "note": listed(run["note"] for run in runs if "note" in run),
        **{name: listed(run[name] for run in runs) for name in ("budget", "hardware", "commit", "date")},
    }


def side_by_side(runs: list[dict[str, Any]], budget: str = GAMES_BUDGET) -> list[str]:
    """Returns the lines of a table with games as rows and methods as columns; none if no run has this budget.

    The last rows are interquartile means of human-normalised scores over all these games, where two methods have them.
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
    """Writes what a method has in a game: its score, human-normalised, its seeds if several, and frames in millions."""
    score = middle(score for run in runs for score in seeds_of(run, run["score"]) if score is not None)
    human = interquartile_mean([value for run in runs for value in human_normalized(run)]).value
    frames = [read_metrics(run["folder"] / "metrics.jsonl")[-1]["frames"] / 1e6 for run in runs]
    number_of_seeds = f", {len(runs)} seeds" if len(runs) > 1 else ""
    return f"{score} ({human:.1%}{number_of_seeds}) *{listed(f'{x:.2f}' for x in frames)}*"


def page(results: Path = RESULTS, wanted_path: Path = WANTED, published_path: Path = PUBLISHED) -> str:
    """Returns the page."""
    runs, published = finished(results), wanted(published_path)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    methods: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for run in sorted(runs, key=has_diverged):  # those last, because they have no protocol of their own
        key = (run["method"], run["task"], protocol_of(run), without_seed(run["command"]))
        if has_diverged(run):
            key = next((other for other in groups if (*other[:2], other[3]) == (*key[:2], key[3])), key)
        groups.setdefault(key, []).append(run)
        if run["budget"] != GAMES_BUDGET:  # `side_by_side` has rows over games for it, of methods with the same games
            methods.setdefault((run["method"], protocol_of(run), run["budget"]), []).append(run)
    rows = [row_of(group, published) for _, group in sorted(groups.items())]
    rows += [row for (method, *_), group in sorted(methods.items()) if (row := over_tasks(method, group))]
    done = {tuple(run[name] for name in KEY) for run in runs}
    head = HEAD.format(scripts="\n".join(scripts()))
    lines = [head, *side_by_side(runs), "## What was run\n", *table(COLUMNS, rows)]
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
    write_file(README, page())
