"""Evolves a small network by an algorithm of evosax: CMA-ES, Sep-CMA-ES, SNES or differential evolution.

The first word is a preset; flags change single settings of it:
    python experiments/ask_tell.py cartpole --algorithm cma-es --run-dir runs/cartpole_cma_es
    python experiments/ask_tell.py mujoco --task Hopper --algorithm sep-cma-es --run-dir runs/hopper
"""

import dataclasses
import sys
from typing import Literal

from flags import Run
from launch import launch

import volvox as vx
from volvox._checks import import_extra, integers

Algorithm = Literal["cma-es", "sep-cma-es", "snes", "differential-evolution"]
CLASSES = {"cma-es": "CMA_ES", "sep-cma-es": "Sep_CMA_ES", "snes": "SNES"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """The task.

    Attributes:
      task: CartPole, maze (the hard maze), or a MuJoCo task, e.g. Hopper, with or without its version.
      num_envs: Environments, which are the slots of the population.
      groups: Groups of environments that take turns.
      threads: Simulator threads of a group; default: all CPUs. MuJoCo only.
    """

    task: str = "CartPole"
    num_envs: int = 32
    groups: int = 2
    threads: int | None = None

    def make(self) -> vx.Env:
        """The environments."""
        number = {"num_envs": self.num_envs, "groups": self.groups}
        if self.task == "CartPole":
            return vx.envs.cartpole(**number)
        return vx.envs.hard_maze(**number) if self.task == "maze" else vx.envs.mujoco(**vars(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Population:
    """How a population is made and played.

    Attributes:
      algorithm: The algorithm of evosax.
      population_size: Members of a generation.
      initial_std: Initial standard deviation of all parameters; differential evolution ignores it.
      hidden: Widths of the network's hidden layers; all members exist at once, and CMA-ES holds the square of their
        parameters.
      num_episodes: Training episodes of each member.
      generations: Generations in all, those before a resume included. None: another budget ends the run.
    """

    algorithm: Algorithm = "cma-es"
    population_size: int = 32
    initial_std: float = 0.5
    hidden: tuple[int, ...] = (8,)
    num_episodes: int = 1
    generations: int | None = 30

    def __post_init__(self):
        """Checks the flag."""
        integers(self, "generations", low=1)

    def strategy(self) -> vx.evolution.Evosax:
        """The strategy."""
        algorithms = import_extra("evosax.algorithms", "evosax")  # the import takes seconds
        return vx.evolution.Evosax(
            getattr(algorithms, CLASSES.get(self.algorithm, "DifferentialEvolution")),
            population_size=self.population_size,
            params={"std_init": self.initial_std} if self.algorithm in CLASSES else {},
            num_episodes=self.num_episodes,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """An algorithm of evosax on a small task."""

    env: Task = Task()
    population: Population = Population()
    validation: vx.Validation = vx.Validation()
    run: Run = Run(run_dir="runs/ask_tell", video=False)


PRESETS = {
    "cartpole": ("CartPole, in a minute.", Settings()),
    "maze": (
        "The hard maze, by its deceptive reward.",
        Settings(
            env=Task(task="maze", num_envs=128),
            population=Population(population_size=128, initial_std=1.0, hidden=(16, 16), generations=100),
            validation=vx.Validation(num_validation_episodes=1),
        ),
    ),
    "mujoco": (
        "A MuJoCo task, by a linear policy.",
        Settings(
            env=Task(task="Hopper"),
            population=Population(
                algorithm="sep-cma-es", population_size=64, initial_std=0.1, hidden=(), generations=None
            ),
            run=Run(run_dir="runs/ask_tell", video=False, minutes=10),
        ),
    ),
}


def make_algorithm(settings: Settings) -> tuple[vx.Algorithm, int | None]:
    """Returns the algorithm and its number of generations; raises ValueError for bad settings."""
    env = settings.env.make()
    network = vx.networks.MLP(env.spec.num_outputs, hidden=settings.population.hidden)
    population, validation = settings.population, settings.validation
    return vx.evolve(population.strategy(), network, env, validation=validation), population.generations


if __name__ == "__main__":
    sys.exit(launch(make_algorithm, PRESETS, __doc__))
