"""Evolves a network to play an Atari game with the deep genetic algorithm (Such et al. 2017, arXiv 1712.06567).

    python experiments/atari_ga.py --game Frostbite --run-dir runs/frostbite
    python experiments/atari_ga.py --game Frostbite --run-dir runs/frostbite --resume --generations 200

`--preset quick`, `desktop` (the default) or `paper` sets everything; other flags change single settings.
"""

import dataclasses
import sys
from typing import Annotated, Literal

import tyro
from launch import Choices, RunSettings, launch, machine_choices

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
    population_size: Annotated[int, Flag(help="offspring in each generation")] = 0
    num_parents: Annotated[int, Flag(help="best members of a generation, from which the next descends")] = 0
    mutation_std: Annotated[float, Flag(help="power of the noise added to every parameter")] = 0.0
    num_episodes: Annotated[int, Flag(help="training episodes of each member; fitness is their mean return")] = 1
    num_elite_candidates: Annotated[int, Flag(help="best members that play validation episodes for elite")] = 0
    num_validation_episodes: Annotated[int, Flag(help="validation episodes of each candidate")] = 0
    num_test_episodes: Annotated[int, Flag(help="test episodes of each generation's elite; 0: none")] = 0
    network: Annotated[Literal["large", "small"], Flag(help="4 052 658 or 1 008 450 parameters with 18 actions")] = (
        "large"
    )
    noise: Annotated[
        Literal["table", "published", "generator"],
        Flag(help="table: sized to the network; published: RandomState(123), 250 M numbers, 1 GB; generator: no table"),
    ] = "table"
    num_envs: Annotated[int, Flag(help="environments, which are also the slots that hold networks")] = 0
    groups: Annotated[int, Flag(help="groups of environments that take turns")] = 2
    threads: Annotated[int | None, Flag(help="emulator threads; default: all CPUs")] = None
    max_episode_steps: Annotated[
        str, Flag(help="cutoff of training and validation episodes in steps, or adaptive:start,fraction,ratio,max")
    ] = ""
    test_max_episode_steps: Annotated[int, Flag(help="cutoff of test episodes in steps")] = 0
    sticky_actions: Annotated[float, Flag(help="probability that the emulator repeats the last action")] = 0.0
    generations: Annotated[int, Flag(help="generations in all, those before a resume included")] = 0
    run: Annotated[RunSettings, Flag(name="")] = dataclasses.field(
        default_factory=lambda: RunSettings(run_dir="runs/atari_ga")
    )


def read_settings(arguments: list[str] | None = None) -> Settings:
    """Reads the flags; those not given come from the preset."""
    preset_only, _ = tyro.cli(_Preset, args=arguments, return_unknown_args=True, add_help=False)
    given = PRESETS[preset_only.preset]()._asdict()
    run = RunSettings(run_dir="runs/atari_ga", minutes=given.pop("minutes"))
    default = Settings(preset=preset_only.preset, run=run, **given)
    return tyro.cli(Settings, args=arguments, default=default, description=__doc__)


@dataclasses.dataclass(frozen=True)
class _Preset:
    preset: Literal["quick", "desktop", "paper"] = "desktop"


PRESETS = {"quick": vx.evolution.quick, "desktop": vx.evolution.desktop, "paper": vx.evolution.paper}


def make_algorithm(settings: Settings) -> vx.types.Algorithm:
    """Builds the algorithm; every bad setting is refused here, before any long work."""
    env = vx.envs.atari(
        settings.game,
        num_envs=settings.num_envs,
        groups=settings.groups,
        threads=settings.threads,
        sticky_actions=settings.sticky_actions,
    )
    common = {
        "population_size": settings.population_size,
        "num_episodes": settings.num_episodes,
        "num_elite_candidates": settings.num_elite_candidates,
        "num_validation_episodes": settings.num_validation_episodes,
        "num_test_episodes": settings.num_test_episodes,
    }
    if settings.strategy == "ga":
        strategy = vx.evolution.ga(num_parents=settings.num_parents, mutation_std=settings.mutation_std, **common)
    else:
        strategy = vx.evolution.random_search(**common)
    noise = {
        "table": vx.population.table,
        "published": vx.population.published_table,
        "generator": vx.population.generator,
    }[settings.noise]
    assert env.spec.num_actions is not None  # Atari's actions are discrete
    network = vx.networks.DeepGA(env.spec.num_actions, size=settings.network)
    return vx.evolution.evolve(
        strategy,
        network,
        env,
        noise=noise(),
        max_episode_steps=settings.max_episode_steps,
        test_max_episode_steps=settings.test_max_episode_steps,
    )


def make_with_generations(settings: Settings) -> tuple[vx.types.Algorithm, int]:
    """The algorithm, and its steps in all."""
    return make_algorithm(settings), settings.generations


def main() -> int:
    settings = read_settings()
    # More slots make more steps a second, but not always shorter generations: not tried.
    tried = Choices(machine=machine_choices(settings.num_envs, settings.groups, settings.threads), others={})
    return launch(make_with_generations, settings, tried, step_name="generation", learned="elite")


if __name__ == "__main__":
    sys.exit(main())
