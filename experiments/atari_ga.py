"""Evolves a network to play an Atari game with the deep genetic algorithm (Such et al. 2017, arXiv 1712.06567).

    python experiments/atari_ga.py --game Frostbite --run-dir runs/frostbite
    python experiments/atari_ga.py --game Frostbite --run-dir runs/frostbite --resume --generations 200

`--preset quick`, `desktop` (the default) or `paper` sets everything; other flags change single settings.
"""

import dataclasses
import sys
from typing import Annotated, Literal

import population_settings
import tyro
from launch import RunSettings, launch
from population_settings import PopulationSettings, choices, counts, evolve, make_env

import volvox as vx

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class Settings:
    """The deep genetic algorithm on an Atari game."""

    game: Annotated[str, Flag(help="name of the game, e.g. Frostbite, Seaquest, UpNDown")] = "Frostbite"
    preset: Annotated[
        Literal["quick", "desktop", "paper"], Flag(help="where settings that are not given come from")
    ] = "desktop"
    strategy: Annotated[
        Literal["ga", "random_search"], Flag(help="random_search is the same loop without selection")
    ] = "ga"
    num_parents: Annotated[int, Flag(help="best members of a generation, from which the next descends")] = 0
    mutation_std: Annotated[
        float | str,
        Flag(help="power of the noise added to every parameter, or linear: or exponential:start,end,generations"),
    ] = 0.0
    num_elite_candidates: Annotated[int, Flag(help="best members that play validation episodes for elite")] = 0
    network: Annotated[Literal["large", "small"], Flag(help="4 052 658 or 1 008 450 parameters with 18 actions")] = (
        "large"
    )
    population: Annotated[PopulationSettings, Flag(name="")] = dataclasses.field(default_factory=PopulationSettings)
    run: Annotated[RunSettings, Flag(name="")] = dataclasses.field(
        default_factory=lambda: RunSettings(run_dir="runs/atari_ga")
    )


def read_settings(arguments: list[str] | None = None) -> Settings:
    """Reads the flags; those not given come from the preset."""
    return population_settings.read_settings(Settings, PRESETS, "runs/atari_ga", arguments, __doc__)


PRESETS = {"quick": vx.evolution.quick, "desktop": vx.evolution.desktop, "paper": vx.evolution.paper}


def make_algorithm(settings: Settings) -> tuple[vx.types.Algorithm, int]:
    """The algorithm, and its steps in all; every bad setting is refused here, before any long work."""
    env = make_env(settings.game, settings.population)
    common = {**counts(settings.population), "num_elite_candidates": settings.num_elite_candidates}
    if settings.strategy == "ga":
        strategy = vx.evolution.ga(num_parents=settings.num_parents, mutation_std=settings.mutation_std, **common)
    else:
        strategy = vx.evolution.random_search(**common)
    return evolve(strategy, settings.network, env, settings.population)


def main() -> int:
    settings = read_settings()
    return launch(make_algorithm, settings, choices(settings.population), learned="elite")


if __name__ == "__main__":
    sys.exit(main())
