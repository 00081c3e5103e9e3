"""Parts of learners side by side, by their index."""

import jax.numpy as jnp
import numpy as np
import pytest

from volvox.learners.compression import pick


def test_a_learner_is_picked_by_its_index():
    np.testing.assert_array_equal(pick({"w": jnp.arange(6).reshape(2, 3)}, 1)["w"], [3, 4, 5])
    with pytest.raises(ValueError, match="learner=2"):
        pick({"w": jnp.arange(6).reshape(2, 3)}, 2)
