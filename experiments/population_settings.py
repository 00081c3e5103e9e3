"""Flags of the scripts that evolve populations on Atari."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro
from launch import Choices, RunSettings, machine_choices

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
        Literal["table", "published", "generator", "low-rank"],
        Flag(
            help="table: sized to the network; published: RandomState(123), 250 M numbers, 1 GB; generator: no table; "
            "low-rank: the table, but mutations change each kernel by a matrix of --rank, and members share the rest"
        ),
    ] = "table"
    rank: Annotated[int, Flag(help="of low-rank noise")] = 1
    num_envs: Annotated[int, Flag(help="environments, which are also the slots that hold networks")] = 0
    groups: Annotated[int, Flag(help="groups of environments that take turns")] = 2
    threads: Annotated[int | None, Flag(help="emulator threads; default: all CPUs")] = None
    max_episode_steps: Annotated[
        str, Flag(help="cutoff of training and validation episodes in steps, or adaptive:start,fraction,ratio,max")
    ] = ""
    test_max_episode_steps: Annotated[int, Flag(help="cutoff of test episodes in steps")] = 0
    sticky_actions: Annotated[float, Flag(help="probability that the emulator repeats the last action")] = 0.0
    preprocessing: Annotated[
        Literal["envpool", "uber"],
        Flag(help="of screens and of how episodes begin; uber: the published GPU code's"),
    ] = "envpool"
    generations: Annotated[int, Flag(help="generations in all, those before a resume included")] = 0


@dataclasses.dataclass(frozen=True)
class _Preset:
    preset: str = "desktop"


def read_settings(
    settings: Any, presets: dict[str, Callable[[], Any]], run_dir: str, arguments: list[str] | None, about: str | None
) -> Any:
    """Reads a script's flags; those not given come from the preset, and `desktop` is the one that is not given.

    Args:
      settings: the script's dataclass, with fields `preset`, `population` and `run`.
      presets: by name.
      run_dir: where runs go that say nothing else.
      arguments: of the command line; None: those of this process.
      about: what `--help` begins with.
    """
    chosen, _ = tyro.cli(_Preset, args=arguments, return_unknown_args=True, add_help=False)
    # Another name is refused below, with the choices.
    given = presets.get(chosen.preset, presets["desktop"])()._asdict()
    run = RunSettings(run_dir=run_dir, minutes=given.pop("minutes"))
    names = [field.name for field in dataclasses.fields(PopulationSettings) if field.name in given]
    population = PopulationSettings(**{name: given.pop(name) for name in names})
    default = settings(preset=chosen.preset, population=population, run=run, **given)
    return tyro.cli(settings, args=arguments, default=default, description=about)


def counts(settings: PopulationSettings) -> dict[str, Any]:
    """What every strategy takes."""
    names = ("population_size", "num_episodes", "num_validation_episodes", "num_test_episodes")
    return {name: getattr(settings, name) for name in names}


def make_env(game: str, settings: PopulationSettings) -> vx.types.Env:
    """The game's environments."""
    vx.evolution.cutoff(settings.max_episode_steps)  # before anything is played
    return vx.envs.atari(
        game,
        num_envs=settings.num_envs,
        groups=settings.groups,
        threads=settings.threads,
        sticky_actions=settings.sticky_actions,
        preprocessing=settings.preprocessing,
    )


def _make_noise(settings: PopulationSettings) -> vx.population.Noise:
    if settings.noise == "low-rank":
        return vx.population.low_rank(rank=settings.rank)
    if settings.rank != 1:
        raise ValueError(f"rank={settings.rank} belongs to noise='low-rank'; the noise is {settings.noise!r}.")
    return NOISE[settings.noise]()


def _make_network(name: Literal["vbn", "large", "small"], env: vx.types.Env) -> Any:
    assert env.spec.num_actions is not None  # Atari's actions are discrete
    if name == "vbn":
        module = vx.networks.VirtualBatchNormNet(env.spec.num_actions)
        return vx.networks.reference_policy(module, env.spec, vx.loop.reference_batch(env))
    return vx.networks.DeepGA(env.spec.num_actions, size=name)


def evolve(
    strategy: vx.evolution.Strategy,
    network: Literal["vbn", "large", "small"],
    env: vx.types.Env,
    settings: PopulationSettings,
) -> tuple[vx.types.Algorithm, int]:
    """The algorithm with the network of that name, and its steps in all."""
    noise = _make_noise(settings)  # first: the network's reference batch is played
    algorithm = vx.evolution.evolve(
        strategy,
        _make_network(network, env),
        env,
        noise=noise,
        max_episode_steps=settings.max_episode_steps,
        test_max_episode_steps=settings.test_max_episode_steps,
    )
    return algorithm, settings.generations


def choices(settings: PopulationSettings) -> Choices:
    """What `--tune` tries; more slots make more steps a second, but not always shorter generations: not tried."""
    return Choices(machine=machine_choices(settings.num_envs, settings.groups, settings.threads), others={})
