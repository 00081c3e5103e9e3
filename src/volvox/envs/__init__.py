"""Environments: envpool's, and pure-JAX ones that keep the same interface."""

from volvox.envs import functional, probe
from volvox.envs.atari import atari, atari_games
from volvox.envs.functional import from_functions
from volvox.envs.mujoco import mujoco
from volvox.envs.pool import pool

__all__ = ["atari", "atari_games", "from_functions", "functional", "mujoco", "pool", "probe"]
