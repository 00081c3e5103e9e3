"""Learns continuous control in MuJoCo by PPO (Schulman et al. 2017, arXiv 1707.06347).

The first word is a preset; flags change single settings of it:
    python experiments/mujoco_ppo.py cleanrl --task HalfCheetah-v4 --run-dir runs/cheetah
    python experiments/mujoco_ppo.py cleanrl --timesteps 3_000_000 --anneal-timesteps 3_000_000 --run-dir runs/longer
"""

import dataclasses
import sys

from flags import Learning, MuJoCo, Run, annealed
from launch import launch

import volvox as vx


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """PPO on a MuJoCo task.

    Attributes:
      hidden: Widths of the hidden layers of policy and value.
    """

    learner: vx.PPO
    env: MuJoCo = MuJoCo(task="HalfCheetah-v4", num_envs=1, groups=1)
    hidden: tuple[int, ...] = (64, 64)
    learning: Learning = Learning()
    run: Run = Run(run_dir="runs/mujoco_ppo", timesteps=1_000_000, checkpoint_every=10)


PRESETS = {"cleanrl": ("The constants and the network of CleanRL's script.", Settings(learner=vx.PPO.mujoco()))}


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, None]:
    """The algorithm, which timesteps end; every bad setting is refused here."""
    env = settings.env.make()
    annealed(settings.learner, settings.run, env, settings.learning.num_learners)
    network = vx.networks.GaussianMLP(env.spec.num_outputs, settings.hidden)
    return vx.learn(settings.learner, network, env, **vars(settings.learning)), None


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__, sampled=True))
