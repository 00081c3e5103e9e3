"""Openings and frames, against emulators that are driven without them."""

import jax.numpy as jnp
import numpy as np
import probes
import pytest

from volvox import envs
from volvox.envs.preprocessing import opening, resize_bilinear

pytestmark = pytest.mark.optimized

STEPS = 6


def numpy_resize(image, size):
    """Pixel by pixel from the definition, in doubles."""
    height, width = image.shape
    out = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            y, x = i * (height - 1) / (size - 1), j * (width - 1) / (size - 1)
            i0, j0 = min(int(y), height - 1), min(int(x), width - 1)
            i1, j1 = min(i0 + 1, height - 1), min(j0 + 1, width - 1)
            upper = image[i0, j0] * (1 - (x - j0)) + image[i0, j1] * (x - j0)
            lower = image[i1, j0] * (1 - (x - j0)) + image[i1, j1] * (x - j0)
            out[i, j] = upper * (1 - (y - i0)) + lower * (y - i0)
    return out


@pytest.mark.parametrize(("height", "width", "size"), [(1, 7, 5), (40, 23, 2), (9, 30, 20)])
def test_resizing_is_the_definition(height, width, size):
    images = np.random.default_rng(0).integers(0, 256, (2, height, width)).astype(np.float32)
    resized = resize_bilinear(jnp.asarray(images), size, jnp.int32(0))
    assert resized.shape == (2, size, size)
    for image, ours in zip(images, resized, strict=True):
        np.testing.assert_allclose(ours, numpy_resize(image.astype(float), size), rtol=0, atol=2e-2)
        np.testing.assert_array_equal(ours[0, 0], image[0, 0])
        np.testing.assert_allclose(ours[-1, -1], image[-1, -1], atol=2e-2)


@pytest.mark.parametrize(
    ("game", "begins_with"), [("Frostbite", [1, 2]), pytest.param("Freeway", [], marks=pytest.mark.slow)]
)
def test_uber_is_the_raw_game_after_its_opening(play, game, begins_with):
    actions = np.random.default_rng(0).integers(0, 3, (STEPS, 2)).astype(np.int32)
    screen = {"stack_num": 1, "img_height": 210, "img_width": 160}
    raw = envs.envpool(f"{game}-v5", num_envs=2, use_fire_reset=False, **screen)
    begun = np.repeat(np.array(begins_with, np.int32)[:, None], 2, axis=1)
    expected = play(raw, np.concatenate([begun, actions]), 3, host=True)

    env = envs.atari(game, num_envs=2, groups=1, preprocessing="uber")
    assert env.spec.observation_dtype == np.float32
    # Whatever is sent during the opening is not played.
    ours = play(env, np.concatenate([np.full_like(begun, 5), actions]), 3)

    start = len(begins_with)
    assert ours.first[: start + 1].all()
    assert not ours.first[start + 1 :].any()
    np.testing.assert_array_equal(ours.extras["ram"], expected.extras["ram"])
    np.testing.assert_array_equal(ours.extras["elapsed_steps"][start:, 0], np.arange(STEPS + 1))
    np.testing.assert_array_equal(ours.reward[start + 1 :], expected.reward[start + 1 :])
    frames = [numpy_resize(screen[0, ..., 0] / 255, 84) for screen in expected.observation]
    black = np.zeros((84, 84))
    for step in range(STEPS + 1):
        stack = [frames[start + step - back] if step >= back else black for back in (3, 2, 1, 0)]
        np.testing.assert_allclose(ours.observation[start + step, 0], np.stack(stack, -1), rtol=0, atol=1e-4)


def test_tasks_with_a_limit_of_their_own_take_no_opening():
    with pytest.raises(ValueError, match="max_episode_steps"):
        opening(envs.envpool("CliffWalking-v1", num_envs=2), (1,)).make(0)


def test_an_end_inside_the_opening_begins_anew(play):
    corridor = probes.countdown(num_envs=1, max_episode_steps=1)
    # The pool of an opening lives as much longer; what ends it early is the game.
    env = opening(
        corridor._replace(make=lambda seed, **given: corridor.make(seed, **{**given, "max_episode_steps": 1})), (1, 1)
    )
    step = play(env, np.zeros((9, 1), np.int32), host=True)
    assert step.first.all()
    assert not (step.terminated | step.truncated).any()
    assert not step.reward.any()
