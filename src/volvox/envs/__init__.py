"""Environments: envpool's, and pure-JAX ones that keep the same interface."""

from volvox.envs import functional, maze, probe
from volvox.envs.ale import atari, atari_games
from volvox.envs.envpool_group import pool
from volvox.envs.functional import from_functions
from volvox.envs.maze import hard_maze
from volvox.envs.mujoco_tasks import mujoco

__all__ = ["atari", "atari_games", "from_functions", "functional", "hard_maze", "maze", "mujoco", "pool", "probe"]
