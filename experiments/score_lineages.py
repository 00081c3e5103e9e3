"""Scores the networks of committed lineages by two protocols, exact and with sticky actions.

    python experiments/score_lineages.py --runs atari_ga/frostbite/ga low_rank/ga_seaquest/full

Updates `experiments/results/lineages/scores.json`.
"""

import dataclasses
import json
import sys
from pathlib import Path

import tyro
from launch import exit_code
from scores import hardware_and_date, score_values

import volvox as vx
from volvox.report.files import write_file
from volvox.runs.directory import versions

RESULTS = Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Scores of committed lineages.

    Attributes:
      runs: directories under `experiments/results` with `elite.json` and `config.json`; default: runs without an exact
        score in their `score.json`.
      episodes: episodes with sticky actions.
      seed: seed of the environments with sticky actions.
    """

    runs: tuple[str, ...] = ()
    episodes: int = 100
    seed: int = 1_000_003


def has_exact_score(run: Path) -> bool:
    path = run / "score.json"
    return path.exists() and "elite, exact" in json.loads(path.read_text())


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    path = RESULTS / "lineages" / "scores.json"
    lineages = sorted(file.parent for file in RESULTS.rglob("elite.json"))
    for run in settings.runs or [str(run.relative_to(RESULTS)) for run in lineages if not has_exact_score(run)]:
        loaded = vx.load(RESULTS / run)
        sticky = loaded.evaluate(settings.episodes, protocol="sticky", seed=settings.seed)
        scores = {"exact": loaded.evaluate(protocol="exact"), "sticky": sticky}
        print(*(f"{run}: {score}" for score in scores.values()), sep="\n", flush=True)
        flags = f"--runs {run} --episodes {settings.episodes} --seed {settings.seed}"
        command = f"python experiments/score_lineages.py {flags}"
        about = {"command": command, **hardware_and_date(), "versions": versions()}
        saved = json.loads(path.read_text()) if path.exists() else {}
        saved[run] = about | {name: score_values(score) for name, score in scores.items()}
        write_file(path, json.dumps(dict(sorted(saved.items())), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
