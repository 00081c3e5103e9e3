"""The loop over environments, the evaluation of populations on it, and scores of single policies.

An algorithm gives the loop its `Stages`; `Loop` makes the environments and runs it in chunks; `PopulationEvaluator`
plays populations; `play` scores one network.

    loop = Loop(Stages(act, work), env.make)
    loop.open(seed_of(key))
    for chunk in loop.run(carry, memory, rounds_left=lambda carry: 100 - int(carry.round)):
        carry, memory = chunk.carry, chunk.memory
"""

from volvox.rollout.behaviors import Behavior, Last, Nothing, Trajectory
from volvox.rollout.driver import Chunk, Loop, seed_of
from volvox.rollout.evaluator import PopulationEvaluator, RolloutStatistics
from volvox.rollout.pipeline import LoopState, Stages, driven, traced
from volvox.rollout.profile import Times, time_parts
from volvox.rollout.scoring import Score, play, play_randomly, reference_batch

__all__ = [
    "Behavior",
    "Chunk",
    "Last",
    "Loop",
    "LoopState",
    "Nothing",
    "PopulationEvaluator",
    "RolloutStatistics",
    "Score",
    "Stages",
    "Times",
    "Trajectory",
    "driven",
    "play",
    "play_randomly",
    "reference_batch",
    "seed_of",
    "time_parts",
    "traced",
]
