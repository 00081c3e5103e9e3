"""gymnax and Brax, where they are installed: their steps, and a time limit that truncates."""

import jax
import numpy as np
import pytest

from volvox import envs


def test_gymnax_steps_are_its_own_and_the_time_limit_truncates(drive):
    gymnax = pytest.importorskip("gymnax", reason='needs pip install "volvox[gymnax]"')
    env = envs.gymnax("CartPole-v1", num_envs=3, max_episode_steps=8)
    (group,) = env.make(0)
    actions = np.tile(np.array([0, 1], np.int32), 15)[:, None].repeat(3, axis=1)  # keeps the pole up for 8 timesteps
    played = drive(group, actions)
    assert played.truncated[8].all()
    assert not played.terminated.any()
    assert played.first[9].all()
    task, params = gymnax.make("CartPole-v1")
    state = task.reset_env(jax.random.key(0), params)[1].replace(
        **dict(zip(("x", "x_dot", "theta", "theta_dot"), played.observation[0, 0], strict=True))
    )
    for t in range(1, 9):
        seen, state, reward, *_ = task.step_env(jax.random.key(1), state, actions[t - 1, 0], params)
        np.testing.assert_allclose(played.observation[t, 0], seen, rtol=1e-5)
        assert played.reward[t, 0] == reward


def test_gymnaxs_own_limit_is_no_termination(drive):
    pytest.importorskip("gymnax", reason='needs pip install "volvox[gymnax]"')
    env = envs.gymnax("Pendulum-v1", num_envs=2)
    assert env.spec.max_episode_steps == 200
    assert env.spec.action_shape == (1,)
    (group,) = env.make(0)
    played = drive(group, np.zeros((205, 2, 1), np.float32))
    assert played.truncated[200].all()
    assert not played.terminated.any()
    assert played.first[201].all()


@pytest.mark.parametrize("wrong", [{"task": "CartPol-v1"}, {"gravit": 1.0}, {"max_steps_in_episode": 9}])
def test_mistakes_are_refused(wrong):
    pytest.importorskip("gymnax", reason='needs pip install "volvox[gymnax]"')
    with pytest.raises(ValueError, match="unknown"):
        envs.gymnax(**{"task": "CartPole-v1", "num_envs": 1, **wrong})


def test_the_share_of_the_limit_in_an_observation(drive):
    pytest.importorskip("gymnax", reason='needs pip install "volvox[gymnax]"')
    (group,) = envs.gymnax("DiscountingChain-bsuite", num_envs=1, max_episode_steps=8).make(0)
    played = drive(group, np.zeros((9, 1), np.int32))
    np.testing.assert_allclose(played.observation[:9, 0, 1], np.arange(9) / 8, rtol=1e-6)
    assert (played.truncated[8], played.terminated.any()) == (True, False)


@pytest.mark.filterwarnings("ignore:Brax System:UserWarning", "ignore:JAXopt is no longer:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Accessing .* directly from `Data`:DeprecationWarning")  # Brax with mjx 3.17
def test_brax_steps_and_truncates(drive, actions_for):
    pytest.importorskip("brax", reason='needs pip install "volvox[brax]"')
    env = envs.brax("inverted_pendulum", num_envs=2, max_episode_steps=3, backend="positional")
    (group,) = env.make(0)
    played = drive(group, 0 * actions_for(env, 5))
    assert played.truncated[3].all()
    assert played.first[4].all()
    with pytest.raises(ValueError, match="unknown task of Brax"):
        envs.brax("inverted_pendulu", num_envs=1)


@pytest.mark.parametrize("name", ["gymnax", "brax"])
def test_a_missing_package_is_told(name, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(ImportError, match=rf'pip install "volvox\[{name}\]"'):
        getattr(envs, name)("ant", num_envs=1)
