import jax
import numpy as np
import pytest

from volvox.testing import actions_for, drive


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
