"""Flags of the actor-critic's learner, shared by the scripts that use it."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import tyro
from launch import Choices, first, machine_choices

import volvox as vx
from volvox.actor_critic.options import micro_batch_size

Flag = tyro.conf.arg

PRESETS: dict[str, Callable[[], dict[str, Any]]] = {
    "modern": vx.actor_critic.modern,
    "ga3c": vx.actor_critic.ga3c,
    "mujoco": vx.actor_critic.mujoco,
}
_FIXED = ("optimizer", "optimizer_options", "loss_reduction")
"""Settings of a preset that are not flags."""
_OTHERS = ("micro_batch", "anneal_frames", "updates_per_step")
"""Flags that no preset sets."""


@dataclasses.dataclass(frozen=True)
class LearnerSettings:
    """What the learner does; see `volvox.actor_critic.a3c`."""

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


def from_preset(preset: str) -> LearnerSettings:
    """The flags as a preset has them."""
    return LearnerSettings(**{name: value for name, value in PRESETS[preset]().items() if name not in _FIXED})


def options(settings: LearnerSettings, preset: str) -> dict[str, Any]:
    """What `a3c` takes: the preset, changed by the flags."""
    changed = {name: getattr(settings, name) for name in PRESETS[preset]() if name not in _FIXED}
    return PRESETS[preset]() | changed | {name: getattr(settings, name) for name in _OTHERS}


def choices(settings: Any) -> Choices:
    """What `--tune` tries for an actor-critic script with flags `num_envs`, `groups`, `threads` and `learner`."""
    learner: LearnerSettings = settings.learner
    group = max(settings.num_envs // max(settings.groups, 1), 1)
    batches = [n for n in range(1, group + 1) if group % n == 0 and n * learner.segment_length <= 512]
    if learner.micro_batch is None and learner.segment_length > 0:  # what is tried first anyway
        own = micro_batch_size(None, group, learner.segment_length)
        batches = [n for n in batches if n != own]
    return Choices(
        machine=machine_choices(settings.num_envs, settings.groups, settings.threads)
        | {"micro_batch": first(learner.micro_batch, batches[-4:])},
        others={
            "num_envs": first(
                settings.num_envs, (settings.num_envs // 2, 2 * settings.num_envs, 4 * settings.num_envs)
            ),
            "segment_length": first(learner.segment_length, (5, 10, 20)),
        },
    )


def num_steps(settings: LearnerSettings, env: vx.types.Env) -> int:
    """Steps of the algorithm in about the frames asked for.

    Raises:
      ValueError: none are asked for.
    """
    if settings.frames < 1:
        raise ValueError(f"frames={settings.frames}: give the number of emulator frames in all.")
    beats = (settings.segment_length + (settings.lag == 0)) * settings.rounds_per_update
    frames_per_step = env.num_envs * beats * env.spec.frame_skip * settings.updates_per_step
    return -(-settings.frames // frames_per_step)
