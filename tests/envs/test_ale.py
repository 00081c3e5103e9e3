import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox import envs


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Frostbite", "Frostbite"),
        ("frostbite", "Frostbite"),
        ("Frostbite-v5", "Frostbite"),
        ("UpNDown", "UpNDown"),
        ("up_n_down", "UpNDown"),
        ("Space Invaders", "SpaceInvaders"),
    ],
)
def test_games_are_found_in_the_usual_spellings(spelling, name):
    env = envs.atari(spelling)
    assert env.spec.name == name
    assert env.config["task"] == f"{name}-v5"
    assert (env.num_envs, env.num_groups) == (128, 2)


def test_all_games_make_recipes():
    names = envs.atari_games()
    assert len(names) > 50
    assert all(envs.atari(name).spec.name == name for name in names[::26])


def test_settings_reach_the_emulator(drive):
    env = envs.atari(
        "pong",
        num_envs=2,
        groups=1,
        stack=2,
        frame_skip=3,
        image_size=42,
        full_action_space=True,
        sticky_actions=0.25,
        max_episode_steps=4,
    )
    assert env.spec.observation_shape == (42, 42, 2)
    assert env.spec.num_actions == 18
    assert env.spec.frame_skip == 3
    assert env.config["settings"]["repeat_action_probability"] == 0.25
    (group,) = env.make(0, host=True)
    step = drive(group, np.full((6, 2), 17, np.int32))
    group.close()
    assert step.observation.shape == (7, 2, 42, 42, 2)
    # The first stack repeats one frame; later the newest frame is the last channel.
    np.testing.assert_array_equal(step.observation[0, ..., 0], step.observation[0, ..., 1])
    np.testing.assert_array_equal(step.observation[2, ..., 0], step.observation[1, ..., 1])


def test_a_lost_life_ends_an_episode_where_asked(drive):
    env = envs.atari("assault", num_envs=2, groups=1, episodic_life=True)
    (group,) = env.make(0, host=True)
    step = drive(group, np.zeros((120, 2), np.int32))
    group.close()
    beat, which = np.argwhere(step.terminated)[0]
    assert step.extras["lives"][beat, which] > 0
    assert step.first[beat + 1, which]
    assert step.extras["elapsed_steps"][beat + 1, which] > 0


def test_equal_settings_are_the_same_recipe():
    assert envs.atari("pong").config == envs.atari("Pong-v5", noop_max=30).config
    assert envs.atari("pong").config != envs.atari("pong", noop_max=20).config
    preset = envs.atari("pong", num_envs=8, groups=2)
    assert preset.config == envs.envpool_task("Pong-v5", num_envs=8, groups=2).config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"game": "Frostbit"}, "game 'Frostbit' is not an Atari game envpool knows; the nearest are 'Frostbite'"),
        ({"game": "HalfCheetah"}, "game 'HalfCheetah' is not an Atari game"),
        ({"noop_max": 0}, "noop_max must be an integer of at least 1, got 0"),
        ({"stack": 0}, "stack must be an integer of at least 1, got 0"),
        ({"frame_skip": 0}, "frame_skip must be an integer of at least 1, got 0"),
        ({"image_size": 0}, "image_size must be an integer of at least 5, got 0"),
        ({"num_envs": 127}, "use num_envs=126 or num_envs=128"),
        ({"num_envs": True}, "num_envs must be an integer of at least 1, got True"),
        ({"groups": 0}, "groups must be an integer of at least 1, got 0"),
        ({"max_episode_steps": 0}, "max_episode_steps must be an integer of at least 1, got 0"),
        ({"sticky_actions": 1.0}, "sticky_actions must be a probability"),
    ],
)
def test_mistakes_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        envs.atari(**{"game": "Pong", **arguments})


@pytest.mark.parametrize(
    ("spelling", "task"),
    [("HalfCheetah", "HalfCheetah-v5"), ("halfcheetah-v4", "HalfCheetah-v4"), ("humanoid", "Humanoid-v5")],
)
def test_mujoco_tasks_are_found(spelling, task):
    env = envs.mujoco(spelling, num_envs=4)
    assert env.config["task"] == task
    assert env.spec.name == task
    assert env.spec.num_actions is None


def test_mujoco_actions_outside_their_bounds_are_refused_or_clipped():
    """Clipped where nothing can be raised: the control cost of Humanoid is then that of 0.4, not of 5."""
    env = envs.mujoco("Humanoid", num_envs=2)
    (group,) = env.make(0, host=True)
    state, _ = group.recv(group.init())
    state = group.send(state, np.full((2, 17), np.float32(0.4)))  # a little more than 0.4
    state, _ = group.recv(state)
    for wrong in (5.0, np.nan):
        action = np.zeros((2, 17), np.float32)
        action[1, 3] = wrong
        with pytest.raises(ValueError, match=rf"an action of {wrong} is outside of Humanoid-v5's bounds, -0.4 to 0.4"):
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
    with pytest.raises(ValueError, match="'HalfCheeta' is not a MuJoCo task envpool knows; the nearest are 'HalfChe"):
        envs.mujoco("HalfCheeta", num_envs=4)
    with pytest.raises(ValueError, match="'HalfCheetah-v9' is not a MuJoCo task"):
        envs.mujoco("HalfCheetah-v9", num_envs=4)
