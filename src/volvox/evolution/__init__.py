"""Evolution on pipelined pools of environments: genetic algorithms, evolution strategies, novelty and random search."""

from volvox.evolution.algorithm import EvolveState, evolve
from volvox.evolution.es import ES, ESState
from volvox.evolution.ga import GA, GAState
from volvox.evolution.objective import Novelty, NoveltyState, Objective, Returns
from volvox.evolution.schedules import Cutoff, parse_cutoff, schedule
from volvox.evolution.strategy import EliteScore, Phase, Strategy, compiled_phases

__all__ = ["ES", "GA", "Cutoff", "ESState", "EliteScore", "EvolveState", "GAState", "Novelty", "NoveltyState"]
__all__ += ["Objective", "Phase", "Returns", "Strategy", "compiled_phases", "evolve", "parse_cutoff", "schedule"]
