"""Several machines: processes that learn together, and populations that are played by actors of Ray.

    vx.distributed.initialize()  # in every process, first of all; then everything as in one process
    algorithm = vx.learn(vx.A3C(), network, env)

Each process has environments of its own, and one exchange an update adds up the gradients.

    workers = vx.distributed.ray(num_actors="nodes")
    algorithm = vx.evolve(vx.GA(population_size=1_000), network, env, workers=workers)

What travels is small: episodes to play, a few numbers each, and their returns, lengths and behaviours; of the networks
at most the few bases, once a generation and node.
"""

from volvox.distributed.processes import initialize
from volvox.distributed.settings import ray

__all__ = ["initialize", "ray"]
