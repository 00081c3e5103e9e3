import subprocess

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from volvox.envs import atari, cartpole, envpool, from_functions, gymnasium, hard_maze, mujoco
from volvox.report import video
from volvox.report.video import filmstrip, record_video
from volvox.types import Policy


def squares(closed=None, dtype=np.uint8, named=False):
    """Shows the number of steps as the newest channel's brightness, in a dict or not; the action is the reward."""

    def observe(step):
        image = jnp.zeros((12, 20, 3), dtype).at[..., -1].set((20 * step).astype(dtype))
        return {"image": image} if named else image

    env = from_functions(
        lambda key: jnp.int32(0),
        lambda step, action, key: (step + 1, jnp.float32(action), False),
        observe,
        name="squares",
        num_envs=1,
        max_episode_steps=9,
        num_actions=4,
    )

    def make(seed, **options):
        return tuple(group._replace(close=lambda: closed.append(True)) for group in env.make(seed, **options))

    return env if closed is None else env._replace(make=make)


def constant(output, mode=lambda output: output.argmax(-1)):
    return Policy(
        init=lambda key: jnp.ones(()),
        initial_state=lambda batch: (),
        apply=lambda variables, observation, state: (variables * jnp.array([output]), state),
        sample=lambda key, output: mode(output),
        mode=mode,
        config={},
    )


POLICY = constant([0.0, 3.0, 1.0, 2.0])


def decode(path, height, width):
    command = [get_ffmpeg_exe(), "-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "gray", "-"]
    data = subprocess.run(command, check=True, capture_output=True).stdout
    return np.frombuffer(data, np.uint8).reshape(-1, height, width)


@pytest.mark.parametrize("named", [False, True])
def test_the_newest_channel_of_every_step(named, tmp_path):
    closed, path = [], tmp_path / "new" / "a.mp4"
    recorded = record_video(squares(closed=closed, named=named), POLICY, jnp.ones(()), path, fps=5)
    assert recorded == (path, 9.0, 9)  # the greedy action is 1
    pictures = decode(recorded.path, 48, 80)
    np.testing.assert_allclose(pictures.mean((1, 2)), 20 * np.arange(10), atol=6)
    assert closed == [True]
    assert [p.name for p in recorded.path.parent.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize(("num_frames", "shown"), [(4, [0, 3, 6, 9]), (2, [0, 9])])
def test_a_filmstrip_shows_evenly_spaced_frames(num_frames, shown, tmp_path):
    recorded = record_video(squares(), POLICY, jnp.ones(()), tmp_path / "a.mp4")
    (axes,) = filmstrip(recorded.path, num_frames).axes
    picture = 255 * np.asarray(axes.get_images()[0].get_array())
    frames = [picture[:, left : left + 80] for left in range(0, picture.shape[1], 88)]  # 8 pixels lie between them
    np.testing.assert_allclose([frame.mean() for frame in frames], 20 * np.array(shown), atol=6)


@pytest.mark.parametrize("env", [squares(dtype=np.float32), envpool("Catch-v0", num_envs=1)])
def test_environments_that_cannot_be_drawn_are_refused(env, tmp_path):
    with pytest.raises(ValueError, match="cannot be drawn"):
        record_video(env, POLICY, jnp.ones(()), tmp_path / "a.mp4")


def test_an_error_while_playing_leaves_nothing(tmp_path):
    closed = []

    def fail(variables, observation, state):
        raise ArithmeticError("no output")

    with pytest.raises(ArithmeticError, match="no output"):
        record_video(squares(closed=closed), POLICY._replace(apply=fail), jnp.ones(()), tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []
    assert closed == [True]


def test_a_failing_encoder_is_an_error_with_its_words(tmp_path, monkeypatch):
    encoder = tmp_path / "ffmpeg"
    encoder.write_text("#!/bin/sh\necho no such codec >&2\nexit 1\n")
    encoder.chmod(0o755)
    monkeypatch.setattr(video, "get_ffmpeg_exe", lambda: str(encoder))
    with pytest.raises(OSError, match=r"ffmpeg .*: no such codec"):
        record_video(squares(), POLICY, jnp.ones(()), tmp_path / "a.mp4")
    assert [p.name for p in tmp_path.iterdir()] == ["ffmpeg"]


def test_an_atari_game_in_colour(tmp_path):
    """Its camera plays the same game: tests/envs/test_envpool_tasks.py."""
    env = atari("Frostbite", num_envs=4, groups=2, preprocessing="uber")
    policy = constant([0.0, 1.0] + 16 * [0.0])
    recorded = record_video(env, policy, jnp.ones(()), tmp_path / "a.mp4", seed=3, max_episode_steps=20)
    pictures = decode(recorded.path, 630, 480)
    assert recorded.length == 20
    assert len(pictures) == 23  # two of the opening
    assert pictures[0].std() > 10


def test_a_game_goes_on_after_a_lost_life(tmp_path):
    """Doing nothing loses the first life of Assault after about 60 timesteps, and the game after about 155."""
    policy, lengths = constant([1.0] + 6 * [0.0]), []
    for options in ({}, {"episodic_life": True}):
        env = atari("Assault", num_envs=2, **options)
        recorded = record_video(env, policy, jnp.ones(()), tmp_path / "a.mp4", max_episode_steps=900)
        lengths.append(recorded.length)
    assert 120 < lengths[0] == lengths[1] < 900


class Lamp(gym.Env):
    """Its picture is as bright as the number of timesteps."""

    action_space, observation_space = gym.spaces.Discrete(2), gym.spaces.Box(0.0, 1.0, (3,))

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(3, np.float32), 1.0, False, False, {}

    def render(self):
        return np.full((30, 41, 3), 20 * self.steps, np.uint8)  # an odd width gets another column


def test_an_environment_of_gymnasium_is_rendered(tmp_path):
    env = gymnasium(Lamp, num_envs=2, workers=2, max_episode_steps=6)
    recorded = record_video(env, constant([1.0, 0.0]), jnp.ones(()), tmp_path / "a.mp4")
    assert recorded[1:] == (6.0, 6)
    pictures = decode(recorded.path, 30, 42)[:, :, :40]
    np.testing.assert_allclose(pictures.mean((1, 2)), 20 * np.arange(7), atol=6)


@pytest.mark.parametrize(
    ("env", "size"),
    [
        (cartpole(num_envs=1), (120, 300)),
        (hard_maze(num_envs=1, groups=1), (208, 208)),
        (envpool("Pendulum-v1", num_envs=1), (500, 500)),
    ],
    ids=lambda x: getattr(getattr(x, "spec", None), "name", None),
)
def test_environments_draw_themselves(env, size, tmp_path):
    output = [1.0] * env.spec.num_outputs
    mode = (lambda output: output.argmax(-1)) if env.spec.num_actions else (lambda output: output / 4)
    recorded = record_video(env, constant(output, mode), jnp.ones(()), tmp_path / "a.mp4", max_episode_steps=8)
    pictures = decode(recorded.path, *size)
    assert len(pictures) == recorded.length + 1
    assert pictures[0].std() > 10
    assert (pictures[0] != pictures[-1]).any()


def test_several_policies_play_side_by_side(tmp_path):
    """The first of three pushes the cart to one side and falls early; its picture stands still afterwards."""
    env = cartpole(num_envs=1)
    policy = constant([1.0, 0.0])

    def apply(variables, observation, state):  # the second and third policy balance for longer
        angle, speed = observation[:, 2], observation[:, 3]
        right = variables * (angle + 0.5 * speed)
        return jnp.stack([jnp.zeros_like(right), right], -1), state

    policy = policy._replace(apply=apply)
    options = {"max_episode_steps": 40, "seed": 1}
    recorded = record_video(env, policy, jnp.array([0.0, 1.0, 1.0]), tmp_path / "a.mp4", num_policies=3, **options)
    pictures = decode(recorded.path, 240, 600)
    first, last = pictures[:, :120, :300].astype(int), pictures[:, 120:, 300:]
    assert recorded.length == 40
    assert recorded.episode_return < 40
    assert last.max() <= 5  # no policy
    changed = np.abs(np.diff(first, axis=0)).max((1, 2)) > 60
    assert changed[:5].all()
    assert not changed[-10:].any()
    assert (np.abs(np.diff(pictures[:, :120, 300:].astype(int), axis=0)).max((1, 2)) > 60)[-10:].any()


@pytest.mark.slow
def test_mujoco_is_drawn_by_envpool(tmp_path, monkeypatch):
    """Without a driver there is one clear error."""
    env, policy = mujoco("HalfCheetah", num_envs=1), constant([0.5] * 6, mode=lambda output: output)
    options = {"path": tmp_path / "a.mp4", "max_episode_steps": 5}
    try:
        record_video(env, policy, jnp.ones(()), **options)
    except OSError as error:
        if "EGL" not in str(error):
            raise
        pytest.skip(str(error))
    pictures = decode(tmp_path / "a.mp4", 480, 480)
    assert len(pictures) == 6
    assert pictures[0].std() > 10
    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", "/nonexistent")
    with pytest.raises(OSError, match="driver is missing"):
        record_video(env, policy, jnp.ones(()), **options)
