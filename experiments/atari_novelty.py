"""Novelty search on an Atari game (Conti et al. 2018, arXiv 1712.06560): parents are what plays unlike the others.

    python experiments/atari_novelty.py --game Frostbite --strategy nsr_es --run-dir runs/frostbite_novelty
    python experiments/atari_novelty.py --game Frostbite --strategy ga --behavior final_ram --run-dir runs/frostbite_ns

Episodes are compared by the emulator's memory, 128 bytes. `--preset desktop` (the default) or `paper` sets everything;
other flags change single settings. With `--log`, each generation's behaviours are kept, and
`volvox.report.population.cloud` draws them.
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
PRESETS = {"desktop": vx.evolution.novelty_desktop, "paper": vx.evolution.novelty_paper}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Novelty search on an Atari game."""

    game: Annotated[str, Flag(help="name of the game, e.g. Frostbite, Seaquest, UpNDown")] = "Frostbite"
    preset: Annotated[Literal["desktop", "paper"], Flag(help="where settings that are not given come from")] = "desktop"
    strategy: Annotated[
        Literal["ns_es", "nsr_es", "nsra_es", "ga"],
        Flag(
            help="evolution strategies that follow novelty (ns_es), novelty and reward evenly (nsr_es) or as progress "
            "asks for (nsra_es), or the genetic algorithm whose parents are the most novel"
        ),
    ] = "nsr_es"
    behavior: Annotated[
        Literal["ram_trajectory", "final_ram"], Flag(help="the memory through an episode, or at its end")
    ] = "ram_trajectory"
    behavior_every: Annotated[int, Flag(help="steps from one sample of a trajectory to the next")] = 50
    behavior_length: Annotated[int, Flag(help="samples of a trajectory")] = 12
    num_neighbors: Annotated[int, Flag(help="nearest behaviours whose mean distance is novelty")] = 0
    archive_size: Annotated[int, Flag(help="behaviours the archive holds; then the oldest make way")] = 0
    noise_std: Annotated[
        str, Flag(help="ES: of the noise: a number, or linear: or exponential:start,end,generations")
    ] = ""
    learning_rate: Annotated[str, Flag(help="ES: of Adam: a number, or a schedule as for noise_std")] = ""
    l2_coefficient: Annotated[float, Flag(help="ES: parameters times this are added to the gradient")] = 0.0
    num_bases: Annotated[
        int, Flag(help="ES: members of the meta-population; a generation moves one, drawn by its novelty")
    ] = 0
    mutation_std: Annotated[str, Flag(help="ga: power of the noise, or a schedule as for noise_std")] = ""
    num_parents: Annotated[int, Flag(help="ga: most novel members, from which the next generation descends")] = 0
    num_elite_candidates: Annotated[int, Flag(help="ga: members that play validation episodes for elite")] = 0
    num_archived: Annotated[int, Flag(help="ga: members archived each generation")] = 0
    network: Annotated[
        Literal["vbn", "large", "small"] | None,
        Flag(help="as in atari_es.py; default: vbn for evolution strategies, large for the genetic algorithm"),
    ] = None
    population: Annotated[PopulationSettings, Flag(name="")] = dataclasses.field(default_factory=PopulationSettings)
    run: Annotated[RunSettings, Flag(name="")] = dataclasses.field(
        default_factory=lambda: RunSettings(run_dir="runs/atari_novelty")
    )


def read_settings(arguments: list[str] | None = None) -> Settings:
    """Reads the flags; those not given come from the preset."""
    return population_settings.read_settings(Settings, PRESETS, "runs/atari_novelty", arguments, __doc__)


def make_strategy(settings: Settings) -> vx.evolution.Strategy:
    """The strategy with its behaviour."""
    if settings.behavior == "final_ram":
        behavior = vx.loop.last("ram", 128)
    else:
        behavior = vx.loop.trajectory("ram", 128, every=settings.behavior_every, length=settings.behavior_length)
    common = {
        **counts(settings.population),
        "behavior": behavior,
        "num_neighbors": settings.num_neighbors,
        "archive_size": settings.archive_size,
    }
    if settings.strategy == "ga":
        return vx.evolution.novelty_ga(
            **common,
            num_parents=settings.num_parents,
            mutation_std=settings.mutation_std,
            num_elite_candidates=settings.num_elite_candidates,
            num_archived=settings.num_archived,
        )
    return vx.evolution.novelty_es(
        **common,
        kind=settings.strategy,
        num_bases=settings.num_bases,
        noise_std=settings.noise_std,
        learning_rate=settings.learning_rate,
        l2_coefficient=settings.l2_coefficient,
    )


def make_algorithm(settings: Settings) -> tuple[vx.types.Algorithm, int]:
    """The algorithm, and its steps in all; every bad setting is refused here, before any long work."""
    env = make_env(settings.game, settings.population)
    network = settings.network or ("large" if settings.strategy == "ga" else "vbn")
    return evolve(make_strategy(settings), network, env, settings.population)


def main() -> int:
    settings = read_settings()
    return launch(make_algorithm, settings, choices(settings.population), learned="best")


if __name__ == "__main__":
    sys.exit(main())
