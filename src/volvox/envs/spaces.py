"""Fields of `EnvSpec` for spaces of Gymnasium; imports Gymnasium."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from volvox.envs.groups import action_bounds, narrow

_MAX_CHOICES = 2**20
"""Integer actions with more values than this are numbers, not choices."""


def spec_fields(name: str, observation_space: spaces.Space, action_space: spaces.Space) -> dict[str, Any]:
    """Returns the fields of `EnvSpec` on observations and actions.

    Args:
      name: The environment, for messages.
      observation_space: Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of these.
      action_space: Discrete, MultiDiscrete, MultiBinary or Box.

    Raises:
      ValueError: Another space.
    """
    return {
        "observation_shape": _map_spaces(name, observation_space, lambda space: tuple(space.shape)),
        "observation_dtype": _map_spaces(name, observation_space, lambda space: narrow(space.dtype)),
        **_action_fields(name, action_space),
    }


def _map_spaces(name: str, space: Any, read: Callable[[Any], Any]) -> Any:
    """Applies a function to each space in Dict and Tuple spaces, or to a single space."""
    if isinstance(space, spaces.Dict):
        return {key: _map_spaces(name, part, read) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_map_spaces(name, part, read) for part in space)
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise ValueError(
            f"{name} has observations of the space {space}; supported are Box, Discrete, MultiDiscrete, MultiBinary, "
            "and Dict and Tuple of these: use gymnasium.wrappers.TransformObservation"
        )
    return read(space)


def _action_fields(name: str, space: Any) -> dict[str, Any]:
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = action_bounds(space.low, space.high, space.shape)
        bounds = {"action_shape": low.shape, "action_low": low, "action_high": high}
        return {"num_actions": None, **bounds, "action_range": (space.low, space.high)}
    lowest, counts = 0, np.zeros(0)
    if isinstance(space, spaces.Discrete):
        lowest, counts = space.start, np.asarray(space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        lowest, counts = space.start, space.nvec
    elif isinstance(space, spaces.MultiBinary):
        counts = np.full(space.shape, 2)
    elif isinstance(space, spaces.Box):
        lowest, counts = space.low, space.high.astype(np.int64) - space.low + 1
    if not counts.size or counts.max() > _MAX_CHOICES:
        raise ValueError(
            f"{name} has actions of the space {space}; supported are Discrete, MultiDiscrete, MultiBinary, and Box: "
            "use gymnasium.wrappers.TransformAction"
        )
    low = np.broadcast_to(np.asarray(lowest, space.dtype), counts.shape)
    fields = {"action_low": None, "action_high": None, "action_range": (low, (low + counts - 1).astype(space.dtype))}
    if isinstance(space, spaces.Discrete):
        return {"num_actions": int(counts), "action_shape": None, **fields}
    choices = tuple(int(count) for count in counts.ravel())
    return {"num_actions": None, "num_choices": choices, "action_shape": (len(choices),), **fields}
