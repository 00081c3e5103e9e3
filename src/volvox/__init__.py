"""volvox: end-to-end accelerated deep reinforcement learning in JAX.

import volvox as vx

env = vx.envs.atari("Frostbite", num_envs=64, groups=2)
net = vx.networks.DeepGA(env.spec.num_outputs)
algorithm = vx.evolve(vx.GA(population_size=128), net, env)
run = vx.train(algorithm, seed=0, steps=10, run_dir="runs/frostbite")
"""

import gc as _gc
import sys as _sys

# Nothing that is imported here becomes garbage; looking for it would slow this import down.
_collects = _gc.isenabled()
_gc.disable()
try:
    from volvox import (
        data,
        distributed,
        envs,
        evolution,
        learners,
        networks,
        ops,
        population,
        report,
        rollout,
        runs,
        sparsity,
        testing,
    )
    from volvox._settings import describe, recorded
    from volvox._settings import document_fields as _document_fields
    from volvox.evolution import ES, GA, Novelty, Returns, evolve
    from volvox.learners import A3C, PPO, TD3, learn
    from volvox.report import compare
    from volvox.rollout import Score, play, play_randomly, reference_batch
    from volvox.rollout.actor import Actor
    from volvox.runs import DamagedCheckpointError, Profile, Run, Tuned, load, loggers, profile, train, tune
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
finally:
    if _collects:
        _gc.enable()

__version__ = "0.1.0"
__all__ = ["A3C", "ES", "GA", "PPO", "TD3", "Actor", "Algorithm", "DamagedCheckpointError", "Env", "EnvGroup"]
__all__ += ["EnvSpec", "Evaluation", "Genotype", "Interrupted", "Novelty", "Policy", "Population", "Profile", "Returns", "Run"]
__all__ += ["Score", "TimeStep", "Tuned", "compare", "data", "describe", "distributed", "envs", "evolution", "evolve"]
__all__ += ["learn", "learners", "load", "loggers", "networks", "ops", "play", "play_randomly", "population", "profile", "rollout", "runs"]
__all__ += ["recorded", "reference_batch", "report", "sparsity", "testing", "train", "tune"]

for _name, _module in list(_sys.modules.items()):
    if _name.startswith("volvox."):
        _document_fields(_module)
