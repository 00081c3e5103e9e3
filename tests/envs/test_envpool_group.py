import gc
import os
import warnings

import jax
import numpy as np
import pytest

from volvox import envs
from volvox.envs.envpool_tasks import _time_step, load_envpool
from volvox.envs.groups import environment_seeds


def raw_pool(task, *, seed, num_envs, **config):
    seeds = environment_seeds(seed, group=0, num_envs=num_envs)
    return load_envpool().make(task, env_type="gymnasium", num_envs=num_envs, batch_size=num_envs, seed=seeds, **config)


def test_images_are_envpools_transposed_and_ends_are_its_ends(play, actions_for):
    env = envs.atari("frostbite", num_envs=2, groups=1, max_episode_steps=8)
    actions = actions_for(env, 20)
    step = play(env, actions, 4)
    raw = raw_pool("Frostbite-v5", seed=4, num_envs=2, max_episode_steps=8)
    raw.async_reset()
    for beat in range(21):
        observation, reward, terminated, truncated, info = raw.recv()
        np.testing.assert_array_equal(step.observation[beat], observation.transpose(0, 2, 3, 1))
        np.testing.assert_array_equal(step.reward[beat], reward)
        np.testing.assert_array_equal(step.terminated[beat], terminated)
        np.testing.assert_array_equal(step.truncated[beat], truncated)
        np.testing.assert_array_equal(step.extras["ram"][beat], info["ram"])
        np.testing.assert_array_equal(step.extras["lives"][beat], info["lives"])
        if beat < 20:
            raw.send(actions[beat])


def test_mujoco_in_jit_matches_envpools_doubles(play, actions_for):
    env = envs.mujoco("HalfCheetah", num_envs=3)
    actions = actions_for(env, 50)
    steps = play(env, actions, 9)
    raw = raw_pool("HalfCheetah-v5", seed=9, num_envs=3)
    raw.async_reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gymnasium's, about float64 bounds
        for beat in range(50):
            observation, reward, *_ = raw.recv()
            np.testing.assert_allclose(steps.observation[beat], observation, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(steps.reward[beat], reward, rtol=1e-5, atol=1e-5)
            raw.send(actions[beat].astype(np.float64))
        raw.recv()
    assert steps.observation.dtype == np.float32
    assert not jax.config.jax_enable_x64


def test_rewards_are_unclipped(play):
    actions = np.tile(np.arange(120, dtype=np.int32)[:, None] % 7, (1, 2))
    steps = {}
    for clip in (False, True):
        env = envs.envpool("Assault-v5", num_envs=2, reward_clip=clip)
        steps[clip] = play(env, actions, host=True)
    assert steps[True].reward.max() > 1
    np.testing.assert_array_equal(steps[True].reward, steps[False].reward)


def test_an_end_at_the_time_limit_is_a_termination(play):
    env = envs.atari("assault", num_envs=2, groups=1)
    idle = np.zeros((200, 2), np.int32)
    step = play(env, idle, host=True)
    ended = int(step.terminated[:, 0].argmax())
    assert step.terminated[ended, 0]
    length = int(step.extras["elapsed_steps"][ended, 0])
    step = play(env, idle[: ended + 1], host=True, max_episode_steps=length)
    assert step.terminated[ended, 0]
    assert not step.truncated[ended, 0]
    assert step.first[ended + 1, 0]


def test_episodes_of_highway_last_their_duration():
    assert envs.envpool("Racetrack-v0", num_envs=2).spec.max_episode_steps == 300 * 5
    longer = envs.envpool("Highway-v0", num_envs=2, duration=100)
    assert longer.spec.max_episode_steps == 100
    assert envs.envpool("Highway-v0", num_envs=2, duration=100, max_episode_steps=100).spec == longer.spec
    with pytest.raises(ValueError, match="max_episode_steps=40"):
        envs.envpool("Highway-v0", num_envs=2, duration=100, max_episode_steps=40)


def test_an_end_after_the_limit_is_a_termination():
    nothing, info = np.zeros(3, bool), {"elapsed_step": np.array([1_000, 1_001, 1_001], np.int32)}
    answer = np.zeros((3, 1)), np.zeros(3), nothing, np.array([True, True, False]), info
    step = _time_step(nothing, answer, limit=1_000)
    np.testing.assert_array_equal(step.terminated, [False, True, False])
    np.testing.assert_array_equal(step.truncated, [True, False, False])


@pytest.mark.parametrize(
    ("task", "name", "shape"),
    [
        ("Pong-v5", None, (84, 84, 4)),  # envpool has (4, 84, 84)
        ("Play2048-v1", None, (4, 4, 31)),
        ("SearchAndRescue-v0", "searcher_views", (2, 3, 128)),  # searchers, kinds, rays: no image
        ("MiniGrid-Empty-5x5-v0", "image", (7, 7, 3)),
    ],
)
def test_channels_of_images_are_last_and_other_arrays_as_they_are(task, name, shape):
    seen = envs.envpool(task, num_envs=1).spec.observation_shape
    assert (seen if name is None else seen[name]) == shape


@pytest.mark.parametrize("host", [False, True])
def test_close_ends_the_threads(host, drive, actions_for):
    env = envs.envpool("CartPole-v1", num_envs=4, threads=4)
    before = len(os.listdir("/proc/self/task"))
    (group,) = env.make(0, host=host)
    drive(group, actions_for(env, 3))
    during = len(os.listdir("/proc/self/task"))
    group.close()
    group.close()
    gc.collect()
    assert during - len(os.listdir("/proc/self/task")) >= 4
    assert before <= during


def test_bounds_are_those_of_each_component():
    """CarRacing steers from -1 to 1, but its gas and brake begin at 0."""
    spec = envs.envpool("CarRacing-v3", num_envs=2).spec
    np.testing.assert_array_equal(spec.action_low, np.array([-1, 0, 0], np.float32))
    np.testing.assert_array_equal(spec.action_high, np.ones(3, np.float32))
    assert spec.action_low.dtype == spec.action_high.dtype == np.float32


def test_seeds_differ_between_environments_and_groups():
    seeds = [environment_seeds(7, group=group, num_envs=64) for group in range(8)]
    assert len({seed for group in seeds for seed in group}) == 8 * 64
    assert seeds[0][:16] == environment_seeds(7, group=0, num_envs=16)
    # Published runs were played with such seeds.
    assert environment_seeds(3, group=1, num_envs=3) == [228_595_140, 1_330_153_113, 429_670_555]
    assert all(0 <= seed < 2**31 for group in seeds for seed in group)


@pytest.mark.parametrize(
    ("task", "arguments"),
    [
        ("Frostbit-v5", {}),
        ("Pong-v5", {"noop_maxx": 3}),
        ("CliffWalking-v1", {"max_episode_steps": 100}),
        ("Go9x9-v1", {}),  # for two players
    ],
)
def test_mistakes_are_refused_before_anything_is_made(task, arguments):
    with pytest.raises((ValueError, TypeError), match="|".join([task.partition("-")[0], *arguments])):
        envs.envpool(task, **{"num_envs": 4, **arguments})
