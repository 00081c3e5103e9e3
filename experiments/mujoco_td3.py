"""Learns continuous control in MuJoCo by TD3 on the pipeline (Fujimoto et al. 2018, arXiv 1802.09477).

    python experiments/mujoco_td3.py --task HalfCheetah --steps 300_000 --run-dir runs/cheetah_td3
    python experiments/mujoco_td3.py --task HalfCheetah --steps 1_000_000 --run-dir runs/cheetah_td3 --resume

Settings that are not given are those that reference implementations share.
"""

import dataclasses
import sys
from typing import Annotated

import tyro
from flax import linen as nn
from launch import Choices, RunSettings, launch, machine_choices

import volvox as vx

Flag = tyro.conf.arg
PRESET = vx.off_policy.reference()


@dataclasses.dataclass(frozen=True)
class Settings:
    """TD3 on a MuJoCo task."""

    task: Annotated[str, Flag(help="name of the task, e.g. HalfCheetah, Humanoid, Hopper")] = "HalfCheetah"
    steps: Annotated[int, Flag(help="steps of each learner in all, over all its environments")] = 1_000_000
    hidden: Annotated[tuple[int, ...], Flag(help="widths of the hidden layers of actor and critics")] = (256, 256)
    densely_connected: Annotated[bool, Flag(help="each hidden layer sees what all before it gave, and the input")] = (
        False
    )
    representation: Annotated[bool, Flag(help="learn on features that learn to predict the next observation")] = False
    num_learners: Annotated[int, Flag(help="learners with seeds of their own, side by side")] = 1
    num_envs: Annotated[int, Flag(help="environments of all learners")] = 4
    groups: Annotated[int, Flag(help="groups of environments that take turns")] = 2
    threads: Annotated[int | None, Flag(help="simulator threads; default: all CPUs")] = None
    learning_rate: Annotated[float, Flag(help="of actor and critics")] = PRESET["learning_rate"]
    batch_size: Annotated[int, Flag(help="transitions of an update")] = PRESET["batch_size"]
    discount: Annotated[float, Flag(help="gamma")] = PRESET["discount"]
    target_rate: Annotated[float, Flag(help="tau")] = PRESET["target_rate"]
    exploration_noise: Annotated[float, Flag(help="of actions scaled to [-1, 1]")] = PRESET["exploration_noise"]
    target_noise: Annotated[float, Flag(help="of target actions")] = PRESET["target_noise"]
    target_noise_clip: Annotated[float, Flag(help="to which that is clipped")] = PRESET["target_noise_clip"]
    policy_delay: Annotated[int, Flag(help="updates of the critics for one of the actor")] = PRESET["policy_delay"]
    random_steps: Annotated[int, Flag(help="steps with random actions, before learning")] = PRESET["random_steps"]
    replay_size: Annotated[int, Flag(help="steps that are remembered")] = PRESET["replay_size"]
    updates_per_env_step: Annotated[float, Flag(help="updates for each step")] = PRESET["updates_per_env_step"]
    num_steps: Annotated[int, Flag(help="of n-step targets")] = PRESET["num_steps"]
    normalize_observations: Annotated[bool, Flag(help="show networks observations of mean 0 and variance 1")] = False
    steps_per_iteration: Annotated[int, Flag(help="steps in one row of metrics")] = 5_000
    save_replay: Annotated[bool, Flag(help="keep the replay in checkpoints")] = True
    run: Annotated[RunSettings, Flag(name="")] = dataclasses.field(
        default_factory=lambda: RunSettings(run_dir="runs/mujoco_td3", checkpoint_every=5)
    )


_OF_THE_SCRIPT = (
    *("task", "steps", "hidden", "densely_connected", "representation"),
    *("num_envs", "groups", "threads", "run"),
)


def make_algorithm(settings: Settings) -> tuple[vx.types.Algorithm, int]:
    """The algorithm, and its iterations; every bad setting is refused here."""
    if settings.steps < 1:
        raise ValueError(f"steps={settings.steps}: give the number of steps in all.")
    if settings.steps <= settings.random_steps:
        raise ValueError(f"steps={settings.steps}: nothing is learned from random_steps={settings.random_steps}.")
    env = vx.envs.mujoco(settings.task, num_envs=settings.num_envs, groups=settings.groups, threads=settings.threads)
    (size,) = env.spec.action_shape or (0,)
    names = [field.name for field in dataclasses.fields(settings) if field.name not in _OF_THE_SCRIPT]
    algorithm = vx.off_policy.td3(
        vx.networks.MLP(size, settings.hidden, nn.relu, settings.densely_connected),
        vx.networks.QNetwork(settings.hidden, settings.densely_connected),
        env,
        representation=vx.networks.NextObservationNetwork() if settings.representation else None,
        **{name: getattr(settings, name) for name in names},
    )
    return algorithm, -(-settings.steps // settings.steps_per_iteration)


def main() -> int:
    settings = tyro.cli(Settings, description=__doc__)
    choices = Choices(machine=machine_choices(settings.num_envs, settings.groups, settings.threads), others={})
    return launch(make_algorithm, settings, choices, learned="policy")


if __name__ == "__main__":
    sys.exit(main())
