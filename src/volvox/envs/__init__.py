"""Environments: envpool's tasks, Gymnasium's, and pure-JAX environments behind the same interface.

`atari`, `mujoco`, `envpool`, `gymnasium`, `gymnax`, `brax` and `playground` make recipes (`volvox.types.Env`) by name;
`gymnasium` also takes a class or function that makes an environment. `cartpole` and `hard_maze` make recipes of one
task each, and `from_functions` makes a recipe from three pure functions. `atari_games` lists the Atari games, and
`human_normalized` compares a score on Atari with random play and with a human. The module `groups` has building blocks
for other kinds of environments.
"""

from volvox.envs import groups
from volvox.envs.classic_control import cartpole
from volvox.envs.envpool_tasks import atari, atari_games, envpool, human_normalized, mujoco
from volvox.envs.functional import brax, from_functions, gymnax, playground
from volvox.envs.gymnasium_group import gymnasium
from volvox.envs.maze import hard_maze

__all__ = [
    "atari",
    "atari_games",
    "brax",
    "cartpole",
    "envpool",
    "from_functions",
    "groups",
    "gymnasium",
    "gymnax",
    "hard_maze",
    "human_normalized",
    "mujoco",
    "playground",
]
