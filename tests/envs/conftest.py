import jax
import numpy as np
import pytest

from volvox.testing import actions_for, drive


def assert_equal(one, other):
    """Bit-equal, dtypes included."""

    def check(x, y):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)

    jax.tree.map(check, one, other)


@pytest.fixture(name="drive", scope="session")
def _drive():
    return drive


@pytest.fixture(name="actions_for", scope="session")
def _actions_for():
    return actions_for


@pytest.fixture(name="assert_equal", scope="session")
def _assert_equal():
    return assert_equal
