import jax
import numpy as np
import pytest

from volvox.testing import actions_for, drive


@pytest.fixture(scope="session")
def play():
    """Plays actions in the only group of an environment, closes the group, and returns the timesteps."""

    def played(env, actions, seed=0, *, restart_at=None, **options):
        (group,) = env.make(seed, **options)
        try:
            return drive(group, actions, restart_at=restart_at)
        finally:
            group.close()

    return played


@pytest.fixture(name="drive", scope="session")
def _drive():
    return drive


@pytest.fixture(name="actions_for", scope="session")
def _actions_for():
    return actions_for


@pytest.fixture(scope="session")
def assert_equal():
    """Compares trees bit by bit, dtypes included."""

    def check(one, other):
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y, strict=True), one, other)

    return check
