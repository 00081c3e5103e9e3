"""Populations as few bases and many seeds: noise, decoding, lineages.

code = encoding(volvox.networks.genotype(module, env.spec), Table())
params = rebuild(code, load("elite.json"))
"""

from volvox.population.decoding import (
    Encoding,
    Member,
    decode,
    decode_many,
    draw_seeds,
    encoding,
    first_ancestors,
    member_params,
    outline,
    weighted_noise,
)
from volvox.population.lineage import Genome, load, rebuild, save
from volvox.population.noise import Generator, LowRank, Noise, Table, published_table
from volvox.population.vectors import explicit, from_vectors, to_vectors

__all__ = [
    "Encoding",
    "Generator",
    "Genome",
    "LowRank",
    "Member",
    "Noise",
    "Table",
    "decode",
    "decode_many",
    "draw_seeds",
    "encoding",
    "explicit",
    "first_ancestors",
    "from_vectors",
    "load",
    "member_params",
    "outline",
    "published_table",
    "rebuild",
    "save",
    "to_vectors",
    "weighted_noise",
]
