"""Searches for settings: a sweep of several seeds, the overhead of a trial, and population-based training.

    python benchmarks/sweep.py --parts tune overhead --json
    python benchmarks/sweep.py --parts pbt --json
    python benchmarks/sweep.py --parts pbt_atari --seeds 1 --run-dir runs/pbt_atari --json

- tune: PPO on CartPole, 12 settings with 4 seeds each as 48 learners in one program, 40,000 timesteps each, with
  compilation, evaluations and the picture.
- overhead: duration of a trial of PPO without its training, by trials of two lengths: wall-clock of all but the first,
  extrapolated to no iterations. CartPole is pure JAX; Pong is envpool's.
- pbt: PPO on CartPole, population-based training beside the same learners without copies, which are a sweep over random
  settings, at equal timesteps and seeds: returns of the last 100 episodes of training.
- pbt_atari: the same with A3C on Boxing, 8 environments a learner. Ctrl-C saves the run, and the same command goes on.
"""

import dataclasses
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import optax
import tyro
from parts import machine, show

import volvox as vx
from volvox.report import lineage
from volvox.runs.config import to_json

Flag = tyro.conf.arg
RANGES = {"learning_rate": vx.space.log(1e-4, 3e-2), "entropy_coefficient": vx.space.log(1e-4, 1e-1)}
ATARI_RANGES = {"learning_rate": vx.space.log(5e-5, 5e-3), "entropy_coefficient": vx.space.log(1e-3, 1e-1)}


@dataclasses.dataclass(frozen=True)
class Options:
    """Searches for settings."""

    parts: tuple[Literal["tune", "overhead", "pbt", "pbt_atari"], ...] = ("tune", "overhead", "pbt")
    timesteps: Annotated[int, Flag(help="of each learner of tune")] = 40_000
    trials: Annotated[int, Flag(help="of each length, for the overhead")] = 4
    learners: Annotated[int, Flag(help="of pbt")] = 16
    pbt_timesteps: Annotated[int, Flag(help="of each learner of pbt")] = 40_000
    atari_learners: Annotated[int, Flag(help="of pbt_atari")] = 8
    atari_timesteps: Annotated[int, Flag(help="of each learner of pbt_atari")] = 400_000
    seeds: Annotated[int, Flag(help="of pbt and pbt_atari")] = 3
    run_dir: Annotated[Path, Flag(help="directory of the runs of pbt_atari, which go on")] = Path("runs/pbt_atari")
    pictures: Annotated[Path | None, Flag(help="directory for pictures of lineages")] = None
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def cartpole(settings: dict[str, Any], **options: Any) -> vx.Algorithm:
    env, network = vx.envs.cartpole(num_envs=8), vx.networks.CategoricalMLP(2, (64, 64))
    ppo = vx.PPO(
        segment_length=64,
        num_epochs=4,
        num_minibatches=4,
        lag=1,
        rounds_per_iteration=8,
        optimizer=optax.adam,
        **settings,
    )
    return vx.learn(ppo, network, env, **options)


def pong(settings: dict[str, Any]) -> vx.Algorithm:
    env = vx.envs.atari("Pong", num_envs=8, groups=2)
    network = vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso())
    ppo = dataclasses.replace(vx.PPO.atari(), segment_length=16, rounds_per_iteration=1, **settings)
    return vx.learn(ppo, network, env)


def boxing(settings: dict[str, Any], **options: Any) -> vx.Algorithm:
    env = vx.envs.atari("Boxing", num_envs=8, groups=2)
    network = vx.networks.ActorCritic(env.spec.num_outputs, vx.networks.SmallTorso())
    return vx.learn(vx.A3C(**settings), network, env, **options)


def tune(options: Options) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        sweep = vx.sweep(
            lambda settings: cartpole(settings, num_learners=4, evaluate_every=options.timesteps // 2),
            RANGES,
            num_trials=12,
            num_learners=12,
            max_timesteps=options.timesteps,
            run_dir=Path(folder) / "sweep",
        )
        sweep.plot(Path(folder) / "sweep.png")
        seconds = time.perf_counter() - began
        best = sweep.trials[0]
        return {"seconds": seconds, "best": best["settings"], "score": best["score"], "learners": 48}


def overhead(options: Options) -> dict[str, Any]:
    found = {}
    for name, make in (("cartpole", cartpole), ("pong", pong)):
        durations: dict[int, float] = {}
        for steps in (1, 9):
            marks: list[float] = []

            def marked(settings: dict[str, Any], make: Any = make, marks: list[float] = marks) -> vx.Algorithm:
                marks.append(time.perf_counter())
                return make(settings)

            with tempfile.TemporaryDirectory() as folder:
                limits = {"steps": steps, "metric": "update", "pruner": None, "progress": False}
                vx.sweep(marked, RANGES, num_trials=options.trials + 3, run_dir=Path(folder) / "s", **limits)
            between = [after - before for before, after in itertools.pairwise(marks[2:])]
            durations[steps] = statistics.median(between)
        # One iteration of learning is part of the short trial.
        iteration = (durations[9] - durations[1]) / 8
        found[name] = {"seconds": durations[1] - iteration, "iteration": iteration, "durations": durations}
    return found


def pbt(options: Options) -> dict[str, Any]:
    return with_and_without_copies(options, cartpole, RANGES, options.learners, options.pbt_timesteps)


def pbt_atari(options: Options) -> dict[str, Any]:
    sizes = options.atari_learners, options.atari_timesteps
    return with_and_without_copies(options, boxing, ATARI_RANGES, *sizes, run_dir=options.run_dir)


def with_and_without_copies(
    options: Options,
    make: Callable[..., vx.Algorithm],
    ranges: Mapping[str, Any],
    num_learners: int,
    timesteps: int,
    run_dir: Path | None = None,
) -> dict[str, Any]:
    """Scores of population-based training, and of the same learners without copies."""
    explore = vx.PBT(every=timesteps // 16, explore=ranges)
    found: dict[str, Any] = {"timesteps": timesteps, "learners": num_learners}
    for seed in range(options.seeds):
        # PBT draws its first settings from the ranges; with an interval after the end, nothing is copied.
        for name, one in (("pbt", explore), ("sweep", dataclasses.replace(explore, every=2**31))):
            algorithm = make({}, num_learners=num_learners, pbt=one)
            folder = {} if run_dir is None else {"run_dir": run_dir / f"{name}-{seed}", "resume": True}
            run = vx.train(algorithm, seed=seed, max_timesteps=timesteps, progress=run_dir is not None, **folder)
            algorithm.close()
            if run.interrupted:
                sys.exit(run.exit_code)
            row = run.metrics[-1]
            each = row["training_mean_each"]  # of the last 100 episodes
            result = {"best": max(each), "median": statistics.median(each), "seconds": row["seconds"]}
            result["best_learning_rate"] = row["pbt_learning_rate_each"][each.index(max(each))]
            if name == "pbt":
                result["lineage"] = lineage_summary(run.metrics)
            found.setdefault(name, []).append(result)
            if options.pictures is not None and name == "pbt":
                lineage(run.metrics, options.pictures / f"{make.__name__}_{seed}.png")
    return found


def lineage_summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The number of copies, the first learner from which each of the last descends, and the last settings."""
    founders, copies = list(range(len(rows[0]["pbt_parent_each"]))), 0
    for parents in (row["pbt_parent_each"] for row in rows):
        copies += sum(parent != i for i, parent in enumerate(parents))
        founders = [founders[parent] for parent in parents]
    settings = {name: x for name, x in rows[-1].items() if name.startswith("pbt_") and name.endswith("_each")}
    return {"copies": copies, "founders": founders, **settings}


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    jax.config.update("jax_enable_compilation_cache", False)  # seconds include compilation
    functions = {"tune": tune, "overhead": overhead, "pbt": pbt, "pbt_atari": pbt_atari}
    figures = {part: functions[part](options) for part in options.parts}
    show(figures | {"settings": to_json(dataclasses.asdict(options)), **machine()}, options.json)


if __name__ == "__main__":
    main()
