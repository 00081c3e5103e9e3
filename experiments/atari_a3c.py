"""Learns to play an Atari game by actor-critic on the pipeline (GA3C, Babaeizadeh et al. 2017, arXiv 1611.06256).

    python experiments/atari_a3c.py --game Pong --run-dir runs/pong
    python experiments/atari_a3c.py --game Pong --run-dir runs/pong --resume --frames 40_000_000

`--preset modern` (the default) or `ga3c` sets the learner; other flags change single settings.
"""

import dataclasses
import sys
from typing import Annotated, Any, Literal

import tyro
from launch import RunSettings, launch
from learner_settings import LearnerSettings, choices, from_preset, num_steps, options

import volvox as vx

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class Settings:
    """Advantage actor-critic on an Atari game."""

    game: Annotated[str, Flag(help="name of the game, e.g. Pong, Boxing, UpNDown")] = "Pong"
    preset: Annotated[Literal["modern", "ga3c"], Flag(help="where settings that are not given come from")] = "modern"
    network: Annotated[
        Literal["small", "nature", "lstm", "ga3c", "ga3c-large"],
        Flag(help="small, nature: modern initialisation; lstm: small with 256 cells; ga3c, ga3c-large: as published"),
    ] = "small"
    first_stride: Annotated[int, Flag(help="of the first convolution, for ga3c and ga3c-large: 4, 3, 2 or 1")] = 4
    num_envs: Annotated[int, Flag(help="environments")] = 32
    groups: Annotated[int, Flag(help="groups of environments that take turns")] = 2
    threads: Annotated[int | None, Flag(help="emulator threads; default: all CPUs")] = None
    sticky_actions: Annotated[float, Flag(help="probability that the emulator repeats the last action")] = 0.0
    episodic_life: Annotated[bool, Flag(help="learn as if the loss of a life ended the game")] = False
    learner: Annotated[LearnerSettings, Flag(name="")] = dataclasses.field(
        default_factory=lambda: from_preset("modern")
    )
    run: Annotated[RunSettings, Flag(name="")] = dataclasses.field(
        default_factory=lambda: RunSettings(run_dir="runs/atari_a3c", checkpoint_every=4)
    )


@dataclasses.dataclass(frozen=True)
class _Preset:
    preset: Literal["modern", "ga3c"] = "modern"


def read_settings(arguments: list[str] | None = None) -> Settings:
    """Reads the flags; those not given come from the preset."""
    given, _ = tyro.cli(_Preset, args=arguments, return_unknown_args=True, add_help=False)
    network = "ga3c" if given.preset == "ga3c" else "small"
    default = Settings(preset=given.preset, network=network, learner=from_preset(given.preset))
    return tyro.cli(Settings, args=arguments, default=default, description=__doc__)


def make_network(settings: Settings, num_actions: int) -> Any:
    """The flax module of a name."""
    nets = vx.networks
    if settings.network in ("ga3c", "ga3c-large"):
        size = "large" if settings.network == "ga3c-large" else "small"
        return nets.GA3C(num_actions, size=size, first_stride=settings.first_stride)
    if settings.network == "lstm":
        return nets.RecurrentActorCritic(num_actions, nets.SmallTorso())
    return nets.ActorCritic(num_actions, nets.NatureTorso() if settings.network == "nature" else nets.SmallTorso())


def make_algorithm(settings: Settings) -> tuple[vx.types.Algorithm, int]:
    """The algorithm, and its steps in about the frames asked for; every bad setting is refused here."""
    env = vx.envs.atari(
        settings.game,
        num_envs=settings.num_envs,
        groups=settings.groups,
        threads=settings.threads,
        sticky_actions=settings.sticky_actions,
    )
    assert env.spec.num_actions is not None  # Atari's actions are discrete
    algorithm = vx.actor_critic.a3c(
        make_network(settings, env.spec.num_actions),
        env,
        episodic_life=settings.episodic_life,
        **options(settings.learner, settings.preset),
    )
    return algorithm, num_steps(settings.learner, env)


def main() -> int:
    settings = read_settings()
    return launch(make_algorithm, settings, choices(settings), learned="policy", sampled=True)


if __name__ == "__main__":
    sys.exit(main())
