"""An environment in NumPy, which compiles nothing, and which tests of conformance break in many ways."""

import numpy as np
import pytest

import volvox as vx
from volvox.envs import groups


class Walks:
    """A group of random walks that terminate beyond 6, with a generator of its own."""

    def __init__(self, spec, num_envs, *, index, seed, host):
        self.spec, self.num_envs, self.random = spec, num_envs, np.random.default_rng([seed, index])

    def init(self):
        return np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.int32), np.ones(self.num_envs, bool)

    def recv(self, state):
        place, count, first = state
        place = np.where(first, 0, place + self.random.normal(size=self.num_envs)).astype(np.float32)
        count = np.where(first, 0, count + 1).astype(np.int32)
        ends = {"terminated": np.abs(place) > 6, "truncated": count >= self.spec.max_episode_steps}
        extras = {"elapsed_steps": count}
        step = vx.TimeStep(observation=place[:, None], reward=place, first=first, **ends, extras=extras)
        step = groups.consistent(step)
        return (place, count, step.terminated | step.truncated), step

    def send(self, state, action):
        return state[0] + groups.checked_action(self.spec, self.num_envs, np.asarray(action)), *state[1:]

    def restart(self, state, seed=None):
        return self.init()

    def group(self):
        return vx.EnvGroup(self.spec, self.num_envs, False, self.init, self.recv, self.send, self.restart, lambda: None)


def walks(num_envs=2):
    spec = vx.EnvSpec("walks", (1,), np.dtype(np.float32), 2, None, None, None, 30, 1, ("elapsed_steps",))
    make = lambda spec, num_envs, **how: Walks(spec, num_envs, **how).group()  # noqa: E731
    return groups.recipe(spec, make, num_envs=num_envs, groups=1, environment="walks")


@pytest.fixture(name="walks")
def _walks():
    return walks()
