"""Learns to play an Atari game by actor-critic on the pipeline (GA3C, Babaeizadeh et al. 2017, arXiv 1611.06256).

    python experiments/atari_a3c.py --game Pong --run-dir runs/pong
    python experiments/atari_a3c.py --game Pong --run-dir runs/pong --resume --frames 40_000_000

`--preset modern` (the default) or `ga3c` sets the learner; other flags change single settings.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro
from launch import launch

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
    segment_length: Annotated[int, Flag(help="steps of a segment")] = 0
    micro_batch: Annotated[int | None, Flag(help="environments learned at once; default: about 64 transitions")] = None
    lag: Annotated[int, Flag(help="rounds between acting and learning, exactly")] = 1
    rounds_per_update: Annotated[int, Flag(help="rounds that share an update")] = 1
    learning_rate: Annotated[float, Flag(help="of the optimiser")] = 0.0
    max_gradient_norm: Annotated[float | None, Flag(help="to which the gradient is clipped")] = None
    anneal_frames: Annotated[
        int | None, Flag(help="frames after which learning rate and entropy coefficient have fallen to 0")
    ] = None
    discount: Annotated[float, Flag(help="gamma")] = 0.99
    trace_decay: Annotated[float, Flag(help="lambda of the returns; 1: n-step returns")] = 1.0
    entropy_coefficient: Annotated[float, Flag(help="weight of the policy's entropy")] = 0.0
    value_coefficient: Annotated[float, Flag(help="weight of half the squared error of values")] = 0.0
    log_epsilon: Annotated[float, Flag(help="added to probabilities before their logarithm is taken")] = 0.0
    vtrace: Annotated[bool, Flag(help="correct returns for the lag")] = False
    reward_bound: Annotated[float | None, Flag(help="learned rewards are clipped to it; None leaves them")] = 1.0
    updates_per_step: Annotated[int, Flag(help="updates in one row of metrics")] = 250
    frames: Annotated[int, Flag(help="emulator frames in all (about), those before a resume included")] = 20_000_000
    seed: Annotated[int, Flag(help="fixes all random numbers but the emulators' history")] = 0
    run_dir: Annotated[str, Flag(help="where config, metrics, checkpoints, picture and video go")] = "runs/atari_a3c"
    resume: Annotated[bool, Flag(help="go on with the run in --run-dir")] = False
    minutes: Annotated[float | None, Flag(help="begin no further step after so many minutes")] = None
    checkpoint_every: Annotated[int, Flag(help="steps between checkpoints")] = 4
    video: Annotated[bool, Flag(help="film the policy at the end")] = True
    score_episodes: Annotated[
        int, Flag(help="at the end, play so many fresh episodes greedily and at random; 0: none")
    ] = 0


PRESETS: dict[str, Callable[[], dict[str, Any]]] = {"modern": vx.actor_critic.modern, "ga3c": vx.actor_critic.ga3c}
_FIXED = ("optimizer", "optimizer_options", "loss_reduction")
"""Settings of a preset that are not flags."""


@dataclasses.dataclass(frozen=True)
class _Preset:
    preset: Literal["modern", "ga3c"] = "modern"


def read_settings(arguments: list[str] | None = None) -> Settings:
    """Reads the flags; those not given come from the preset."""
    preset_only, _ = tyro.cli(_Preset, args=arguments, return_unknown_args=True, add_help=False)
    given = {name: value for name, value in PRESETS[preset_only.preset]().items() if name not in _FIXED}
    network = "ga3c" if preset_only.preset == "ga3c" else "small"
    default = Settings(preset=preset_only.preset, network=network, **given)
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
    if settings.frames < 1:
        raise ValueError(f"frames={settings.frames}: give the number of emulator frames in all.")
    env = vx.envs.atari(
        settings.game,
        num_envs=settings.num_envs,
        groups=settings.groups,
        threads=settings.threads,
        sticky_actions=settings.sticky_actions,
    )
    assert env.spec.num_actions is not None  # Atari's actions are discrete
    options = PRESETS[settings.preset]()
    options |= {name: getattr(settings, name) for name in options if name not in _FIXED}
    others = ("episodic_life", "micro_batch", "anneal_frames", "updates_per_step")
    options |= {name: getattr(settings, name) for name in others}
    algorithm = vx.actor_critic.a3c(make_network(settings, env.spec.num_actions), env, **options)
    steps_per_update = settings.num_envs * (settings.segment_length + (settings.lag == 0)) * settings.rounds_per_update
    frames_per_step = steps_per_update * env.spec.frame_skip * settings.updates_per_step
    return algorithm, -(-settings.frames // frames_per_step)


def main() -> int:
    settings = read_settings()
    return launch(
        lambda: make_algorithm(settings),
        settings,
        step_name="iteration",
        learned="policy",
    )


if __name__ == "__main__":
    sys.exit(main())
