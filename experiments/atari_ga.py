"""Evolves a network to play an Atari game with the deep genetic algorithm (Such et al. 2017, arXiv 1712.06567).

The first word is a preset; flags change single settings of it:
    python experiments/atari_ga.py desktop --game Frostbite --run-dir runs/frostbite
    python experiments/atari_ga.py desktop --game Frostbite --run-dir runs/frostbite --resume --generations 200
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
    env: Atari = Atari()
    population: Population = Population(generations=100)
    run: Run = Run(run_dir="runs/atari_ga", minutes=60)


QUICK = Settings(
    strategy=vx.GA.quick(),
    env=Atari(num_envs=16),
    population=Population(network="small", max_episode_steps="500", generations=None),
    run=Run(run_dir="runs/atari_ga", minutes=5),
)
RANDOM_PAPER = dataclasses.replace(vx.GA.paper(), num_parents=0, mutation_std=vx.GA().mutation_std)  # without effect
PRESETS = {
    "quick": ("Five minutes of two cores: the small network, a small population, short episodes.", QUICK),
    "desktop": (
        "What two cores can do in an hour: fewer members than published, larger mutations, shorter episodes.",
        Settings(strategy=vx.GA()),
    ),
    "random-search": ("As desktop, but every member is new.", Settings(strategy=vx.GA.random_search())),
    "paper": (
        "The genetic algorithm of Such et al. 2017: 6 billion frames; weeks on a desktop's CPU.",
        published(Settings(strategy=vx.GA.paper()), frames=6_000_000_000),
    ),
    "random-search-paper": (
        "Random search of Such et al. 2017: the small network, 6 billion frames.",
        published(Settings(strategy=RANDOM_PAPER, population=Population(network="small")), frames=6_000_000_000),
    ),
}


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, int | None]:
    """The algorithm, and its generations; every bad setting is refused here."""
    return settings.population.evolve(settings.strategy, settings.env.make())


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__))
