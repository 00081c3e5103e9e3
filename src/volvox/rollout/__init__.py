"""The loop over environments, the evaluation of populations on it, and scores of single policies.

An algorithm gives the loop its `Stages`; `Loop` makes the environments and runs it in chunks (`volvox.rollout.loop`);
`PopulationEvaluator` plays populations (`volvox.rollout.evaluator`); `play` scores one network.
"""

from volvox.rollout.behaviors import Behavior, Last, Trajectory

__all__ = ["Behavior", "Last", "Trajectory"]
