"""Compares methods over several runs of each, and writes table and picture: `volvox compare` with files.

    python experiments/compare_runs.py --runs ga=runs/ga random_search=runs/random_search --out runs/comparison

Each word is a run directory, or a directory of seeds (`seed-0`, `seed-1`, ...), with the name of its method before it.
Writes `comparison.json`, `comparison.md` and `comparison.png`. If every run has a `score.json` (`--score-episodes`),
the scores of the final policies are compared in the same way.
"""

import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import tyro
from launch import exit_code

import volvox as vx
from volvox.report import interquartile_mean, probability_of_improvement
from volvox.report.comparison import find_runs, parse_methods
from volvox.report.files import DIVERGED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Comparison of methods.

    Attributes:
      runs: Directories with the names of their methods, such as ga=runs/ga; a name may occur several times.
      out: Directory of the results.
      metric: Metric to compare; default: the most informative one that all runs have.
      x: Metric that measures the budget: frames, seconds, step, or another one.
    """

    runs: tuple[str, ...]
    out: Path
    metric: str | None = None
    x: str = "frames"


def final_scores(methods: dict[str, list[str]]) -> dict[str, Any]:
    """Compares the scores in score.json of runs that did not diverge; {} if a run has none."""
    runs = {name: [run for path in paths for run in find_runs(path)] for name, paths in methods.items()}
    paths = {name: [run / "score.json" for run in own if not (run / DIVERGED).exists()] for name, own in runs.items()}
    if not all(path.exists() for path in itertools.chain(*paths.values())):
        return {}
    scores = {name: [final_score(json.loads(path.read_text())) for path in own] for name, own in paths.items()}
    means = {name: interquartile_mean(own)._asdict() for name, own in scores.items()}
    pairs = itertools.combinations(scores, 2)
    chances = {f"{a} over {b}": probability_of_improvement([scores[a]], [scores[b]])._asdict() for a, b in pairs}
    return {"scores": scores, "interquartile_mean": means, "probability_of_improvement": chances}


def final_score(saved: dict[str, Any]) -> float:
    """Returns the score of the result of a run: the elite of a population, or the policy of a learner."""
    return saved["elite" if "elite" in saved else "policy"]["mean"]


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    methods = parse_methods(settings.runs)
    comparison = vx.compare(methods, metric=settings.metric, x=settings.x, pairs=True)
    final = final_scores(methods) if len(comparison.tasks) == 1 else {}
    settings.out.mkdir(parents=True, exist_ok=True)
    comparison.plot(settings.out / "comparison.png")
    (settings.out / "comparison.md").write_text(f"{comparison}\n")
    names = ("metric", "x", "budget", "tasks", "rows", "pairs", "notes")
    values = {name: getattr(comparison, name) for name in names} | {"final": final}
    (settings.out / "comparison.json").write_text(json.dumps(values, indent=1) + "\n")
    print(comparison)
    if final:
        print(f"\nby score.json: {json.dumps(final['interquartile_mean'])}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
