"""The rules of `TimeStep` and `EnvGroup`, for every kind of environment."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import envs
from volvox.envs.preprocessing import opening

pytestmark = pytest.mark.optimized


ENVS = {
    "atari": lambda: envs.atari("pong", num_envs=3, groups=1, max_episode_steps=7),
    "atari-ends": lambda: envs.atari("assault", num_envs=3, groups=1, episodic_life=True, frame_skip=16),
    "atari-uber": lambda: envs.atari("Boxing", num_envs=3, groups=1, max_episode_steps=7, preprocessing="uber"),
    "mujoco": lambda: envs.mujoco("HalfCheetah", num_envs=3, max_episode_steps=9),
    "mujoco-ends": lambda: envs.mujoco("Hopper", num_envs=3, max_episode_steps=50),
    "cartpole": lambda: envs.envpool("CartPole-v1", num_envs=3),
    "frozen-lake": lambda: envs.envpool("FrozenLake-v1", num_envs=3),
    "car-racing": lambda: envs.envpool("CarRacing-v3", num_envs=3, max_episode_steps=9),
    "countdown-opening": lambda: opening(probes.countdown(low=4, num_envs=3, max_episode_steps=6), (0, 1)),
    "observed-reward": lambda: probes.observed_reward(num_envs=3),
    "countdown": lambda: probes.countdown(num_envs=3, max_episode_steps=6),
    "corridor": lambda: probes.corridor(num_envs=3),
    "target": lambda: probes.target(num_envs=3),
}
STEPS = 45
RESTART_AT = 5


SLOW = ("atari", "atari-ends", "atari-uber")


@pytest.fixture(scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in ENVS])
def env(request):
    return ENVS[request.param]()


@pytest.fixture(scope="module")
def recorded(env, drive, actions_for):
    """Random actions and a restart, driven from Python."""
    (group,) = env.make(5, host=True, num_groups=1)
    step = drive(group, actions_for(env, STEPS), restart_at=RESTART_AT)
    group.close()
    return step


def hidden(env):
    """Number of timesteps of the opening."""
    return 2 if not env.config or env.config.get("preprocessing") == "uber" else 0


def test_both_forms_seeds_and_shapes(env, recorded, drive, actions_for, assert_equal):
    (group,) = env.make(5, num_groups=1)
    assert group.traceable
    assert_equal(drive(group, actions_for(env, STEPS), restart_at=RESTART_AT), recorded)
    group.close()
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), recorded.observation)
    assert shapes == env.spec.observation
    assert set(recorded.extras) == set(env.spec.extras)
    assert (recorded.reward[recorded.first] == 0).all()
    (group,) = env.make(6, host=True, num_groups=1)
    other = drive(group, actions_for(env, STEPS), restart_at=RESTART_AT)
    group.close()
    same = jax.tree.map(np.array_equal, other.observation, recorded.observation)
    assert all(jax.tree.leaves(same)) == ("corridor" in env.spec.name)


def test_first_follows_ends_and_restarts_and_nothing_else(env, recorded):
    step = recorded
    done = step.terminated | step.truncated
    begun = np.concatenate([np.ones_like(done[:1]), done[:-1]])
    begun[RESTART_AT + 1] = True
    expected = begun.copy()
    for steps in range(hidden(env)):
        expected[1 + steps :] |= begun[: -1 - steps]
    np.testing.assert_array_equal(step.first, expected)
    assert not (step.first & done).any()
    assert done.any(), "the case must see an end"


def test_ends_are_told_apart(env, recorded):
    step = recorded
    assert not (step.terminated & step.truncated).any()
    elapsed = step.extras["elapsed_steps"]
    assert (elapsed[step.truncated] == env.spec.max_episode_steps).all()
    assert elapsed.max() <= env.spec.max_episode_steps


def test_elapsed_steps_count_from_each_first(env, recorded):
    step = recorded
    elapsed = step.extras["elapsed_steps"]
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


def test_the_cutoff_can_be_another(env, drive, actions_for):
    (group,) = env.make(0, max_episode_steps=1, num_groups=1, host=True)
    step = drive(group, actions_for(env, 5))
    group.close()
    assert group.spec.max_episode_steps == 1
    expected = ([True] * (1 + hidden(env)) + [False]) * 3
    np.testing.assert_array_equal(step.first[:, 0], expected[: len(step.first)])
    np.testing.assert_array_equal((step.terminated | step.truncated)[:, 0], ~step.first[:, 0])


@pytest.mark.parametrize("host", [False, True])
def test_actions_of_another_shape_are_refused(env, host):
    (group,) = env.make(0, num_groups=1, host=host)
    state, _ = group.recv(group.init())
    with pytest.raises(ValueError, match="shape"):
        group.send(state, np.zeros((env.num_envs + 1, *(env.spec.action_shape or ())), np.float32))
    group.close()
