import subprocess

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from volvox.envs import atari, cartpole, envpool, gymnasium, hard_maze, mujoco
from volvox.envs.envpool_tasks import color_screen
from volvox.report import video
from volvox.report.video import filmstrip, record_video
from volvox.testing import actions_for, drive
from volvox.types import Env, EnvGroup, EnvSpec, Policy, TimeStep

SPEC = EnvSpec("squares", (12, 20, 3), np.uint8, 4, None, None, None, 9, 4)


def squares(spec=SPEC, *, closed=None):
    """Shows the number of steps as the newest channel's brightness; the action is the reward."""

    def make(seed, *, max_episode_steps=None, num_envs=None, num_groups=None, host=False, render_mode=None):
        assert (num_envs, num_groups, host) == (1, 1, True)

        def show(step, reward, truncated):
            observation = np.zeros((1, *spec.observation_shape), spec.observation_dtype)
            observation[..., -1] = 20 * step
            no = np.array([False])
            return TimeStep(
                observation, np.array([reward], np.float32), np.array([step == 0]), no, np.array([truncated]), {}
            )

        def recv(state):
            step, action = state
            return state, show(step, float(action), step == max_episode_steps)

        def send(state, action):
            assert action.shape == (1, *(spec.action_shape or ()))
            return state[0] + 1, action[0] if spec.num_actions else action[0].sum()

        def close():
            if closed is not None:
                closed.append(True)

        return (EnvGroup(spec, 1, False, lambda: (0, 0), recv, send, lambda state: (0, 0), close),)

    return Env(spec, 1, 1, make, {})


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


def test_the_newest_channel_of_every_step(tmp_path):
    closed = []
    recorded = record_video(squares(closed=closed), POLICY, jnp.ones(()), tmp_path / "new" / "a.mp4")
    assert recorded == (tmp_path / "new" / "a.mp4", 9.0, 9)  # the greedy action is 1
    pictures = decode(recorded.path, 48, 80)
    np.testing.assert_allclose(pictures.mean((1, 2)), 20 * np.arange(10), atol=6)
    assert closed == [True]
    assert [p.name for p in recorded.path.parent.iterdir()] == ["a.mp4"]


def test_max_episode_steps(tmp_path):
    recorded = record_video(squares(), POLICY, jnp.ones(()), tmp_path / "a.mp4", max_episode_steps=4, fps=5)
    assert recorded.length == 4
    assert len(decode(recorded.path, 48, 80)) == 5


@pytest.mark.parametrize(("num_frames", "shown"), [(4, [0, 3, 6, 9]), (2, [0, 9])])
def test_a_filmstrip_shows_evenly_spaced_frames(num_frames, shown, tmp_path):
    recorded = record_video(squares(), POLICY, jnp.ones(()), tmp_path / "a.mp4")
    (axes,) = filmstrip(recorded.path, num_frames).axes
    picture = 255 * np.asarray(axes.get_images()[0].get_array())
    frames = [picture[:, left : left + 80] for left in range(0, picture.shape[1], 88)]  # 8 pixels lie between them
    np.testing.assert_allclose([frame.mean() for frame in frames], 20 * np.array(shown), atol=6)


def test_continuous_actions(tmp_path):
    spec = SPEC._replace(
        num_actions=None, action_shape=(2,), action_low=-np.ones(2, np.float32), action_high=np.ones(2, np.float32)
    )
    policy = constant([0.5, 7.0], mode=lambda output: output.clip(-1, 1))
    recorded = record_video(squares(spec), policy, jnp.ones(()), tmp_path / "a.mp4", max_episode_steps=2)
    assert recorded.episode_return == 3.0  # the mode: 0.5, and 7 clipped to 1; twice


@pytest.mark.parametrize("changes", [{"observation_shape": (3,)}, {"observation_dtype": np.float32}])
def test_other_observations_are_refused(changes, tmp_path):
    with pytest.raises(ValueError, match="cannot be drawn"):
        record_video(squares(SPEC._replace(**changes)), POLICY, jnp.ones(()), tmp_path / "a.mp4")


def test_a_task_that_envpool_cannot_draw_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be drawn"):
        record_video(envpool("Catch-v0", num_envs=1), constant([1.0, 0.0, 0.0]), jnp.ones(()), tmp_path / "a.mp4")


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


def _linear(spec):
    weights = jax.random.normal(jax.random.key(1), (np.prod(spec.observation_shape), spec.num_actions))
    return POLICY._replace(apply=lambda w, x, state: (x.reshape(1, -1).astype(jnp.float32) @ w, state)), weights


@pytest.mark.parametrize(
    "settings",
    [{}, *(pytest.param(x, marks=pytest.mark.slow) for x in ({"sticky_actions": 0.25}, {"preprocessing": "uber"}))],
)
def test_an_atari_game_in_colour(tmp_path, settings):
    env = atari("Frostbite", num_envs=4, groups=2, **settings)
    policy, weights = _linear(env.spec)
    recorded = record_video(env, policy, weights, tmp_path / "a.mp4", seed=3, max_episode_steps=50)
    pictures = decode(recorded.path, 630, 480)
    assert recorded.length <= 50
    assert len(pictures) >= recorded.length + 1  # an opening has more
    assert pictures[0].std() > 10
    played = []
    for recipe in (env, color_screen(env)):
        (group,) = recipe.make(3, num_envs=1, num_groups=1, host=True)
        played.append(drive(group, actions_for(env, 30, num_envs=1)).extras["ram"])
        group.close()
    np.testing.assert_array_equal(*played)  # the camera shows the game that the policy plays


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
        (envpool("LunarLander-v3", num_envs=1), (400, 600)),
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
