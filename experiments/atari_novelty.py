"""Novelty search on an Atari game (Conti et al. 2018, arXiv 1712.06560).

Episodes are compared by the emulator's memory. The first word is a preset; flags change single settings of it:
    python experiments/atari_novelty.py nsr-es --game Frostbite --run-dir runs/frostbite_novelty
"""

import sys
from dataclasses import dataclass, replace

from flags import Atari, Population, Run, published
from launch import launch

import volvox as vx


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Novelty search on an Atari game."""

    strategy: vx.ES | vx.GA
    validation: vx.Validation = vx.Validation()
    env: Atari = Atari()
    population: Population = Population(network="vbn")
    run: Run = Run(run_dir="runs/atari_novelty", minutes=60)


RAM = vx.rollout.Trajectory("ram", 128, every=50, length=12)  # of episodes of 600 timesteps
WHOLE = {"behavior": replace(RAM, length=100), "archive_size": 5_000}  # of 5 000 timesteps, as published; 256 MB
PRESETS = {}
for name, about, novelty in (
    ("ns-es", "Novelty alone", vx.Novelty.ns_es(behavior=RAM)),
    ("nsr-es", "Novelty and returns, evenly", vx.Novelty.nsr_es(behavior=RAM)),
    ("nsra-es", "Returns, and more novelty where they stagnate", vx.Novelty.nsra_es(behavior=RAM)),
):
    desktop = replace(vx.ES(), num_bases=3, objective=novelty)
    PRESETS[name] = (f"{about}; an hour on two cores.", Settings(strategy=desktop))
    paper = replace(vx.ES.paper(), num_bases=3, objective=replace(novelty, **WHOLE))
    paper = Settings(strategy=paper, validation=vx.Validation.paper())
    PRESETS[f"{name}-paper"] = (f"{about}; at the published size.", published(paper, frames=1_000_000_000))
GA, LARGE = "A genetic algorithm whose parents are the most novel", Population(network="large")
desktop = replace(vx.GA(), objective=vx.Novelty(behavior=RAM, num_archived=2))
PRESETS["ga"] = (f"{GA}; an hour on two cores.", Settings(strategy=desktop, population=LARGE))
paper = replace(vx.GA.paper(), population_size=5_000, objective=vx.Novelty(**WHOLE, num_archived=50))
PAPER = Settings(strategy=paper, validation=vx.Validation.paper(), population=LARGE)
PRESETS["ga-paper"] = (f"{GA}; at the published size.", published(PAPER, frames=6_000_000_000))


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, int | None]:
    """Returns the algorithm and its number of generations; raises ValueError for bad settings."""
    return settings.population.evolve(settings.strategy, settings.env.make(), settings.validation)


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__))
