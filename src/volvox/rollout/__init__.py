"""The one loop, its driver, and what populations play on it.

An algorithm gives the loop its `Stages`; `Loop` makes the pools and runs it in chunks; `Evaluator` plays populations;
`play` scores one network.

    loop = Loop(Stages(act, work), env.make)
    loop.open(seed_of(key))
    for chunk in loop.run(carry, memory, rounds_left=lambda carry: 100 - int(carry.round)):
        carry, memory = chunk.carry, chunk.memory
"""

from volvox.rollout.behaviors import Behavior, Last, Nothing, Trajectory
from volvox.rollout.driver import Chunk, Loop, seed_of
from volvox.rollout.evaluator import Evaluator, RolloutStatistics, SlotMemory
from volvox.rollout.pipeline import LoopState, Stages, Times, driven, timed, traced
from volvox.rollout.scoring import Score, play, play_randomly, reference_batch

__all__ = [
    "Behavior",
    "Chunk",
    "Evaluator",
    "Last",
    "Loop",
    "LoopState",
    "Nothing",
    "RolloutStatistics",
    "Score",
    "SlotMemory",
    "Stages",
    "Times",
    "Trajectory",
    "driven",
    "play",
    "play_randomly",
    "reference_batch",
    "seed_of",
    "timed",
    "traced",
]
