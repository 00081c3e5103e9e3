import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox import envs


@pytest.mark.parametrize(
    ("spelling", "task"),
    [("HalfCheetah", "HalfCheetah-v5"), ("halfcheetah-v4", "HalfCheetah-v4"), ("humanoid", "Humanoid-v5")],
)
def test_mujoco_tasks_are_found(spelling, task):
    env = envs.mujoco(spelling, num_envs=4)
    assert env.config == {
        "type": "volvox.envs.mujoco",
        "task": task,
        "num_envs": 4,
        "groups": 1,
        "threads": None,
        "max_episode_steps": 1_000,
    }
    assert env.spec.name == task
    assert env.spec.num_actions is None


def test_mujoco_actions_outside_their_bounds_are_refused_or_clipped():
    """Clipped where nothing can be raised: the control cost of Humanoid is then that of 0.4, not of 5."""
    env = envs.mujoco("Humanoid", num_envs=2)
    (group,) = env.make(0, host=True)
    state, _ = group.recv(group.init())
    state = group.send(state, np.full((2, 17), np.float32(0.4)))  # a little more than 0.4
    state, _ = group.recv(state)
    for wrong, error in ((5.0, ValueError), (np.nan, FloatingPointError)):
        action = np.zeros((2, 17), np.float32)
        action[1, 3] = wrong
        with pytest.raises(error, match="Humanoid-v5"):
            group.send(state, action)
    group.close()

    rewards = []
    for action in (0.4, 5.0):
        (group,) = env.make(0)
        state, _ = group.recv(group.init())
        state, step = group.recv(group.send(state, jnp.full((2, 17), action)))
        rewards.append(jax.block_until_ready(step.reward))
        group.close()
    np.testing.assert_allclose(*rewards, rtol=1e-5)


def test_mujoco_bounds_and_frames():
    spec = envs.mujoco("Humanoid", num_envs=4, frame_skip=3).spec
    assert spec.action_high.dtype == spec.action_low.dtype == np.float32
    np.testing.assert_allclose(spec.action_high, np.full(17, 0.4), rtol=1e-6)
    np.testing.assert_allclose(spec.action_low, np.full(17, -0.4), rtol=1e-6)
    assert spec.frame_skip == 3
    for wrong in ("HalfCheeta", "HalfCheetah-v9"):
        with pytest.raises(ValueError, match=f"{wrong}.*did you mean 'HalfCheetah"):
            envs.mujoco(wrong, num_envs=4)
