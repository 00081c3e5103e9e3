"""Compares the speed of two checkouts: their benchmarks in turns, on one machine.

    git worktree add ../before <commit>
    python benchmarks/before_after.py --before ../before --pairs 5 --json

Each pair runs a benchmark of the checkout before and of this one right after one another, in alternating order, each in
a process of its own with its own `src/`. A ratio is the rate after over the rate before: above 1 is faster. Sizes are
smaller than those of the benchmarks' committed results, so that a pair of all takes about ten minutes on two cores.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any

import tyro
from parts import machine, show

Flag = tyro.conf.arg

BENCHMARKS = {
    "population_forward": ("--repeats", "30"),
    "population_rollout": ("--population", "96", "--num-envs", "32", "--naive-batches", "0", "--no-memory"),
    "actor_critic": ("--seconds", "8"),
    "td3": ("--iterations", "4"),
    "gradients": ("--repeats", "30"),
    "ppo": ("--seconds", "8", "--turns", "1"),
}
"""Name -> flags."""
RATES = {
    "population_forward": ("volvox_ms", "shared_ms"),
    "population_rollout": ("stepped_per_s", "inference_steps_per_s"),
    "actor_critic": ("steps_per_s", "train_steps_per_s", "env_steps_per_s"),
    "td3": ("updates_per_s", "loop_steps_per_s"),
    "gradients": ("volvox_per_s", "volvox_alone_per_s"),
    "ppo": ("steps_per_s", "train_steps_per_s"),
}
"""Name -> figures to compare; milliseconds are turned into rates."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of the comparison."""

    before: Annotated[Path, Flag(help="checkout of the commit to compare with")]
    pairs: Annotated[int, Flag(help="runs of each checkout")] = 5
    only: Annotated[tuple[str, ...], Flag(help="names of benchmarks")] = tuple(BENCHMARKS)
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def figures_of(checkout: Path, name: str) -> dict[str, float]:
    """Runs one benchmark of a checkout and returns its rates; raises CalledProcessError where it fails."""
    # Compiled programs are kept, one cache for each checkout, so that repeated runs begin sooner.
    cache = {"JAX_COMPILATION_CACHE_DIR": str(checkout / "runs" / "compilation_cache")}
    environment = {**os.environ, **cache, "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, str(checkout / "benchmarks" / f"{name}.py"), *BENCHMARKS[name], "--json"]
    run = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    return {figure: 1_000 / found[figure] if figure.endswith("_ms") else found[figure] for figure in RATES[name]}


def compare(options: Options, name: str) -> dict[str, Any]:
    """The rates of both checkouts, pair by pair, and their ratios."""
    here = Path(__file__).resolve().parent.parent
    runs: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    for pair in range(options.pairs):
        sides = [("before", options.before.resolve()), ("after", here)]
        for side, checkout in sides if pair % 2 == 0 else reversed(sides):
            runs[side].append(figures_of(checkout, name))
            print(f"{name} {pair + 1}/{options.pairs} {side}: {runs[side][-1]}", file=sys.stderr, flush=True)
    table = {}
    for figure in RATES[name]:
        before, after = ([run[figure] for run in runs[side]] for side in ("before", "after"))
        ratios = [new / old for old, new in zip(before, after, strict=True)]
        summary = {"median_ratio": median(ratios), "geometric_mean_ratio": geometric_mean(ratios)}
        summary |= {"ratio_of_best": max(after) / max(before), "range": [min(ratios), max(ratios)]}
        table[figure] = summary | {"before": before, "after": after}
    return table


def commit(checkout: Path) -> str:
    """The commit a checkout stands at."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    commits = {"before": commit(options.before), "after": commit(Path(__file__).parent)}
    figures = {name: compare(options, name) for name in options.only}
    show(figures | {"pairs": options.pairs, "commits": commits, **machine()}, options.json)


if __name__ == "__main__":
    main()
