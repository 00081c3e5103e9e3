"""Conformance: does a part that somebody wrote keep the promises that the rest of volvox relies on?

vx.testing.check_environment(env)  # raises AssertionError, which says what to mend
vx.testing.check_strategy(strategy)
vx.testing.check_algorithm(algorithm)
"""

from volvox.testing.algorithms import check_algorithm
from volvox.testing.environments import check_environment
from volvox.testing.strategies import check_strategy

__all__ = ["check_algorithm", "check_environment", "check_strategy"]
