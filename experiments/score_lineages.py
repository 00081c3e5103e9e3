"""Scores the networks of committed lineages under both protocols, exact and with sticky actions.

    python experiments/score_lineages.py --runs atari_ga/frostbite/ga low_rank/ga_seaquest/full

Writes `experiments/results/lineages/scores.json`; lineages that are there already and are not asked for stay.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import tyro
from launch import exit_code
from scores import made_here, score_values

import volvox as vx
from volvox.report.files import write_file
from volvox.runs.provenance import versions

RESULTS = Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Scores committed lineages.

    Attributes:
      runs: directories under `experiments/results` with `elite.json` and `config.json`; default: those that have no
        exact score in a `score.json` of their own.
      episodes: with sticky actions.
      seed: of the environments with sticky actions.
    """

    runs: tuple[str, ...] = ()
    episodes: int = 100
    seed: int = 1_000_003


def score_of(run: str) -> dict[str, Any]:
    """What `score.json` of a run has; nothing where there is none."""
    path = RESULTS / run / "score.json"
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    path = RESULTS / "lineages" / "scores.json"
    lineages = sorted(str(lineage.parent.relative_to(RESULTS)) for lineage in RESULTS.rglob("elite.json"))
    runs = settings.runs or tuple(run for run in lineages if "elite, exact" not in score_of(run))
    for path_needed in (RESULTS / run / name for run in runs for name in ("config.json", "elite.json")):
        if not path_needed.exists():  # before minutes of play
            raise ValueError(f"{path_needed} does not exist; give runs that have a lineage.")
    for run in runs:
        loaded = vx.load(RESULTS / run)
        sticky = loaded.evaluate(settings.episodes, protocol="sticky", seed=settings.seed)
        scores = {"exact": loaded.evaluate(protocol="exact"), "sticky": sticky}
        print(*(f"{run}: {score}" for score in scores.values()), sep="\n", flush=True)
        how = {
            "command": f"python experiments/score_lineages.py --runs {run} --episodes {settings.episodes} "
            f"--seed {settings.seed}",
            **made_here(),
            "versions": versions(),
        }
        saved = json.loads(path.read_text()) if path.exists() else {}
        saved[run] = how | {name: score_values(score) for name, score in scores.items()}
        write_file(path, json.dumps(dict(sorted(saved.items())), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
