"""volvox: end-to-end accelerated deep reinforcement learning in JAX.

    import volvox as vx

    env = vx.envs.atari("Frostbite", num_envs=64, groups=2)
    network = vx.networks.DeepGA(env.spec.num_outputs)
    algorithm = vx.evolve(vx.GA(population_size=128), network, env)
    run = vx.train(algorithm, seed=0, steps=10, run_dir="runs/frostbite")

Modules are imported when they are used first; `__init__.pyi` lists the names.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
