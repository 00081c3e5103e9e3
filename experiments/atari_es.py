"""Evolves a network to play an Atari game by evolution strategies (Salimans et al. 2017, arXiv 1703.03864).

    python experiments/atari_es.py --game Frostbite --run-dir runs/frostbite_es
    python experiments/atari_es.py --game Frostbite --run-dir runs/frostbite_es --resume --generations 200

`--preset desktop` (the default) or `paper` sets everything; other flags change single settings.
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
PRESETS = {"desktop": vx.evolution.es_desktop, "paper": vx.evolution.es_paper}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Evolution strategies on an Atari game."""

    game: Annotated[str, Flag(help="name of the game, e.g. Frostbite, Seaquest, UpNDown")] = "Frostbite"
    preset: Annotated[Literal["desktop", "paper"], Flag(help="where settings that are not given come from")] = "desktop"
    noise_std: Annotated[
        str, Flag(help="of the noise on every parameter: a number, or linear: or exponential:start,end,generations")
    ] = ""
    learning_rate: Annotated[str, Flag(help="of the optimiser: a number, or a schedule as for noise_std")] = ""
    optimizer: Annotated[str, Flag(help="name of an optimiser in optax")] = "adam"
    l2_coefficient: Annotated[float, Flag(help="parameters times this are added to the gradient")] = 0.0
    fitness_shaping: Annotated[Literal["centered_ranks", "z_scores", "raw"], Flag(help="of the returns")] = (
        "centered_ranks"
    )
    network: Annotated[
        Literal["vbn", "large", "small"],
        Flag(help="vbn: the small network with virtual batch normalisation; large, small: those of the deep GA"),
    ] = "vbn"
    population: Annotated[PopulationSettings, Flag(name="")] = dataclasses.field(default_factory=PopulationSettings)
    run: Annotated[RunSettings, Flag(name="")] = dataclasses.field(
        default_factory=lambda: RunSettings(run_dir="runs/atari_es")
    )


def read_settings(arguments: list[str] | None = None) -> Settings:
    """Reads the flags; those not given come from the preset."""
    return population_settings.read_settings(Settings, PRESETS, "runs/atari_es", arguments, __doc__)


def make_algorithm(settings: Settings) -> tuple[vx.types.Algorithm, int]:
    """The algorithm, and its steps in all; every bad setting is refused here, before any long work."""
    env = make_env(settings.game, settings.population)
    strategy = vx.evolution.es(
        **counts(settings.population),
        noise_std=settings.noise_std,
        learning_rate=settings.learning_rate,
        optimizer=settings.optimizer,
        l2_coefficient=settings.l2_coefficient,
        fitness_shaping=settings.fitness_shaping,
    )
    return evolve(strategy, settings.network, env, settings.population)


def main() -> int:
    settings = read_settings()
    return launch(make_algorithm, settings, choices(settings.population), learned="best")


if __name__ == "__main__":
    sys.exit(main())
