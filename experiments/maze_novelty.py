"""Novelty against fitness in the hard maze, at equal evaluations, over several seeds.

    python experiments/maze_novelty.py --seeds 10 --run-dir runs/maze

Two genetic algorithms that differ in what makes a parent: the distance to the goal, or novelty of the final position.
Runs are in `novelty/seed-0`, `fitness/seed-0` and so on, as `volvox compare` takes them; Ctrl-C saves the run in
progress, and the same call with --resume goes on with it. Writes `maze.json` (for each
run: whether and when a member ended within 5 of the goal, and the least distance by generation), `maze.png`, and
pictures of where the populations of the first seed ended.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from launch import exit_code
from matplotlib.figure import Figure
from scores import made_with

import volvox as vx
from volvox._checks import integers
from volvox.report.files import write_file
from volvox.report.plots import maze_walls
from volvox.runs.train import run_path

REACHED = 5.0
"""Distance to the goal that counts as reached."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Novelty against fitness in the hard maze.

    Attributes:
      seeds: runs of each strategy.
      generations: generations of a run.
      population_size: members of a generation.
      num_parents: parents of a generation.
      mutation_std: standard deviation of the noise that is added to every parameter.
      hidden: widths of the hidden layers.
      num_neighbors: nearest behaviours whose mean distance is novelty.
      num_archived: members archived each generation.
      num_envs: robots at once, in two groups.
      run_dir: where the results go.
      resume: go on with the runs in `run_dir`.
    """

    seeds: int = 10
    generations: int = 400
    population_size: int = 250
    num_parents: int = 20
    mutation_std: float = 0.1
    hidden: tuple[int, ...] = (16, 16)
    num_neighbors: int = 15
    num_archived: int = 3
    num_envs: int = 250
    run_dir: str = "runs/maze"
    resume: bool = False


def make_algorithm(settings: Settings, strategy: str) -> vx.Algorithm:
    """The genetic algorithm that selects by `strategy`: fitness or novelty."""
    position = vx.rollout.Last("position", 2)
    novelty = vx.Novelty(behavior=position, num_neighbors=settings.num_neighbors, num_archived=settings.num_archived)
    ga = vx.GA(
        population_size=settings.population_size,
        num_parents=settings.num_parents,
        mutation_std=settings.mutation_std,
        objective=novelty if strategy == "novelty" else None,
    )
    validation = vx.Validation(num_elite_candidates=2, num_validation_episodes=1)  # nothing is random in the maze
    env = vx.envs.hard_maze(num_envs=settings.num_envs, groups=2)
    network = vx.networks.MLP(2, hidden=settings.hidden)
    behavior = position if strategy == "fitness" else None
    return vx.evolve(ga, network, env, validation=validation, behavior=behavior)


def run(settings: Settings, strategy: str, algorithm: vx.Algorithm, seed: int) -> dict[str, Any]:
    """One run of all its generations."""
    result = vx.train(
        algorithm,
        seed=seed,
        steps=settings.generations,
        run_dir=Path(settings.run_dir) / strategy / f"seed-{seed}",
        checkpoint_every=settings.generations,
        resume=settings.resume,
        on_step=vx.runs.log_arrays if seed == 0 else None,
        loggers=(),
        progress=False,
    )
    if result.interrupted:
        sys.exit(result.exit_code)
    least = np.minimum.accumulate([-row["training_best"] for row in result.metrics])
    reached = np.flatnonzero(least < REACHED)
    frames = result.metrics[-1]["total_frames"]
    return {
        "seed": seed,
        "reached": bool(reached.size),
        "generation": int(reached[0]) + 1 if reached.size else None,
        "least_distance": float(least[-1]),
        "least_distance_by_generation": [round(float(x), 2) for x in least],
        "evaluations": settings.generations * settings.population_size,
        "seconds": round(result.metrics[-1]["seconds"], 1),
        "steps_per_second": round(frames / result.metrics[-1]["seconds"]),
    }


def draw(settings: Settings, results: dict[str, list[dict[str, Any]]]) -> Figure:
    """The least distance to the goal so far, of every run."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for (name, runs), color in zip(results.items(), ("#0072B2", "#D55E00"), strict=True):
        solved = sum(one["reached"] for one in runs)
        for i, one in enumerate(runs):
            label = f"{name}: {solved} of {len(runs)} reach the goal" if i == 0 else None
            distance = one["least_distance_by_generation"]
            axes.plot(np.arange(1, len(distance) + 1), distance, color=color, lw=1, alpha=0.7, label=label)
    axes.axhline(REACHED, color="0.6", ls="--", lw=1)
    axes.set_xlabel(f"generation ({settings.population_size} evaluations each)")
    axes.set_ylabel("least distance to the goal so far")
    axes.legend()
    return figure


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    integers(settings, "seeds", "generations", low=1)
    folder = run_path(settings.run_dir)
    if folder.exists() and not settings.resume:
        raise FileExistsError(f"{folder} already exists; give another --run-dir, or --resume.")
    algorithms = {name: make_algorithm(settings, name) for name in ("novelty", "fitness")}
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in algorithms}
    for seed in range(settings.seeds):
        for name, algorithm in algorithms.items():
            results[name].append(run(settings, name, algorithm, seed))
            one = results[name][-1]
            print(
                f"{name}, seed {seed}: least distance {one['least_distance']:.1f}, "
                f"reached in generation {one['generation']}, {one['seconds']:.0f} s",
                flush=True,
            )
            written = {**made_with(settings), "runs": results}
            write_file(folder / "maze.json", json.dumps(written) + "\n")
    draw(settings, results).savefig(folder / "maze.png", dpi=100)
    for name in results:
        vx.report.cloud(folder / name / "seed-0", folder / f"{name}.png", background=maze_walls, title=name)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
