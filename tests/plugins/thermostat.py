"""A Gymnasium environment: two rooms are heated or cooled towards a wish, with observations that are dicts."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Thermostat(gymnasium.Env):
    """Each room takes one of three actions: cool, wait, heat. The wish is the same for both rooms."""

    def __init__(self, degrees: float = 0.5):
        self.degrees = degrees
        self.action_space = spaces.MultiDiscrete([3, 3])
        rooms = spaces.Box(-5.0, 5.0, (2,), np.float64)
        self.observation_space = spaces.Dict({"rooms": rooms, "wish": spaces.Discrete(3)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.rooms = self.np_random.uniform(-2.0, 2.0, 2)
        self.wish = int(self.np_random.integers(3))
        return self._observation(), {}

    def step(self, action: np.ndarray):
        self.rooms = np.clip(self.rooms + self.degrees * (np.asarray(action) - 1), -5.0, 5.0)
        reward = -float(np.abs(self.rooms - (self.wish - 1)).mean())
        return self._observation(), reward, False, False, {}

    def _observation(self) -> dict[str, Any]:
        return {"rooms": self.rooms.copy(), "wish": self.wish}
