"""Flags that several scripts share, each written once; tyro reads their documentation from the docstrings."""

import contextlib
import dataclasses
from typing import Any, Literal

import volvox as vx
from volvox._checks import integers, numbers
from volvox.evolution.strategy import parse_cutoff
from volvox.runs.train import run_path

Noise = Literal["table", "published", "generator", "low-rank"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """How a script runs.

    Attributes:
      run_dir: Directory of the configuration, metrics, checkpoints, pictures and video.
      seed: Seed of all random numbers, except those of the emulators.
      seeds: Number of runs, one after the other, with consecutive seeds from --seed on, in --run-dir/seed-0,
        --run-dir/seed-1, ... All other flags, budgets included, apply to each run. Ctrl-C saves the current run and
        ends the series. None: one run in --run-dir itself.
      resume: Continue the run or the series in --run-dir.
      minutes: Minutes of the whole run, including those before a resume. An iteration ends when the first budget is
        used up; a generation is always whole.
      frames: Emulator or simulator frames of the whole run. For populations, frames of training and validation count,
        as in publications. It takes the place of a preset's --timesteps.
      timesteps: Timesteps of the whole run, of each learner. It takes the place of a preset's --frames.
      checkpoint_every: Rows of metrics between checkpoints.
      log: Write the members of each generation to --run-dir/log, for volvox.report.cloud; populations only.
      video: Record an episode of the result, if observations are images.
      score_episodes: Episodes for the final score of the result and of random play, on Atari with sticky actions
        (publications have 100 or more). The result is also scored from each no-op start. 0: no score. With evaluations
        the result is the best policy, and the last policy is scored as well.
      tune: machine: find the fastest groups, threads and micro-batches on this machine first, by some minutes of
        trials. A resumed run keeps its tuned settings.
    """

    run_dir: str
    seed: int = 0
    seeds: int | None = None
    resume: bool = False
    minutes: float | None = None
    frames: int | None = None
    timesteps: int | None = None
    checkpoint_every: int = 1
    log: bool = False
    video: bool = True
    score_episodes: int = 0
    tune: Literal["off", "machine"] = "off"

    def __post_init__(self):
        """Checks the flags."""
        run_path(self.run_dir)
        integers(self, "seeds", "frames", "timesteps", "checkpoint_every", low=1, high=None)
        integers(self, "score_episodes", low=0)
        numbers(self, "minutes", above=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """A search for settings: the first word is `sweep`, the second may be a preset. --run-dir is its directory.

    Attributes:
      space: Ranges of settings: learning-rate=log:1e-5:1e-3, discount=uniform:0.9:0.999, num-epochs=integers:1:8,
        network=choice:small:nature.
      trials: Number of trials in the study. Each trial has the budget of a run.
      metric: Metric to maximise; default: evaluation_mean with --evaluate-every, validation_mean of a population,
        otherwise training_mean.
      at_once: Settings that are tried at a time in one program; they differ in numbers only.
      prune: Stop bad trials early.
      storage: URL of an Optuna storage that machines share; default: study.db in the directory.
      sweep_workers: Where trials run. 1: in this process; nodes: one at a time on each machine of a Ray cluster; gpus:
        on each GPU; or a number of Ray workers.
    """

    space: tuple[str, ...]
    trials: int
    metric: str | None = None
    at_once: int = 1
    prune: bool = True
    storage: str | None = None
    sweep_workers: str = "1"

    def ranges(self) -> dict[str, Any]:
        """Returns the ranges by name; raises ValueError for one that cannot be read or is given twice."""
        ranges = dict(map(_range, self.space))
        if len(ranges) < len(self.space):
            raise ValueError(f"--space {' '.join(self.space)}: give one range for each setting")
        return ranges


def _range(text: str) -> tuple[str, Any]:
    name, _, values = text.partition("=")
    kind, *limits = values.split(":")
    if kind not in ("choice", "integers", "log", "uniform"):
        raise ValueError(f"--space {text}: give NAME=log:LOW:HIGH, NAME=uniform:, NAME=integers: or NAME=choice:A:B")
    try:
        return name.replace("-", "_"), getattr(vx.space, kind)(*map(_value, limits))
    except (TypeError, ValueError) as error:
        raise ValueError(f"--space {text}: {error}") from error


def _value(text: str) -> Any:
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return read(text)
    return {"None": None, "True": True, "False": False}.get(text, text)


def ray_workers(workers: str, address: str | None = None) -> Any:
    """Returns Ray's workers: None for "1", which is this process."""
    count: Any = int(workers) if workers.isdecimal() else workers
    return None if workers == "1" else vx.distributed.ray(num_actors=count, address=address)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Atari:
    """An Atari game.

    Attributes:
      game: Name of the game, e.g. Frostbite, Seaquest, UpNDown.
      num_envs: Number of environments; for a population also the number of slots for networks.
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
        """Returns the environments."""
        return vx.envs.atari(**vars(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MuJoCo:
    """A MuJoCo task.

    Attributes:
      task: Name of the task, e.g. HalfCheetah, Humanoid, Hopper; with or without its version.
      num_envs: Environments of a learner.
      groups: Groups of environments that take turns.
      threads: Simulator threads of a group; default: all CPUs.
    """

    task: str = "HalfCheetah"
    num_envs: int = 32
    groups: int = 2
    threads: int | None = None

    def make(self) -> vx.Env:
        """Returns the environments."""
        return vx.envs.mujoco(**vars(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learning:
    """How many learners there are, and how they are evaluated while they learn.

    Attributes:
      num_learners: Learners with random numbers of their own, in one program.
      evaluate_every: Timesteps of each learner between two evaluations; None: none. The best policy is kept.
      num_evaluation_episodes: Episodes of an evaluation, played with the likeliest actions; the best policy so far
        plays as many again.
    """

    num_learners: int = 1
    evaluate_every: int | None = None
    num_evaluation_episodes: int = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Population:
    """A population on Atari, for any strategy.

    Attributes:
      network: The network. large, small: the networks of the deep GA, 4 052 658 or 1 008 450 parameters with 18
        actions; vbn: the small one with virtual batch normalisation.
      noise: Source of mutations. table: sized to the network; published: RandomState(123), 250 M numbers, 1 GB;
        generator: no table; low-rank: the table, and mutations add a matrix of rank --rank to each kernel.
      rank: Rank of low-rank noise.
      max_episode_steps: Cutoff of training and validation episodes in timesteps, or adaptive:start,fraction,ratio,max.
      test_max_episode_steps: Cutoff of test episodes in timesteps.
      generations: Generations of the whole run, including those before a resume. None: another budget ends the run.
      workers: Workers that play the members. 1: this process; nodes: one Ray actor on each machine of a cluster; gpus:
        one for each GPU; or a number of actors.
      ray_address: Address of the cluster, host:port; default: RAY_ADDRESS, or the cluster on this machine.
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
        integers(self, "generations", low=1)
        if self.ray_address is not None and self.workers == "1":
            raise ValueError(f"--ray-address {self.ray_address} is for actors: give --workers nodes as well.")

    def evolve(self, strategy: Any, env: vx.Env, validation: vx.Validation) -> tuple[vx.Algorithm, int | None]:
        """Returns the algorithm and the number of generations."""
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
            workers=ray_workers(self.workers, self.ray_address),
        )
        return algorithm, self.generations

    def _noise(self) -> Any:
        if self.noise != "low-rank" and self.rank != 1:
            raise ValueError(f"rank={self.rank} belongs to noise='low-rank'; the noise is {self.noise!r}.")
        makers = {
            "table": vx.population.Table,
            "published": vx.population.Table.published,
            "generator": vx.population.Generator,
            "low-rank": lambda: vx.population.LowRank(rank=self.rank),
        }
        return makers[self.noise]()

    def _network(self, env: vx.Env) -> Any:
        assert env.spec.num_actions is not None  # Atari's actions are discrete
        if self.network == "vbn":
            module = vx.networks.VirtualBatchNormNet(env.spec.num_actions)
            return vx.networks.genotype(module, env.spec, reference=vx.reference_batch(env))
        return vx.networks.DeepGA(env.spec.num_actions, size=self.network)


def annealed(learner: vx.A3C | vx.PPO | vx.PQN, run: Run, env: vx.Env, num_learners: int) -> None:
    """Checks that the learning rate does not reach 0 before the run's frames or timesteps are over."""
    budgets = [run.timesteps, run.frames and run.frames // (env.spec.frame_skip * num_learners)]
    timesteps = min((budget for budget in budgets if budget is not None), default=0)
    over = learner.anneal_timesteps
    if over is not None and timesteps > over:
        raise ValueError(
            f"anneal_timesteps={over}: the learning rate is 0 after them, and the run has {timesteps} timesteps; give "
            f"--anneal-timesteps {timesteps}, or None."
        )


def published(settings: Any, *, frames: int, num_envs: int = 128) -> Any:
    """Returns a script's settings with preprocessing, cutoffs and budget in frames as in publications."""
    episodes = {"max_episode_steps": "5000", "test_max_episode_steps": 100_000, "noise": "published"}
    return dataclasses.replace(
        settings,
        env=dataclasses.replace(settings.env, num_envs=num_envs, preprocessing="uber"),
        population=dataclasses.replace(settings.population, **episodes, generations=None),
        run=dataclasses.replace(settings.run, minutes=None, frames=frames),
    )
