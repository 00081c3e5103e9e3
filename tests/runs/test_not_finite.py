"""Rewards and observations that are not finite end a run, and the state before is saved."""

import jax.numpy as jnp
import numpy as np
import pytest

import volvox as vx
from volvox.runs import checkpoint

from .conftest import evolution, learning, train


def broken(*, reward=1.0, observation=1.0):
    """Ten timesteps; the reward and the observation have these values from the third on."""
    return vx.envs.from_functions(
        lambda key: jnp.int32(0),
        lambda t, action, key: (t + 1, jnp.where(t > 2, jnp.float32(reward), 1.0), False),
        lambda t: jnp.where(t > 2, jnp.float32(observation), 1.0)[None],
        name="broken",
        num_envs=4,
        groups=2,
        max_episode_steps=10,
        num_actions=2,
    )


CASES = [
    *((evolution, {"reward": np.inf}), (learning, {"observation": np.nan})),
    pytest.param(evolution, {"observation": np.nan}, marks=pytest.mark.slow),
    pytest.param(learning, {"reward": np.nan}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("make", "values"), CASES)
def test_the_error_names_the_environment(make, values, tmp_path):
    with pytest.raises(FloatingPointError, match="broken"):
        train(make(broken(**values)), tmp_path, steps=2)
    assert checkpoint.steps(tmp_path / "checkpoints") == [0]
