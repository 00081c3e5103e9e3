"""Learns continuous control in MuJoCo by SAC (Haarnoja et al. 2018, arXiv 1812.05905).

The first word is a preset; flags change single settings of it:
    python experiments/mujoco_sac.py reference --task HalfCheetah --timesteps 300_000 --run-dir runs/sac
    python experiments/mujoco_sac.py reference --task HalfCheetah --timesteps 1_000_000 --run-dir runs/sac --resume
"""

# pyright: reportIncompatibleVariableOverride=false

import dataclasses
import sys

import mujoco_td3
from flags import Run
from launch import launch
from mujoco_td3 import make_algorithm

import volvox as vx


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(mujoco_td3.Settings):
    """SAC on a MuJoCo task."""

    learner: vx.SAC = vx.SAC()
    run: Run = Run(run_dir="runs/mujoco_sac", timesteps=1_000_000, checkpoint_every=5)


PRESETS = {"reference": ("The settings of the paper, with 4 environments.", Settings())}


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__, sampled=True))
