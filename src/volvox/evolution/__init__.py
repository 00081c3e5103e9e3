"""Evolution on pipelined pools of environments: genetic algorithms, evolution strategies, novelty and random search."""

from volvox.evolution.algorithm import EvolveState, evolve
from volvox.evolution.ask_tell import Evosax, EvosaxState, Hosted, HostedState, from_ask_tell
from volvox.evolution.compiled import compiled_phases
from volvox.evolution.elitism import AskTell, Elitism, ElitismState
from volvox.evolution.es import ES, ESState
from volvox.evolution.ga import GA, GAState
from volvox.evolution.objective import Novelty, NoveltyState, Objective, Returns
from volvox.evolution.schedules import Cutoff, parse_cutoff, schedule
from volvox.evolution.strategy import EliteScore, Phase, Strategy, fitness, mean_length

__all__ = ["ES", "GA", "AskTell", "Cutoff", "ESState", "EliteScore", "Elitism", "ElitismState", "EvolveState"]
__all__ += ["Evosax", "EvosaxState", "GAState", "Hosted", "HostedState", "Novelty", "NoveltyState", "Objective"]
__all__ += ["Phase", "Returns", "Strategy", "compiled_phases", "evolve", "fitness", "from_ask_tell", "mean_length"]
__all__ += ["parse_cutoff", "schedule"]
