"""Learners: one file for each algorithm, a base for on-policy ones, and the loop that trains them (`learn`).

algorithm = learn(A3C(), network, env)
algorithm = learn(TD3(), ActorAndCritic(actor, critic), env)
"""

from volvox.learners.a3c import A3C
from volvox.learners.learner import Learner, Schedule, Turn
from volvox.learners.on_policy import OnPolicy
from volvox.learners.ppo import PPO
from volvox.learners.td3 import TD3
from volvox.learners.training import learn

__all__ = ["A3C", "PPO", "TD3", "Learner", "OnPolicy", "Schedule", "Turn", "learn"]
