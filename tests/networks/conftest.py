import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.types import EnvSpec


@pytest.fixture
def make_spec():
    """An environment's spec of which only the given fields matter."""

    def make(shape, num_actions=None, action_shape=None, dtype=np.float32, name="Probe"):
        return EnvSpec(
            name=name,
            observation_shape=shape,
            observation_dtype=dtype,
            num_actions=num_actions,
            action_shape=action_shape,
            action_low=None if action_shape is None else np.full(action_shape, -1.0, np.float32),
            action_high=None if action_shape is None else np.full(action_shape, 1.0, np.float32),
            max_episode_steps=10,
            frame_skip=1,
        )

    return make


@pytest.fixture
def atari_spec(make_spec):
    return make_spec((84, 84, 4), num_actions=18, dtype=np.uint8, name="Frostbite")


@pytest.fixture
def normal_like():
    """Standard normal noise shaped as params."""

    def make(params, seed=0):
        rng = np.random.default_rng(seed)
        return jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape, np.float32)), params)

    return make
