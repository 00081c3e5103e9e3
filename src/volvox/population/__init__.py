"""Populations as few bases and many seeds: noise, decoding, lineages.

The lineage of an elite gives its parameters:

    code = encoding(volvox.networks.genotype(module, env.spec), Table())
    params = rebuild(code, load("elite.json"))
"""

from volvox.population.decoding import encoding, explicit, from_vectors, to_vectors, weighted_noise
from volvox.population.lineage import load, rebuild
from volvox.population.noise import Generator, LowRank, Table

__all__ = [
    "Generator",
    "LowRank",
    "Table",
    "encoding",
    "explicit",
    "from_vectors",
    "load",
    "rebuild",
    "to_vectors",
    "weighted_noise",
]
