"""Populations as few bases and many seeds: noise, decoding, lineages."""

from volvox.population.combination import weighted_noise as weighted_noise
from volvox.population.decoding import Encoding as Encoding
from volvox.population.decoding import Member as Member
from volvox.population.decoding import decode as decode
from volvox.population.decoding import decode_many as decode_many
from volvox.population.decoding import draw_seeds as draw_seeds
from volvox.population.decoding import encoding as encoding
from volvox.population.decoding import member_params as member_params
from volvox.population.lineage import Genome as Genome
from volvox.population.lineage import Lineage as Lineage
from volvox.population.lineage import load as load
from volvox.population.lineage import rebuild as rebuild
from volvox.population.lineage import save as save
from volvox.population.noise import Noise as Noise
from volvox.population.noise import generator as generator
from volvox.population.noise import low_rank as low_rank
from volvox.population.noise import published_table as published_table
from volvox.population.noise import table as table
