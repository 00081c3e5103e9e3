"""Evolution: genetic algorithms, evolution strategies, novelty search, random search, and the algorithms of evosax.

`volvox.evolve` plays the populations that a strategy asks for. This package exports `Evosax` and the interface for
your own strategies; `volvox` exports `GA`, `ES`, `Novelty` and `Validation`.
"""

from volvox.evolution.evosax import Evosax
from volvox.evolution.strategy import Strategy, fitness

__all__ = ["Evosax", "Strategy", "fitness"]
