"""Transitions of one timestep; what they hold is tested in tests/learners/test_functional.py."""

import jax
import probes

from volvox.data import transitions


def test_the_first_ones_may_be_donated():
    """No array is there twice, which a donation would refuse."""
    first = transitions.init(probes.target(size=2).spec, 3)
    after = jax.jit(lambda x: x, donate_argnums=0)(first)
    assert not after.valid.any()
