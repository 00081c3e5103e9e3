"""Compares methods by several runs of each, and writes table and picture: `volvox compare` with files.

    python experiments/compare_runs.py --runs ga=runs/ga random_search=runs/random_search --out runs/comparison

A word is a run directory, or a directory of seeds (`seed-0`, `seed-1`, ...), with the name of its method before it.
Writes `comparison.json`, `comparison.md` and `comparison.png`. Where every run has a `score.json` (`--score-episodes`),
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
from volvox.report.runs import has_diverged, methods_of, run_dirs

import volvox as vx
from volvox.report import interquartile_mean, probability_of_improvement
from volvox.report.files import write_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Methods compared by their runs.

    Attributes:
      runs: Directories with the names of their methods, such as ga=runs/ga; a name may be there several times.
      out: Directory of what is written.
      metric: The metric that is compared; default: the most telling one that all runs have.
      x: What counts the expense: frames, seconds, step, or another metric; older runs have training_frames, too.
    """

    runs: tuple[str, ...]
    out: Path
    metric: str | None = None
    x: str = "frames"


def final_scores(methods: dict[str, list[Path]]) -> dict[str, Any]:
    """Interquartile means of the scores in score.json, and probabilities of improvement; {} where a run has none.

    Runs that diverged are left out.
    """
    places = {name: [place for run in runs for place in run_dirs(run)] for name, runs in methods.items()}
    paths = {name: [place / "score.json" for place in own if not has_diverged(place)] for name, own in places.items()}
    if not all(path.exists() for own in paths.values() for path in own):
        return {}
    scores = {name: [final_score(path) for path in own] for name, own in paths.items()}
    means = {name: interquartile_mean(own)._asdict() for name, own in scores.items()}
    pairs = itertools.combinations(scores, 2)
    chances = {f"{a} over {b}": probability_of_improvement([scores[a]], [scores[b]])._asdict() for a, b in pairs}
    return {"scores": scores, "interquartile_mean": means, "probability_of_improvement": chances}


def final_score(path: Path) -> float:
    """The score of what a run learned, which populations call elite and learners policy; ValueError without either."""
    saved = json.loads(path.read_text())
    for name in ("elite", "policy"):
        if name in saved:
            return saved[name]["mean"]
    raise ValueError(f"{path} has neither an elite nor a policy, but {', '.join(saved)}; score the run again.")


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    methods = methods_of(settings.runs)
    comparison = vx.compare(methods, metric=settings.metric, x=settings.x)
    final = final_scores(methods) if len(comparison.tasks) == 1 else {}
    settings.out.mkdir(parents=True, exist_ok=True)
    comparison.plot(settings.out / "comparison.png")
    write_file(settings.out / "comparison.md", comparison.markdown())
    about = {name: getattr(comparison, name) for name in ("metric", "x", "budget", "tasks", "rows", "pairs", "notes")}
    write_file(settings.out / "comparison.json", json.dumps({**about, "final": final}, indent=1) + "\n")
    print(comparison)
    if final:
        print(f"\nby score.json: {json.dumps(final['interquartile_mean'])}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
