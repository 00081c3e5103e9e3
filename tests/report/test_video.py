import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from volvox.envs import atari
from volvox.report import video
from volvox.report.video import record_video
from volvox.types import Env, EnvGroup, EnvSpec, Policy, TimeStep

SPEC = EnvSpec("squares", (12, 20, 3), np.uint8, 4, None, 0, 0, 9, 4)


def squares(spec=SPEC, *, closed=None):
    """Shows the number of steps as the newest channel's brightness; the action is the reward."""

    def make(seed, *, max_episode_steps=None, num_envs=None, num_groups=None, host=False):
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


def constant(output):
    return Policy(
        init=lambda key: jnp.zeros(()),
        prepare=lambda params: params + 1,
        initial_state=lambda batch: (),
        apply=lambda variables, observation, state, key: (variables * jnp.array([output]), state),
        from_noise=lambda noise: noise,
        config={},
    )


NETWORK = constant([0.0, 3.0, 1.0, 2.0])


def decode(path, height, width):
    command = [get_ffmpeg_exe(), "-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "gray", "-"]
    data = subprocess.run(command, check=True, capture_output=True).stdout
    return np.frombuffer(data, np.uint8).reshape(-1, height, width)


def test_the_newest_channel_of_every_step(tmp_path):
    closed = []
    recorded = record_video(squares(closed=closed), NETWORK, jnp.zeros(()), tmp_path / "new" / "a.mp4")
    assert recorded == (tmp_path / "new" / "a.mp4", 9.0, 9)  # the greedy action is 1
    pictures = decode(recorded.path, 48, 80)
    np.testing.assert_allclose(pictures.mean((1, 2)), 20 * np.arange(10), atol=6)
    assert closed == [True]
    assert [p.name for p in recorded.path.parent.iterdir()] == ["a.mp4"]


def test_max_steps(tmp_path):
    recorded = record_video(squares(), NETWORK, jnp.zeros(()), tmp_path / "a.mp4", max_steps=4, fps=5)
    assert recorded.length == 4
    assert len(decode(recorded.path, 48, 80)) == 5


def test_continuous_actions(tmp_path):
    spec = SPEC._replace(num_actions=None, action_shape=(2,), action_low=-1.0, action_high=1.0)
    recorded = record_video(squares(spec), constant([0.5, 7.0]), jnp.zeros(()), tmp_path / "a.mp4", max_steps=2)
    assert recorded.episode_return == 3.0  # 0.5, and 7 clipped to 1; twice


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"observation_shape": (3,)}, {}, r"squares cannot be filmed: a video needs uint8 images .* got uint8 \[3\]"),
        ({"observation_dtype": np.float32}, {}, "got float32"),
        ({}, {"path": "a.gif"}, "ends in .mp4, got a.gif"),
        ({}, {"max_steps": 0}, "max_steps must be at least 1"),
    ],
)
def test_what_cannot_be_filmed(changes, arguments, message):
    with pytest.raises(ValueError, match=message):
        record_video(squares(SPEC._replace(**changes)), NETWORK, jnp.zeros(()), **{"path": "a.mp4", **arguments})


def test_an_error_while_playing_leaves_nothing(tmp_path):
    closed = []

    def fail(variables, observation, state, key):
        raise ArithmeticError("no output")

    with pytest.raises(ArithmeticError, match="no output"):
        record_video(squares(closed=closed), NETWORK._replace(apply=fail), jnp.zeros(()), tmp_path / "a.mp4")
    assert list(tmp_path.iterdir()) == []
    assert closed == [True]


def test_a_failing_encoder_is_an_error_with_its_words(tmp_path, monkeypatch):
    encoder = tmp_path / "ffmpeg"
    encoder.write_text("#!/bin/sh\necho no such codec >&2\nexit 1\n")
    encoder.chmod(0o755)
    monkeypatch.setattr(video, "get_ffmpeg_exe", lambda: str(encoder))
    with pytest.raises(RuntimeError, match=r"ffmpeg .*: no such codec"):
        record_video(squares(), NETWORK, jnp.zeros(()), tmp_path / "a.mp4")
    assert [p.name for p in tmp_path.iterdir()] == ["ffmpeg"]


def _linear(spec):
    weights = jax.random.normal(jax.random.key(1), (np.prod(spec.observation_shape), spec.num_actions))
    return NETWORK._replace(
        prepare=lambda params: params,
        apply=lambda w, x, state, key: (x.reshape(1, -1).astype(jnp.float32) @ w, state),
    ), weights


@pytest.mark.parametrize("settings", [{}, {"sticky_actions": 0.25}, {"preprocessing": "uber"}])
def test_an_atari_game_in_colour(tmp_path, settings):
    env = atari("Frostbite", num_envs=4, groups=2, **settings)
    network, weights = _linear(env.spec)
    recorded = record_video(env, network, weights, tmp_path / "a.mp4", seed=3, max_steps=50)
    pictures = decode(recorded.path, 630, 480)
    assert recorded.length <= 50
    assert len(pictures) == recorded.length + 1 + len(env.config.get("opening", ()))
    assert pictures[0].std() > 10


def test_a_camera_that_shows_another_game_is_noticed(tmp_path, monkeypatch):
    env = atari("Frostbite", num_envs=1, groups=1)
    network, weights = _linear(env.spec)
    camera = video._colour(env)
    other = camera._replace(make=lambda seed, **settings: camera.make(seed + 1, **settings))
    monkeypatch.setattr(video, "_colour", lambda env: other)
    with pytest.raises(RuntimeError, match="the camera's emulator shows another game"):
        record_video(env, network, weights, tmp_path / "a.mp4", max_steps=50)
    assert list(tmp_path.iterdir()) == []
