"""End-to-end accelerated deep reinforcement learning in JAX, on one machine.

import jax, volvox as vx
env = vx.envs.atari("Frostbite", num_envs=64, groups=2)
strategy = vx.evolution.ga(population_size=1000, num_parents=20, mutation_std=0.002)
algorithm = vx.evolution.evolve(strategy, vx.networks.DeepGA(env.spec.num_actions), env)
run = vx.train(algorithm, jax.random.key(0), steps=10, run_dir="runs/frostbite")
"""

import sys

from volvox import _docs
from volvox import actor_critic as actor_critic
from volvox import checkpoint as checkpoint
from volvox import envs as envs
from volvox import evolution as evolution
from volvox import loop as loop
from volvox import networks as networks
from volvox import off_policy as off_policy
from volvox import ops as ops
from volvox import population as population
from volvox import report as report
from volvox import sparsity as sparsity
from volvox import types as types
from volvox.report.run import Run as Run
from volvox.training import train as train
from volvox.tuning import Tuned as Tuned
from volvox.tuning import tune as tune

__version__ = "0.1.0"

for _name, _module in list(sys.modules.items()):
    if _name.startswith("volvox."):
        _docs.document_fields(_module)
