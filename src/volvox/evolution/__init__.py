"""Evolution: genetic algorithms, evolution strategies, novelty search, random search, and the algorithms of evosax.

`volvox.evolve` plays the populations that a strategy asks for. Here are the parts of a strategy of one's own; `GA`,
`ES`, `Novelty` and `Validation` are names of `volvox`.
"""

from volvox.evolution.evosax import Evosax
from volvox.evolution.strategy import Strategy, fitness

__all__ = ["Evosax", "Strategy", "fitness"]
