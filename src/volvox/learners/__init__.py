"""Learners on pipelined environments: one file an algorithm, and what they share (`volvox.learners.learner`).

algorithm = learn(A3C(), network, env)
algorithm = learn(TD3(), ActorAndCritic(actor, critic), env)
"""

from volvox.learners.a3c import A3C
from volvox.learners.evaluation import Evaluated
from volvox.learners.learner import Learner, LearnerSettings, LearnState, Progress, learn
from volvox.learners.side_by_side import table_of
from volvox.learners.td3 import TD3, variables_of

__all__ = ["A3C", "TD3", "Evaluated", "LearnState", "Learner", "LearnerSettings", "Progress", "learn", "table_of"]
__all__ += ["variables_of"]
