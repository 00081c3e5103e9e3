"""Environments: envpool's tasks, Gymnasium's, and pure-JAX environments behind the same interface.

`atari`, `mujoco`, `envpool`, `gymnasium`, `gymnax`, `brax`, `cartpole` and `hard_maze` make recipes
(`volvox.types.Env`) by name; `gymnasium` also takes a class or function that makes an environment, and
`from_functions` makes a recipe from three pure functions. `probe` holds small environments with known answers, for
tests. `human_normalized` compares a score on Atari with
random play and with a human. The module `groups` has what the author of another kind of environment group needs.
"""

from volvox.envs import groups, maze, probe
from volvox.envs.classic_control import cartpole
from volvox.envs.envpool_group import envpool
from volvox.envs.envpool_tasks import atari, atari_game, atari_games, human_normalized, known_scores, mujoco
from volvox.envs.functional import from_functions
from volvox.envs.gymnasium_group import gymnasium
from volvox.envs.jax_suites import brax, gymnax
from volvox.envs.maze import hard_maze

__all__ = ["atari", "atari_game", "atari_games", "brax", "cartpole", "envpool", "from_functions", "groups", "gymnasium", "gymnax"]
__all__ += ["hard_maze", "human_normalized", "known_scores", "maze", "mujoco", "probe"]
