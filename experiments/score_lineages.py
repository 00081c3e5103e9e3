"""Scores the networks of committed lineages under both protocols, exact and with sticky actions.

    python experiments/score_lineages.py --runs atari_ga/frostbite/ga low_rank/ga_seaquest/full

Writes `experiments/results/lineages/scores.json`; lineages that are there already and are not asked for stay.
"""

import dataclasses
import datetime
import json
import os
import sys
from pathlib import Path

import tyro
from launch import score_values

import volvox as vx
from volvox.provenance import processor, versions

RESULTS = Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Scores committed lineages.

    Attributes:
      runs: directories under `experiments/results` with `elite.json` and `config.json`; none: all there are.
      episodes: with sticky actions.
      seed: of the environments with sticky actions.
    """

    runs: tuple[str, ...] = ()
    episodes: int = 100
    seed: int = 1_000_003


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    path = RESULTS / "lineages" / "scores.json"
    runs = settings.runs or sorted(str(lineage.parent.relative_to(RESULTS)) for lineage in RESULTS.rglob("elite.json"))
    for run in runs:
        loaded = vx.load(RESULTS / run)
        sticky = loaded.evaluate(settings.episodes, protocol="sticky", seed=settings.seed)
        scores = {"exact": loaded.evaluate(protocol="exact"), "sticky": sticky}
        print(*(f"{run}: {score}" for score in scores.values()), sep="\n", flush=True)
        how = {
            "command": f"python experiments/score_lineages.py --runs {run} --episodes {settings.episodes}",
            "seed": settings.seed,
            "date": datetime.date.today().isoformat(),
            "hardware": f"{len(os.sched_getaffinity(0))} cores of {processor()}",
            "versions": versions(),
        }
        saved = json.loads(path.read_text()) if path.exists() else {}
        saved[run] = how | {name: score_values(score) for name, score in scores.items()}
        path.write_text(json.dumps(dict(sorted(saved.items())), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
