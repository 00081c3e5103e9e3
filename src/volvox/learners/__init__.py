"""Learners: one file for each algorithm, a base for on-policy ones, and the loop that trains them (`volvox.learn`).

    algorithm = vx.learn(vx.A3C(), network, env)
    algorithm = vx.learn(vx.TD3(), vx.networks.ActorAndCritic(actor, critic), env)

This package exports the interface and the on-policy base for your own learners, and `Choice` and `Range`, from which
sweeps and population-based training draw settings. `volvox` exports the learners themselves.
"""

from volvox.learners.learner import Learner, Schedule, Turn
from volvox.learners.on_policy import OnPolicy
from volvox.learners.space import Choice, Range

__all__ = ["Choice", "Learner", "OnPolicy", "Range", "Schedule", "Turn"]
