import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.types import EnvSpec


@pytest.fixture
def make_spec():
    """An environment's spec of which only the given fields matter."""

    def make(shape, num_actions=None, action_shape=None, dtype=np.float32):
        low, high = (None if action_shape is None else np.full(action_shape, x, np.float32) for x in (-1, 1))
        return EnvSpec("Probe", shape, dtype, num_actions, action_shape, low, high, max_episode_steps=10, frame_skip=1)

    return make


@pytest.fixture
def normal_like():
    """Standard normal noise shaped as params."""

    def make(params, seed=0):
        rng = np.random.default_rng(seed)
        return jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape, np.float32)), params)

    return make
