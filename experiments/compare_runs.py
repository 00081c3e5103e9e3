"""Compares single runs on one game: best scores against frames, and the difference of their final scores.

    python experiments/compare_runs.py --runs runs/ga runs/random_search \
        --names "genetic algorithm, seed 0" "random search, seed 0" --out experiments/results/atari_ga/frostbite

Each run must hold `metrics.jsonl` and `score.json` (`--score-episodes`). Writes `comparison.png` and `comparison.json`.
One run of each algorithm says nothing about the algorithms; several seeds of each would be needed for that.
"""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import tyro
from matplotlib.figure import Figure

ABOUT = (
    "Each name is one run with one seed. An interval is a 95% bootstrap interval over the episodes of that run's one "
    "network: it says how much other episodes of the same networks would change the figure, and nothing about other "
    "runs of the same algorithms. Without sticky actions, the episodes of a deterministic policy on Atari are drawn "
    "from at most 30 no-op starts. training_frames are emulator frames without those of validation."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Compares single runs; the first is compared with each of the others, and with random play.

    Attributes:
      runs: Run directories.
      names: What to call each run.
      out: Directory of what is written.
      key: The metric that is drawn; older runs have `best_score`.
      learned: What score.json calls the result of a run.
    """

    runs: list[str]
    names: list[str]
    out: str
    key: str = "validation_mean"
    learned: str = "elite"


def training_frames(row: dict[str, float]) -> float:
    """Emulator frames of training; until 22 November 2026, `frames` were these."""
    return row.get("training_frames", row["frames"])


def difference(a: list[float], b: list[float]) -> dict[str, object]:
    """Mean of `a` minus mean of `b`, with a 95% bootstrap interval."""
    random = np.random.default_rng(0)
    means = [random.choice(np.asarray(x), (10_000, len(x))).mean(axis=1) for x in (a, b)]
    low, high = np.percentile(means[0] - means[1], [2.5, 97.5])
    return {"difference": float(np.mean(a) - np.mean(b)), "interval_95": [float(low), float(high)]}


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    if len(settings.runs) != len(settings.names) or not settings.runs:
        print(f"error: {len(settings.runs)} runs and {len(settings.names)} names: give one each", file=sys.stderr)
        return 2
    directories = [Path(run) for run in settings.runs]
    rows = [[json.loads(line) for line in (d / "metrics.jsonl").read_text().splitlines()] for d in directories]
    scores = [json.loads((d / "score.json").read_text()) for d in directories]
    first = scores[0][settings.learned]["returns"]
    others = {name: score[settings.learned] for name, score in zip(settings.names, scores, strict=True)}
    others["random play"] = scores[0]["random"]
    result = {
        name: {
            "mean": score["mean"],
            "interval_95": score["interval_95"],
            "episodes": len(score["returns"]),
            **({f"{settings.names[0]}, minus this": difference(first, score["returns"])} if i else {}),
        }
        for i, (name, score) in enumerate(others.items())
    }
    for name, table in zip(settings.names, rows, strict=True):
        result[name] |= {"training_frames": training_frames(table[-1]), "seconds": table[-1]["seconds"]}

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, table, color in zip(settings.names, rows, ("#0072B2", "#D55E00", "#009E73", "#56B4E9"), strict=False):
        frames = [training_frames(row) / 1e6 for row in table]
        axes.plot(frames, [row[settings.key] for row in table], color=color, label=name)
        axes.plot(frames, [row["training_mean"] for row in table], "--", color=color, label=f"{name}, population mean")
    axes.axhline(others["random play"]["mean"], color="0.6", linewidth=1, label="random play")
    axes.set_xlabel("emulator frames of training (million)")
    axes.set_ylabel(settings.key.replace("_", " "))
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "comparison.png", dpi=120)
    text = json.dumps({"about": ABOUT, "runs": result}, indent=1)
    (out / "comparison.json").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
