"""Evolves a network to play an Atari game by evolution strategies (Salimans et al. 2017, arXiv 1703.03864).

The first word is a preset; flags change single settings of it:
    python experiments/atari_es.py desktop --game Frostbite --run-dir runs/frostbite_es
    python experiments/atari_es.py desktop --game Frostbite --run-dir runs/frostbite_es --resume --minutes 120
"""

import dataclasses
import sys

from flags import Atari, Population, Run, published
from launch import launch

import volvox as vx


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Evolution strategies on an Atari game."""

    strategy: vx.ES
    validation: vx.Validation = vx.Validation()
    env: Atari = Atari()
    population: Population = Population(network="vbn")
    run: Run = Run(run_dir="runs/atari_es", minutes=60)


PRESETS = {
    "desktop": (
        "An hour of two cores: fewer members than published, shorter episodes.",
        Settings(strategy=vx.ES()),
    ),
    "gpu": (
        "As paper but with 1 000 members and without test episodes, for one GPU and 16 cores.",
        published(
            Settings(
                strategy=vx.ES(population_size=1_000),
                validation=dataclasses.replace(vx.Validation.paper(), num_test_episodes=0),
            ),
            frames=1_000_000_000,
            num_envs=256,
        ),
    ),
    "paper": (
        "Salimans et al. 2017 as Such et al. ran it: 5 000 members, 1 billion frames.",
        published(Settings(strategy=vx.ES.paper(), validation=vx.Validation.paper()), frames=1_000_000_000),
    ),
}


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, int | None]:
    """Returns the algorithm and its number of generations; raises ValueError for bad settings."""
    return settings.population.evolve(settings.strategy, settings.env.make(), settings.validation)


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__))
