"""volvox: end-to-end accelerated deep reinforcement learning in JAX.

import volvox as vx

env = vx.envs.atari("Frostbite", num_envs=64, groups=2)
net = vx.networks.DeepGA(env.spec.num_actions)
algorithm = vx.evolve(vx.GA(population_size=128), net, env)
run = vx.train(algorithm, seed=0, steps=10, run_dir="runs/frostbite")
"""

import sys

from volvox import data, envs, evolution, learners, loop, networks, ops, population, report, sparsity
from volvox._settings import describe
from volvox._settings import document_fields as _document_fields
from volvox.checkpoint import DamagedCheckpointError
from volvox.evolution import ES, GA, Novelty, Returns, evolve
from volvox.learners import A3C, TD3, learn
from volvox.loop import Score, play, play_randomly, reference_batch
from volvox.training import Run, train
from volvox.tuning import Tuned, tune
from volvox.types import (
    Algorithm,
    Env,
    EnvGroup,
    EnvSpec,
    Evaluation,
    Genotype,
    Interrupted,
    Policy,
    Population,
    TimeStep,
)

__version__ = "0.1.0"
__all__ = ["A3C", "ES", "GA", "TD3", "Algorithm", "DamagedCheckpointError", "Env", "EnvGroup", "EnvSpec", "Evaluation"]
__all__ += ["Genotype", "Interrupted", "Novelty", "Policy", "Population", "Returns", "Run", "Score"]
__all__ += ["TimeStep", "Tuned", "data", "describe", "envs", "evolution", "evolve", "learn", "learners", "loop"]
__all__ += ["networks", "ops", "play", "play_randomly", "population", "reference_batch", "report", "sparsity", "train"]
__all__ += ["tune"]

for _name, _module in list(sys.modules.items()):
    if _name.startswith("volvox."):
        _document_fields(_module)
