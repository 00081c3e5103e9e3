"""Evolves a network to play an Atari game with the deep genetic algorithm (Such et al. 2017, arXiv 1712.06567).

The first word is a preset; flags change single settings of it:
    python experiments/atari_ga.py desktop --game Frostbite --run-dir runs/frostbite
    python experiments/atari_ga.py desktop --game Frostbite --run-dir runs/frostbite --resume --minutes 120
"""

import dataclasses
import sys

from flags import Atari, Population, Run, published
from launch import launch

import volvox as vx


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The deep genetic algorithm, or random search, on an Atari game."""

    strategy: vx.GA
    validation: vx.Validation = vx.Validation()
    env: Atari = Atari()
    population: Population = Population(generations=100)
    run: Run = Run(run_dir="runs/atari_ga", minutes=60)


QUICK = Settings(
    strategy=vx.GA(population_size=32, num_parents=6, mutation_std=0.01),
    validation=vx.Validation(num_elite_candidates=3, num_validation_episodes=4, pool_validations=True),
    env=Atari(num_envs=16),
    population=Population(network="small", max_episode_steps="500", generations=None),
    run=Run(run_dir="runs/atari_ga", minutes=5),
)
PAPER = vx.Validation.paper()
RANDOM_PAPER = vx.GA.random_search(population_size=vx.GA.paper().population_size)
PRESETS = {
    "quick": ("Five minutes of two cores: the small network, a small population, short episodes.", QUICK),
    "desktop": (
        "An hour of two cores: fewer members than published, larger mutations, shorter episodes.",
        Settings(strategy=vx.GA()),
    ),
    "random-search": (
        "As desktop, but every member is a fresh initialisation.",
        Settings(strategy=vx.GA.random_search()),
    ),
    "gpu": (
        "As published but without test episodes, for one GPU and 16 cores: 1 billion frames, fewer slots than members.",
        published(
            Settings(strategy=vx.GA.paper(), validation=dataclasses.replace(PAPER, num_test_episodes=0)),
            frames=1_000_000_000,
            num_envs=256,
        ),
    ),
    "paper": (
        "The genetic algorithm of Such et al. 2017: 6 billion frames; weeks on a desktop's CPU.",
        published(Settings(strategy=vx.GA.paper(), validation=PAPER), frames=6_000_000_000),
    ),
    "random-search-paper": (
        "Random search of Such et al. 2017: the small network, 6 billion frames.",
        published(
            Settings(strategy=RANDOM_PAPER, validation=PAPER, population=Population(network="small")),
            frames=6_000_000_000,
        ),
    ),
}


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, int | None]:
    """Returns the algorithm and its number of generations; raises ValueError for bad settings."""
    return settings.population.evolve(settings.strategy, settings.env.make(), settings.validation)


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__))
