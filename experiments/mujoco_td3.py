"""Learns continuous control in MuJoCo by TD3 (Fujimoto et al. 2018, arXiv 1802.09477).

The first word is a preset; flags change single settings of it:
    python experiments/mujoco_td3.py reference --task HalfCheetah --timesteps 300_000 --run-dir runs/td3
    python experiments/mujoco_td3.py reference --task HalfCheetah --timesteps 1_000_000 --run-dir runs/td3 --resume
"""

import dataclasses
import sys

from flags import Learning, MuJoCo, Run
from launch import launch

import volvox as vx


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """TD3 or SAC on a MuJoCo task.

    Attributes:
      hidden: Widths of the hidden layers of actor and critics.
      densely_connected: Each hidden layer sees the outputs of all layers before it, and the input.
      representation: Learn on features that learn to predict the next observation.
    """

    learner: vx.TD3 = vx.TD3()
    env: MuJoCo = MuJoCo(num_envs=4)
    hidden: tuple[int, ...] = (256, 256)
    densely_connected: bool = False
    representation: bool = False
    learning: Learning = Learning()
    run: Run = Run(run_dir="runs/mujoco_td3", timesteps=1_000_000, checkpoint_every=5)


PRESETS = {"reference": ("The settings that reference implementations of TD3 share.", Settings())}


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, None]:
    """The algorithm, which timesteps end; every bad setting is refused here."""
    timesteps, random = settings.run.timesteps, settings.learner.random_timesteps
    if timesteps is not None and timesteps <= random:
        raise ValueError(f"timesteps={timesteps}: nothing is learned from random_timesteps={random}; give more.")
    env = settings.env.make()
    networks = vx.networks.ActorAndCritic.mlp(
        env.spec.num_outputs,
        settings.hidden,
        vx.networks.NextObservationNetwork() if settings.representation else None,
        gaussian=isinstance(settings.learner, vx.SAC),
        densely_connected=settings.densely_connected,
    )
    return vx.learn(settings.learner, networks, env, **vars(settings.learning)), None


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__))
