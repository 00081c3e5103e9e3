"""Learns continuous control in MuJoCo by actor-critic, with a Gaussian policy.

The first word is a preset; flags change single settings of it:
    python experiments/mujoco_a3c.py mujoco --task HalfCheetah --run-dir runs/cheetah
    python experiments/mujoco_a3c.py mujoco --timesteps 8_000_000 --anneal-timesteps 8_000_000 --run-dir runs/longer
"""

import dataclasses
import sys

from flags import Learning, MuJoCo, Run, annealed
from launch import launch

import volvox as vx


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Advantage actor-critic on a MuJoCo task.

    Attributes:
      hidden: Widths of the hidden layers.
    """

    learner: vx.A3C
    env: MuJoCo = MuJoCo()
    hidden: tuple[int, ...] = (64, 64)
    learning: Learning = Learning()
    run: Run = Run(run_dir="runs/mujoco_a3c", timesteps=4_000_000, checkpoint_every=4)


PRESETS = {
    "mujoco": (
        "Observations and rewards are normalised, and the rate falls to 0.",
        Settings(learner=dataclasses.replace(vx.A3C.mujoco(), anneal_timesteps=4_000_000)),
    )
}


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, None]:
    """The algorithm, which timesteps end; every bad setting is refused here."""
    env = settings.env.make()
    annealed(settings.learner, settings.run, env, settings.learning.num_learners)
    network = vx.networks.GaussianMLP(env.spec.num_outputs, settings.hidden)
    return vx.learn(settings.learner, network, env, **vars(settings.learning)), None


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__, sampled=True))
