"""Learns continuous control in MuJoCo by PPO (Schulman et al. 2017, arXiv 1707.06347).

The first word is a preset; flags change single settings of it:
    python experiments/mujoco_ppo.py cleanrl --task HalfCheetah-v4 --run-dir runs/cheetah
    python experiments/mujoco_ppo.py cleanrl --timesteps 3_000_000 --anneal-timesteps 3_000_000 --run-dir runs/longer
"""

import dataclasses
import sys

from flags import Evaluation, MuJoCo, Run, annealed
from launch import launch

import volvox as vx


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """PPO on a MuJoCo task.

    Attributes:
      timesteps: Timesteps of all environments.
      hidden: Widths of the hidden layers of policy and value.
    """

    learner: vx.PPO
    env: MuJoCo = MuJoCo(task="HalfCheetah-v4", num_envs=1, groups=1)
    timesteps: int = 1_000_000
    hidden: tuple[int, ...] = (64, 64)
    evaluation: Evaluation = Evaluation()
    run: Run = Run(run_dir="runs/mujoco_ppo", checkpoint_every=10)


PRESETS = {"cleanrl": ("The constants and the network of CleanRL's script.", Settings(learner=vx.PPO.mujoco()))}


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, int]:
    """The algorithm, and its iterations; every bad setting is refused here."""
    learner, env = settings.learner, settings.env.make()
    annealed(learner, settings.timesteps)
    (size,) = env.spec.action_shape or (0,)
    network = vx.networks.GaussianMLP(size, settings.hidden)
    algorithm = vx.learn(learner, network, env, **vars(settings.evaluation))
    timesteps = algorithm.env.all_envs * learner.segment_length * learner.rounds_per_iteration
    return algorithm, -(-settings.timesteps // timesteps)


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__, sampled=True))
