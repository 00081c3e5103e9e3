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
    member_params,
    outline,
    weighted_noise,
)
from volvox.population.lineage import Genome, Lineage, load, rebuild, save
from volvox.population.noise import Generator, LowRank, Noise, Table, published_table

__all__ = ["Encoding", "Generator", "Genome", "Lineage", "LowRank", "Member", "Noise", "Table", "decode", "decode_many"]
__all__ += ["draw_seeds", "encoding", "load", "member_params", "outline", "published_table", "rebuild", "save"]
__all__ += ["weighted_noise"]
