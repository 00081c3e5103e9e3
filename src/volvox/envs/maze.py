"""The hard maze of novelty search, a deceptive task in JAX.

The maze of Lehman & Stanley (2011, "Abandoning objectives"), with the velocities of Conti et al. (2018, arXiv
1712.06560) and Such et al. (2017, arXiv 1712.06567): outputs set the velocities that a robot tends to. Lengths are in
the maze's units, about 200 by 200.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox.envs.functional import from_functions
from volvox.types import Array, Env

# `[13, 4]`: x and y of both ends of each wall.
WALLS = np.array(
    [
        [41, 5, 3, 8],
        [3, 8, 4, 49],
        [4, 49, 57, 53],
        [4, 49, 7, 202],
        [7, 202, 195, 198],
        [195, 198, 186, 8],
        [186, 8, 39, 5],
        [56, 54, 56, 157],
        [57, 106, 158, 162],
        [77, 201, 108, 164],
        [6, 80, 33, 121],
        [192, 146, 87, 91],
        [56, 55, 133, 30],
    ],
    np.float32,
)
START = np.array([36, 184], np.float32)
GOAL = np.array([31, 20], np.float32)
STEPS = 400  # timesteps of every episode

_RADIUS = 8.0
_RANGE = 100.0
_RANGE_FINDERS = np.deg2rad(np.array([-90, -45, 0, 45, 90, 180])).astype(np.float32)
_MAX_SPEED = 3.0
_MAX_CHANGE = 0.2


class MazeState(NamedTuple):
    """A robot in the maze.

    Attributes:
      position: float32 `[2]`.
      heading: float32, degrees.
      speed: float32, units a timestep.
      turn: float32, degrees a timestep.
      steps: int32: timesteps so far.
    """

    position: Array
    heading: Array
    speed: Array
    turn: Array
    steps: Array


def hard_maze(*, num_envs: int = 128, groups: int = 2) -> Env:
    """Makes a recipe for the hard maze: following the reward leads into a dead end; looking for new places leads out.

    The observation is float32 `[11]`: 1; the distances to walls at -90, -45, 0, 45, 90 and 180 degrees from the
    heading, at most 100, divided by 100; and which of the sectors 315-45, 45-135, 135-225 and 225-315 degrees the goal
    lies in. The action is float32 `[2]` in [-0.5, 0.5]. Six times the action is a wanted turn (degrees per timestep)
    and a wanted speed, which the robot approaches by at most 0.2 per timestep. A move that would come closer than 8 to
    a wall is not made. Every episode lasts 400 timesteps, and only the last is rewarded, with minus the distance to the
    goal, so a shorter cutoff never sees a reward. The goal counts as reached at a distance below 5. Extras: `position`
    (float32 `[B, 2]`) and `elapsed_steps`. Nothing is random.

    Example:
      >>> env = volvox.envs.hard_maze(num_envs=250, groups=2)

    Args:
      num_envs: Environments in all groups together.
      groups: Number of groups, which take turns; a divisor of `num_envs`.

    Returns:
      The recipe.

    Raises:
      ValueError: A number is out of range.
    """
    config = {"type": "volvox.envs.hard_maze", **locals()}
    return from_functions(
        start,
        step,
        observe,
        name="hard-maze",
        num_envs=num_envs,
        groups=groups,
        action_shape=(2,),
        action_low=-0.5,
        action_high=0.5,
        max_episode_steps=STEPS,
        extras=_extras,
        render=_picture,
        config=config,
    )


def start(key: Array | None = None) -> MazeState:
    """Returns the robot at rest, where every episode begins; the key is not used."""
    return MazeState(jnp.asarray(START), jnp.float32(0), jnp.float32(0), jnp.float32(0), jnp.int32(0))


def step(state: MazeState, action: Array, key: Array | None = None) -> tuple[MazeState, Array, Array]:
    """Moves the robot by one timestep, action `[2]`; returns (state, reward, terminated); the key is not used."""
    wanted_turn, wanted_speed = jnp.clip(action, -0.5, 0.5) * (2 * _MAX_SPEED)
    turn = state.turn + jnp.clip(wanted_turn - state.turn, -_MAX_CHANGE, _MAX_CHANGE)
    speed = state.speed + jnp.clip(wanted_speed - state.speed, -_MAX_CHANGE, _MAX_CHANGE)
    ahead = jnp.deg2rad(state.heading)  # the old heading: a turn shows in the next timestep
    moved = state.position + speed * jnp.stack([jnp.cos(ahead), jnp.sin(ahead)])
    position = jnp.where(distance_to_walls(moved) < _RADIUS, state.position, moved)
    heading = (state.heading + turn) % 360
    steps = state.steps + 1
    ended = steps >= STEPS
    reward = jnp.where(ended, -jnp.linalg.norm(position - GOAL), 0.0)
    return MazeState(position, heading, speed, turn, steps), reward, ended


def _extras(state: MazeState) -> dict[str, Array]:
    return {"position": state.position}


def observe(state: MazeState) -> Array:
    """Returns the observation of a state, float32 `[11]`; see `hard_maze`."""
    ahead = jnp.deg2rad(state.heading)
    ranges = distance_along(state.position, ahead + _RANGE_FINDERS) / _RANGE
    x, y = GOAL - state.position
    along = jnp.cos(ahead) * x + jnp.sin(ahead) * y
    across = jnp.cos(ahead) * y - jnp.sin(ahead) * x
    # Sectors of 90 degrees: signs of the two diagonals.
    left, right = across >= along, across >= -along
    sectors = jnp.stack([~left & right, left & right, left & ~right, ~left & ~right])
    return jnp.concatenate([jnp.ones(1), ranges, sectors.astype(jnp.float32)])


def distance_to_walls(position: Array) -> Array:
    """Returns the distance from a position `[2]` to the nearest point of any wall, float32 scalar."""
    a, b = WALLS[:, :2], WALLS[:, 2:]
    along = b - a
    share = jnp.clip(((position - a) * along).sum(1) / (along * along).sum(1), 0.0, 1.0)
    nearest = a + share[:, None] * along
    return jnp.sqrt(((position - nearest) ** 2).sum(1).min())


def distance_along(position: Array, angles: Array) -> Array:
    """Returns the distances from a position `[2]` to the first wall along angles `[n]` (radians), float32 `[n]`.

    They are at most 100.
    """
    a, along = WALLS[:, :2], WALLS[:, 2:] - WALLS[:, :2]
    dx, dy = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    from_x, from_y = position[0] - a[:, 0], position[1] - a[:, 1]
    determinant = along[:, 0] * dy - along[:, 1] * dx
    parallel = determinant == 0
    safe = jnp.where(parallel, 1.0, determinant)
    distance = (along[:, 1] * from_x - along[:, 0] * from_y) / safe
    share = (dy * from_x - dx * from_y) / safe
    hit = ~parallel & (distance > 0) & (share > 0) & (share < 1)
    return jnp.where(hit, distance, _RANGE).min(axis=1).clip(max=_RANGE)


def _picture(state: MazeState) -> Array:
    """Draws walls, goal and robot; a pixel is a unit."""
    points = jnp.stack(jnp.meshgrid(jnp.arange(208.0), jnp.arange(208.0)), -1)
    wall = jax.vmap(jax.vmap(distance_to_walls))(points) < 1
    robot, goal = (jnp.linalg.norm(points - place, axis=-1) < 5 for place in (state.position, jnp.asarray(GOAL)))
    colors = jnp.where(goal[..., None], jnp.array([0, 160, 90]), 255)
    colors = jnp.where(robot[..., None], jnp.array([210, 90, 0]), colors)
    return jnp.where(wall[..., None], 0, colors).astype(jnp.uint8)
