"""Learners on pipelined environments: one file an algorithm, and what they share (`volvox.learners.learner`).

    algorithm = learn(A3C(), network, env)
    algorithm = learn(TD3(), ActorAndCritic(actor, critic), env)
"""

from volvox.learners.a3c import A3C
from volvox.learners.evaluation import Evaluated
from volvox.learners.functional import from_functions
from volvox.learners.learner import LearnState, learn
from volvox.learners.ppo import PPO
from volvox.learners.protocol import Learner, LearnerSettings, Made, Progress
from volvox.learners.side_by_side import table_of
from volvox.learners.td3 import TD3, variables_of

__all__ = ["A3C", "PPO", "TD3", "Evaluated", "LearnState", "Learner", "LearnerSettings", "Made"]
__all__ += ["Progress", "from_functions", "learn", "table_of", "variables_of"]
