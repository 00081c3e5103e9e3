"""Populations that are played on other machines, by actors of Ray.

    workers = vx.distributed.ray(num_actors="nodes")
    algorithm = vx.evolve(vx.GA(population_size=1_000), network, env, workers=workers)

What travels is small: episodes to play, a few numbers each, and their returns, lengths and behaviours; of the networks
at most the few bases, once a generation and node.
"""

from volvox.distributed.settings import ray

__all__ = ["ray"]
