"""Learns continuous control in MuJoCo by actor-critic on the pipeline, with a Gaussian policy.

    python experiments/mujoco_a3c.py --task HalfCheetah --run-dir runs/cheetah
    python experiments/mujoco_a3c.py --task HalfCheetah --run-dir runs/cheetah --resume --frames 20_000_000

Settings that are not given come from the preset `volvox.actor_critic.mujoco`.
"""

import dataclasses
import sys
from typing import Annotated

import tyro
from launch import RunSettings, launch
from learner_settings import LearnerSettings, choices, from_preset, num_steps, options

import volvox as vx

Flag = tyro.conf.arg


@dataclasses.dataclass(frozen=True)
class Settings:
    """Advantage actor-critic on a MuJoCo task."""

    task: Annotated[str, Flag(help="name of the task, e.g. HalfCheetah, Hopper, InvertedPendulum")] = "HalfCheetah"
    hidden: Annotated[tuple[int, ...], Flag(help="widths of the hidden layers")] = (64, 64)
    num_envs: Annotated[int, Flag(help="environments")] = 32
    groups: Annotated[int, Flag(help="groups of environments that take turns")] = 2
    threads: Annotated[int | None, Flag(help="simulator threads; default: all CPUs")] = None
    learner: Annotated[LearnerSettings, Flag(name="")] = dataclasses.field(
        default_factory=lambda: from_preset("mujoco")
    )
    run: Annotated[RunSettings, Flag(name="")] = dataclasses.field(
        default_factory=lambda: RunSettings(run_dir="runs/mujoco_a3c", checkpoint_every=4)
    )


def make_algorithm(settings: Settings) -> tuple[vx.types.Algorithm, int]:
    """The algorithm, and its steps in about the frames asked for; every bad setting is refused here."""
    env = vx.envs.mujoco(settings.task, num_envs=settings.num_envs, groups=settings.groups, threads=settings.threads)
    (num_components,) = env.spec.action_shape or (0,)
    network = vx.networks.GaussianMLP(num_components, settings.hidden)
    algorithm = vx.actor_critic.a3c(network, env, **options(settings.learner, "mujoco"))
    return algorithm, num_steps(settings.learner, env)


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    return launch(make_algorithm, settings, choices(settings), learned="policy", sampled=True)


if __name__ == "__main__":
    sys.exit(main())
