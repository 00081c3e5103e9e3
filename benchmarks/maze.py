"""How fast populations of small networks play the hard maze, ask and tell included.

python benchmarks/maze.py --json
"""

import dataclasses
import statistics
import time
from typing import Annotated

import jax
import tyro
from parts import machine, show

import volvox as vx

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class Options:
    """The genetic algorithm with novelty in the hard maze."""

    population_size: int = 1_000
    num_envs: Annotated[int, Flag(help="robots at once, in two groups")] = 1_000
    hidden: Annotated[tuple[int, ...], Flag(help="widths of the hidden layers")] = (16,)
    generations: Annotated[int, Flag(help="measured, after two that compile")] = 10
    json: Annotated[bool, Flag(help="print one JSON object")] = False


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    strategy = vx.GA(
        objective=vx.Novelty(behavior=vx.rollout.Last(extra="position", size=2)),
        population_size=options.population_size,
        num_parents=20,
        mutation_std=0.1,
    )
    validation = vx.Validation(num_elite_candidates=2, num_validation_episodes=1)
    env = vx.envs.hard_maze(num_envs=options.num_envs, groups=2)
    algorithm = vx.evolve(strategy, vx.networks.MLP(2, hidden=options.hidden), env, validation=validation)
    state = algorithm.init(jax.random.key(0))
    for _ in range(2):
        state, _ = algorithm.step(state)
    rates, training = [], []
    for _ in range(options.generations):
        began, before = time.perf_counter(), state.counts.frames
        state, metrics = algorithm.step(state)
        rates.append((state.counts.frames - before) / (time.perf_counter() - began))
        training.append(metrics["training_timesteps_per_second"])
    algorithm.close()
    figures = {
        "generation_steps_per_s": statistics.median(rates),
        "generation_steps_per_s_range": [min(rates), max(rates)],
        "training_steps_per_s": statistics.median(training),
    }
    show(figures | {"settings": dataclasses.asdict(options), **machine()}, options.json)


if __name__ == "__main__":
    main()
