"""Evolution: genetic algorithms, evolution strategies, novelty search, random search, and the algorithms of evosax."""

from volvox.evolution.algorithm import evolve
from volvox.evolution.es import ES
from volvox.evolution.evosax import Evosax
from volvox.evolution.ga import GA
from volvox.evolution.novelty import Novelty
from volvox.evolution.strategy import Strategy, Validation, fitness

__all__ = ["ES", "GA", "Evosax", "Novelty", "Strategy", "Validation", "evolve", "fitness"]
