"""CartPole against Gymnasium's, which computes in double precision."""

import math

import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from volvox import envs
from volvox.envs import classic_control


def test_trajectories_are_gymnasiums(drive, actions_for):
    env = envs.cartpole(num_envs=6)
    (group,), actions = env.make(0), actions_for(env, 120)
    timesteps = drive(group, actions)
    ends = 0
    for b in range(6):
        for t in range(120):
            observation, first = timesteps.observation[t, b], timesteps.first[t, b]
            assert timesteps.reward[t, b] == (0.0 if first else 1.0)
            if first:
                assert (np.abs(observation) <= 0.05).all()
                game, terminated = CartPoleEnv(), False
                game.state = observation.astype(float)
            else:
                expected, _, terminated, *_ = game.step(actions[t - 1, b])
                np.testing.assert_allclose(observation, expected, atol=1e-5)
            assert timesteps.terminated[t, b] == terminated
            assert not timesteps.truncated[t, b]
            ends += terminated
    assert ends > 12


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("sign", [-1, 1])
def test_an_episode_ends_at_the_limits(place, sign):
    limit = (2.4, None, 12 * math.pi / 180)[place]
    for inside, expected in ((0.999, False), (1.001, True)):
        state = np.zeros(4, np.float32)
        state[place] = sign * limit * inside
        _, _, terminated = classic_control.cartpole_step(state, 1)
        assert bool(terminated) == expected
