"""Flags of the scripts that evolve populations on Atari."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro
from launch import Choices, machine_choices

import volvox as vx

Flag = tyro.conf.arg

NOISE: dict[str, Callable[[], vx.population.Noise]] = {
    "table": vx.population.table,
    "published": vx.population.published_table,
    "generator": vx.population.generator,
}


@dataclasses.dataclass(frozen=True)
class PopulationSettings:
    """How populations are made and played, whatever the strategy."""

    population_size: Annotated[int, Flag(help="members of each generation")] = 0
    num_episodes: Annotated[int, Flag(help="training episodes of each member; fitness is their mean return")] = 1
    num_validation_episodes: Annotated[int, Flag(help="validation episodes of each candidate for elite")] = 0
    num_test_episodes: Annotated[int, Flag(help="test episodes of each generation's elite; 0: none")] = 0
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


def split(preset: Any) -> tuple[PopulationSettings, float | None, dict[str, Any]]:
    """A preset as (the flags above, its time limit in minutes, what is left for the strategy's own flags)."""
    given = preset._asdict()
    minutes = given.pop("minutes")
    names = [field.name for field in dataclasses.fields(PopulationSettings) if field.name in given]
    return PopulationSettings(**{name: given.pop(name) for name in names}), minutes, given


def counts(settings: PopulationSettings) -> dict[str, int]:
    """What every strategy takes."""
    names = ("population_size", "num_episodes", "num_validation_episodes", "num_test_episodes")
    return {name: getattr(settings, name) for name in names}


def make_env(game: str, settings: PopulationSettings) -> vx.types.Env:
    """The game's environments."""
    return vx.envs.atari(
        game,
        num_envs=settings.num_envs,
        groups=settings.groups,
        threads=settings.threads,
        sticky_actions=settings.sticky_actions,
    )


def evolve(
    strategy: vx.evolution.Strategy, network: Any, env: vx.types.Env, settings: PopulationSettings
) -> tuple[vx.types.Algorithm, int]:
    """The algorithm, and its steps in all."""
    algorithm = vx.evolution.evolve(
        strategy,
        network,
        env,
        noise=NOISE[settings.noise](),
        max_episode_steps=settings.max_episode_steps,
        test_max_episode_steps=settings.test_max_episode_steps,
    )
    return algorithm, settings.generations


def choices(settings: PopulationSettings) -> Choices:
    """What `--tune` tries; more slots make more steps a second, but not always shorter generations: not tried."""
    return Choices(machine=machine_choices(settings.num_envs, settings.groups, settings.threads), others={})
