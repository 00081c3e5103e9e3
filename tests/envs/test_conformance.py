"""The rules of `TimeStep` and `EnvGroup`, for every kind of environment."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import envs
from volvox.envs.preprocessing import opening
from volvox.testing import check_env

pytestmark = pytest.mark.optimized

ENVS = {
    "atari-ends": lambda: envs.atari("assault", num_envs=3, groups=1, episodic_life=True, frame_skip=16),
    "atari-uber": lambda: envs.atari("Boxing", num_envs=3, groups=1, max_episode_steps=7, preprocessing="uber"),
    "mujoco-ends": lambda: envs.mujoco("Hopper", num_envs=3),
    "frozen-lake": lambda: envs.envpool("FrozenLake-v1", num_envs=3),
    "countdown-opening": lambda: opening(probes.countdown(low=4, num_envs=3, max_episode_steps=6), (0, 1)),
    "target": lambda: probes.target(num_envs=3),
}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * name.startswith("atari")) for name in ENVS]
)
def env(request):
    return ENVS[request.param]()


def test_the_interface_is_kept(env):
    """In both forms, with any seed, after restarts, and with another cutoff."""
    check_env(env, max_episode_steps=min(env.spec.max_episode_steps - 1, 40))


def test_elapsed_steps_count_from_each_first(env, play, actions_for):
    step = play(env, actions_for(env, 45), restart_at=5, seed=5, host=True, num_groups=1)
    elapsed = step.extras["elapsed_steps"]
    assert (elapsed[step.truncated] == env.spec.max_episode_steps).all()
    if env.config.get("episodic_life"):
        # The game goes on after a lost life, and so does envpool's count.
        assert (elapsed[step.first] > 0).any()
        return
    assert (elapsed[step.first] == 0).all()
    going_on = ~step.first[1:]
    np.testing.assert_array_equal(elapsed[1:][going_on], elapsed[:-1][going_on] + 1)


def test_a_scan_of_groups_sees_what_python_sees(env, drive, actions_for, assert_equal):
    groups = env.make(2, num_envs=2 * env.num_envs, num_groups=2)
    actions = actions_for(env, 8)

    @jax.jit
    def chunk(states, actions):
        def beat(states, action):
            seen, after = [], []
            for group, state in zip(groups, states, strict=True):
                state, step = group.recv(state)
                seen.append(step)
                after.append(group.send(state, action))
            return tuple(after), tuple(seen)

        return jax.lax.scan(beat, states, actions)

    states, seen = chunk(tuple(group.init() for group in groups), jnp.asarray(actions))
    seen = jax.device_get(seen)
    jax.block_until_ready([group.recv(state)[0] for group, state in zip(groups, states, strict=True)])
    hosts = env.make(2, num_envs=2 * env.num_envs, num_groups=2, host=True)
    for group, host, steps in zip(groups, hosts, seen, strict=True):
        alone = jax.tree.map(lambda leaf: leaf[:-1], drive(host, actions))
        assert_equal(steps, alone)
        group.close()
        host.close()
