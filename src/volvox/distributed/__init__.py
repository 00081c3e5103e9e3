"""Beyond one process: populations that are evaluated by Ray actors, and processes that learn together.

Populations (`volvox.evolve`):

    workers = vx.distributed.ray(num_actors="nodes")
    algorithm = vx.evolve(vx.GA(population_size=1_000), network, env, workers=workers)

Learners (`volvox.learn`), in every process:

    vx.distributed.initialize()
    algorithm = vx.learn(vx.A3C(), network, env)
"""

from volvox.distributed.processes import initialize
from volvox.distributed.ray_evaluator import RaySettings

ray = RaySettings

__all__ = ["initialize", "ray"]
