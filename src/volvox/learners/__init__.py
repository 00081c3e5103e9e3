"""Learners on pipelined environments: one file an algorithm, and what they share (`volvox.learners.learner`).

algorithm = learn(A3C(), network, env)
algorithm = learn(TD3(), ActorAndCritic(actor, critic), env)

`explore_then_commit` stands beside them: it learns in small models of finite horizon, without networks or the loop.
"""

from volvox.learners.a3c import A3C
from volvox.learners.evaluation import Evaluated
from volvox.learners.lasso_fqi import LassoFQI, explore_then_commit
from volvox.learners.learner import Learner, LearnerSettings, LearnState, Progress, learn
from volvox.learners.primal_dual import PrimalDual
from volvox.learners.side_by_side import table_of
from volvox.learners.td3 import TD3, variables_of

__all__ = ["A3C", "TD3", "Evaluated", "LassoFQI", "LearnState", "Learner", "LearnerSettings", "PrimalDual", "Progress"]
__all__ += ["explore_then_commit", "learn", "table_of", "variables_of"]
