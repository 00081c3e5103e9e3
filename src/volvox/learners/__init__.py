"""Learners: one file for each algorithm, a base for on-policy ones, and the loop that trains them (`volvox.learn`).

algorithm = vx.learn(vx.A3C(), network, env)
algorithm = vx.learn(vx.TD3(), vx.networks.ActorAndCritic(actor, critic), env)

Here are the parts of a learner of one's own; the learners themselves are names of `volvox`.
"""

from volvox.learners.learner import Learner, Schedule, Turn
from volvox.learners.on_policy import OnPolicy

__all__ = ["Learner", "OnPolicy", "Schedule", "Turn"]
