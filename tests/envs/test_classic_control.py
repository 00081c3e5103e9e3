"""CartPole against Gymnasium's equations, written out in NumPy in double precision."""

import math

import jax
import numpy as np
import pytest

from volvox import envs
from volvox.envs import classic_control


def gymnasium_step(state, action):
    """`CartPoleEnv.step` of Gymnasium with its default, Euler's method: (state, terminated)."""
    x, x_dot, theta, theta_dot = state
    force = 10.0 if action == 1 else -10.0
    temp = (force + 0.05 * theta_dot**2 * math.sin(theta)) / 1.1
    theta_acc = (9.8 * math.sin(theta) - math.cos(theta) * temp) / (0.5 * (4 / 3 - 0.1 * math.cos(theta) ** 2 / 1.1))
    x_acc = temp - 0.05 * theta_acc * math.cos(theta) / 1.1
    x, x_dot = x + 0.02 * x_dot, x_dot + 0.02 * x_acc
    theta, theta_dot = theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc
    terminated = x < -2.4 or x > 2.4 or theta < -12 * 2 * math.pi / 360 or theta > 12 * 2 * math.pi / 360
    return np.array([x, x_dot, theta, theta_dot]), terminated


def played(actions_of, env, beats):
    """Timesteps `[T, B, ...]`, and the actions `[T, B]` sent after each; `actions_of` is given the observations."""
    (group,) = env.make(0)
    recv, send, state, seen = jax.jit(group.recv), jax.jit(group.send), group.init(), []
    for beat in range(beats):
        state, timestep = recv(state)
        action = actions_of(beat, np.asarray(timestep.observation)).astype(np.int32)
        state = send(state, action)
        seen.append((jax.device_get(timestep), action))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *seen)


def test_trajectories_are_gymnasiums():
    random = np.random.default_rng(0)
    timesteps, actions = played(lambda beat, seen: random.integers(0, 2, 6), envs.cartpole(num_envs=6), 120)
    ends = 0
    for b in range(6):
        state = None
        for t in range(120):
            observation, first = timesteps.observation[t, b], timesteps.first[t, b]
            assert timesteps.reward[t, b] == (0.0 if first else 1.0)
            if first:
                assert (np.abs(observation) <= 0.05).all()
                state, terminated = observation.astype(float), False
            else:
                state, terminated = gymnasium_step(state, actions[t - 1, b])
                np.testing.assert_allclose(observation, state, atol=1e-5)
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


@pytest.mark.parametrize("limit", [200, 500])
def test_a_balanced_pole_is_truncated(limit):
    def balance(beat, seen):
        return seen @ np.array([0.1, 0.3, 1.0, 0.5]) > 0

    timesteps, _ = played(balance, envs.cartpole(num_envs=2, max_episode_steps=limit), limit + 2)
    np.testing.assert_array_equal(np.flatnonzero(timesteps.truncated[:, 0]), [limit])
    assert not timesteps.terminated.any()
    np.testing.assert_array_equal(timesteps.first.nonzero()[0], [0, 0, limit + 1, limit + 1])
