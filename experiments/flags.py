"""Flags that several scripts share, each written once; tyro reads their documentation from the docstrings."""

import dataclasses
import math
from typing import Any, Literal

import volvox as vx
from volvox.evolution.schedules import parse_cutoff
from volvox.runs.train import run_path

Noise = Literal["table", "published", "generator", "low-rank"]


def check_seeds(seeds: int | None) -> None:
    """Raises ValueError if a series has no seeds."""
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds={seeds}: give the number of seeds, or leave it out for one run of --seed.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """How a script runs.

    Attributes:
      run_dir: Where config, metrics, checkpoints, pictures and video go.
      seed: Fixes all random numbers but the emulators' history.
      seeds: So many runs in turn, of this seed, the next one and so on, in --run-dir/seed-0, --run-dir/seed-1, ...; all
        other flags, --minutes and --frames too, are those of each. Ctrl-C saves the run in progress and ends the
        series. None: one run, in --run-dir itself.
      resume: Go on with the run or the series in --run-dir.
      minutes: Begin no further generation or iteration after so many minutes, those before a resume included.
      frames: Begin no further generation or iteration after so many emulator or simulator frames, those before a resume
        included. Of populations they are those of training and validation, which is what publications count.
      checkpoint_every: Rows of metrics between checkpoints.
      log: Keep each generation's members in --run-dir/log, for volvox.report.cloud; populations only.
      video: Film the result, where observations are images.
      score_episodes: At the end, score the result and random play by so many episodes, on Atari with sticky actions
        (publications have 100 or more) and, without random play, by each no-op start; 0 for no score. The result is
        the best policy where there were evaluations, and then the last one is scored, too.
      tune: First find what runs fastest here, in some minutes of trials. machine: settings that hardly change learning;
        all: the rest too. A resumed run keeps what was found.
    """

    run_dir: str
    seed: int = 0
    seeds: int | None = None
    resume: bool = False
    minutes: float | None = None
    frames: int | None = None
    checkpoint_every: int = 1
    log: bool = False
    video: bool = True
    score_episodes: int = 0
    tune: Literal["off", "machine", "all"] = "off"

    def __post_init__(self):
        """Checks the flags."""
        run_path(self.run_dir)
        check_seeds(self.seeds)
        if self.score_episodes < 0:
            raise ValueError(f"score_episodes={self.score_episodes}: give their number, or 0 for none.")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes={self.minutes}: give a positive number of minutes, or leave it out.")
        if self.frames is not None and self.frames < 1:
            raise ValueError(f"frames={self.frames}: give a positive number of frames in all.")
        if self.checkpoint_every < 1:
            raise ValueError(f"checkpoint_every={self.checkpoint_every}: give a positive number of rows.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Atari:
    """An Atari game.

    Attributes:
      game: Name of the game, e.g. Frostbite, Seaquest, UpNDown.
      num_envs: Environments; of a population also the slots that hold networks.
      groups: Groups of environments that take turns.
      threads: Emulator threads of a group; default: all CPUs.
      sticky_actions: Probability that the emulator repeats the last action.
      preprocessing: How screens are processed and episodes begin; uber: as in the published GPU code.
    """

    game: str = "Frostbite"
    num_envs: int = 32
    groups: int = 2
    threads: int | None = None
    sticky_actions: float = 0.0
    preprocessing: Literal["envpool", "uber"] = "envpool"

    def make(self) -> vx.Env:
        """The environments."""
        return vx.envs.atari(**vars(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MuJoCo:
    """A MuJoCo task.

    Attributes:
      task: Name of the task, e.g. HalfCheetah, Humanoid, Hopper; with or without its version.
      num_envs: Environments, of all learners together.
      groups: Groups of environments that take turns.
      threads: Simulator threads of a group; default: all CPUs.
    """

    task: str = "HalfCheetah"
    num_envs: int = 32
    groups: int = 2
    threads: int | None = None

    def make(self) -> vx.Env:
        """The environments."""
        return vx.envs.mujoco(**vars(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How a learner is evaluated while it learns.

    Attributes:
      evaluate_every: Timesteps of each learner between two evaluations; None: none. The best policy is kept.
      num_evaluation_episodes: Episodes of an evaluation, played with the likeliest actions.
    """

    evaluate_every: int | None = None
    num_evaluation_episodes: int = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Population:
    """How a population on Atari is made and played, whatever the strategy.

    Attributes:
      network: What plays. large, small: the networks of the deep GA, 4 052 658 or 1 008 450 parameters with 18
        actions; vbn: the small one with virtual batch normalisation.
      noise: Where mutations come from. table: sized to the network; published: RandomState(123), 250 M numbers, 1 GB;
        generator: no table; low-rank: the table, but mutations change each kernel by a matrix of --rank, and members
        share the rest.
      rank: Rank of low-rank noise.
      max_episode_steps: Cutoff of training and validation episodes in timesteps, or adaptive:start,fraction,ratio,max.
      test_max_episode_steps: Cutoff of test episodes in timesteps.
      generations: Generations in all, those before a resume included. None: only --minutes or --frames ends the run.
      workers: Where members are played. 1: in this process; nodes: on actors of Ray, one on each machine of a cluster;
        gpus: one for each GPU; or a number of actors.
      ray_address: Of the cluster, host:port; by default that of RAY_ADDRESS, or the one that runs on this machine.
    """

    network: Literal["large", "small", "vbn"] = "large"
    noise: Noise = "table"
    rank: int = 1
    max_episode_steps: str = "600"
    test_max_episode_steps: int = 27_000
    generations: int | None = 200
    workers: str = "1"
    ray_address: str | None = None

    def __post_init__(self):
        """Checks the flags."""
        if self.ray_address is not None and self.workers == "1":
            raise ValueError(f"--ray-address {self.ray_address} is for actors: give --workers nodes as well.")
        if self.generations is not None and self.generations < 1:
            raise ValueError(f"generations={self.generations}: give a positive number of generations in all.")

    def evolve(self, strategy: Any, env: vx.Env, validation: vx.Validation) -> tuple[vx.Algorithm, int | None]:
        """The algorithm, and its generations."""
        parse_cutoff(self.max_episode_steps)  # refused before the reference batch is played
        noise = self._noise()
        algorithm = vx.evolve(
            strategy,
            self._network(env),
            env,
            validation=validation,
            noise=noise,
            max_episode_steps=self.max_episode_steps,
            test_max_episode_steps=self.test_max_episode_steps,
            workers=self._workers(),
        )
        return algorithm, self.generations

    def _workers(self) -> Any:
        if self.workers == "1":
            return None
        count: Any = int(self.workers) if self.workers.isdecimal() else self.workers
        return vx.distributed.ray(num_actors=count, address=self.ray_address)

    def _noise(self) -> Any:
        if self.noise != "low-rank" and self.rank != 1:
            raise ValueError(f"rank={self.rank} belongs to noise='low-rank'; the noise is {self.noise!r}.")
        makers = {
            "table": vx.population.Table,
            "published": vx.population.published_table,
            "generator": vx.population.Generator,
            "low-rank": lambda: vx.population.LowRank(rank=self.rank),
        }
        return makers[self.noise]()

    def _network(self, env: vx.Env) -> Any:
        assert env.spec.num_actions is not None  # Atari's actions are discrete
        if self.network == "vbn":
            module = vx.networks.VirtualBatchNormNet(env.spec.num_actions)
            return vx.networks.reference_genotype(module, env.spec, vx.reference_batch(env))
        return vx.networks.DeepGA(env.spec.num_actions, size=self.network)


def annealed(learner: vx.PPO, timesteps: int) -> None:
    """Checks that the learning rate does not reach 0 before the run's `timesteps` are over."""
    over = learner.anneal_timesteps
    if over is not None and timesteps > over:
        raise ValueError(
            f"anneal_timesteps={over}: the learning rate is 0 after them, and the run has {timesteps} timesteps; give "
            f"--anneal-timesteps {timesteps}, or None."
        )


def published(settings: Any, *, frames: int) -> Any:
    """The same settings of a script as in published runs: preprocessing, cutoffs, and emulator frames as the budget."""
    episodes = {"max_episode_steps": "5000", "test_max_episode_steps": 100_000, "noise": "published"}
    return dataclasses.replace(
        settings,
        env=dataclasses.replace(settings.env, num_envs=128, preprocessing="uber"),
        population=dataclasses.replace(settings.population, **episodes, generations=None),
        run=dataclasses.replace(settings.run, minutes=None, frames=frames),
    )
