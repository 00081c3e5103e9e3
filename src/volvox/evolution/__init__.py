"""Evolution: genetic algorithms, evolution strategies, novelty search, random search, and the algorithms of evosax."""

from volvox.evolution.algorithm import EvolveState, evolve
from volvox.evolution.es import ES, ESState
from volvox.evolution.evosax import Evosax, EvosaxState
from volvox.evolution.ga import GA, GAState
from volvox.evolution.novelty import Novelty, NoveltyState
from volvox.evolution.schedules import Cutoff, parse_cutoff, schedule
from volvox.evolution.strategy import Strategy, fitness, mean_length
from volvox.evolution.validation import EliteScore, Validation

__all__ = [
    "ES",
    "GA",
    "Cutoff",
    "ESState",
    "EliteScore",
    "EvolveState",
    "Evosax",
    "EvosaxState",
    "GAState",
    "Novelty",
    "NoveltyState",
    "Strategy",
    "Validation",
    "evolve",
    "fitness",
    "mean_length",
    "parse_cutoff",
    "schedule",
]
