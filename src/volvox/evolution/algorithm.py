"""Any strategy as an `Algorithm`: its phases, played on pools of environments."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox import networks
from volvox._checks import integer
from volvox._settings import describe
from volvox.checkpoint import restored
from volvox.evolution.schedules import Cutoff, parse_cutoff
from volvox.evolution.strategy import Phase, Role, Strategy, compiled_phases, fitness, mean_length, no_score, rows
from volvox.loop import behaviors
from volvox.loop.behaviors import Behavior
from volvox.loop.driver import seed_of
from volvox.loop.evaluator import Evaluator, Monitor, RolloutStatistics, SlotMemory
from volvox.population import lineage as lineages
from volvox.population.decoding import Encoding, Member, encoding, outline
from volvox.population.noise import Noise, Table
from volvox.types import Algorithm, Array, ArrayTree, Env, Evaluation, Genotype, Interrupted, Population

_TIMED_EVERY = 10
"""Generations."""


class Counts(NamedTuple):
    """Cumulative counts of a run.

    Attributes:
      frames: Emulator frames of scored timesteps in training and validation, which is what publications count.
      training_frames: Those of training alone.
      total_frames: Emulator frames of all timesteps: idle slots, resets and test included.
      episodes: Episodes played to their end, in all phases.
    """

    frames: int = 0
    training_frames: int = 0
    total_frames: int = 0
    episodes: int = 0


class EvolveState(NamedTuple):
    """A run between two generations.

    Attributes:
      key: The run's key.
      generation: Generations completed.
      strategy: The strategy's own state.
      lineage: How the bases of each generation came from those before; None where the strategy keeps none.
      max_episode_steps: The current cutoff of training and validation, timesteps.
      counts: Cumulative counts.
      members: What `log` gives of the last generation; None before the first, and after a resume.
    """

    key: Array
    generation: int
    strategy: Any
    lineage: Member | None
    max_episode_steps: int
    counts: Counts = Counts()
    members: dict[str, Array] | None = None


def evolve(
    strategy: Strategy,
    network: nn.Module | Genotype,
    env: Env,
    *,
    noise: Noise = Table(),  # noqa: B008  # frozen
    behavior: Behavior | None = None,
    max_episode_steps: int | str | Cutoff | None = None,
    test_max_episode_steps: int | None = None,
    chunk_seconds: float = 1.0,
) -> Algorithm:
    """Joins a strategy, a network and an environment into an algorithm; one step is one generation.

    Training and validation share a cutoff, and so one set of pools and one compiled loop; test episodes run on pools
    of their own, driven from Python.

    Example:
      >>> env = vx.envs.atari("Frostbite", num_envs=64, groups=2)
      >>> algorithm = vx.evolve(vx.GA(population_size=128), vx.networks.DeepGA(env.spec.num_actions), env)
      >>> run = vx.train(algorithm, seed=0, steps=10, run_dir="runs/frostbite")

    Args:
      strategy: for example `GA(...)`.
      network: any flax module, or a genotype.
      env: the environments; its `num_envs` is the number of slots.
      noise: where noise comes from; the default is sized to the network.
      behavior: what is recorded of each episode, for `log`; default: what the strategy compares them by.
      max_episode_steps: cutoff of training and validation episodes in timesteps, or
        `"adaptive:start,fraction,ratio,max"`; default: the environment's own.
      test_max_episode_steps: cutoff of test episodes in timesteps; default: the environment's own.
      chunk_seconds: how often progress and interrupts are looked at.

    Returns:
      `Algorithm`, whose result is the current elite. Its metrics: `training_*` over the offspring, `validation_mean` of
      the generation's elite with its standard error; `elite_score`, the mean over the `elite_episodes` of validation
      that it has played at this cutoff since `elite_selecting_score` made it the elite (`EliteScore`; null while there
      are none); `test_*` if asked for, cumulative `Counts`, `frames_per_second`,
      `occupancy` and `makespan_over_bound` of training, seconds of each phase, and the cutoff; in the second generation
      and every tenth from there `share_emulators`, `share_inference`, `share_decoding` and `speed_over_turns`, of a few
      beats played with a stopwatch (`Times.shares`). Its `log` gives, of each member of the last generation, `parent`
      (index of the base it descends from), `seed`, `scale`, `initial`, `fitness`, `length` (timesteps) and `behavior`
      (of its first episode); and, where there are lineages, `base_parent`, `base_seed`, `base_scale` and
      `base_initial`: how each base came from those before, the elite last.

    Raises:
      ValueError: a cutoff that is not positive, a network that does not fit the environment's actions, noise that does
        not fit the network or the strategy, or a behaviour that the environment does not tell or that does
        not cover an episode.
    """
    cutoff = parse_cutoff(env.spec.max_episode_steps if max_episode_steps is None else max_episode_steps)
    test_cutoff = env.spec.max_episode_steps if test_max_episode_steps is None else test_max_episode_steps
    integer("test_max_episode_steps", test_cutoff, low=1)
    if all(phase.role == "test" for phase in strategy.phases):
        raise ValueError(f"strategy {strategy} has no training or validation phase, so nothing would learn.")
    genotype = network if isinstance(network, Genotype) else networks.genotype(network, env.spec)
    state = jax.eval_shape(strategy.init, jax.random.key(0), outline(genotype, noise))  # raises where they do not fit
    if behavior is not None and strategy.behavior.size:
        raise ValueError(f"strategy {type(strategy).__name__} compares behaviours of its own; leave behavior out.")
    recorded = strategy.behavior if behavior is None else behavior
    behaviors.check(recorded, env.spec, max(cutoff.start, cutoff.max))
    capacity = max(phase.num_members * phase.num_episodes for phase in strategy.phases)
    pools = _Pools(genotype, noise, env, recorded, capacity, chunk_seconds)
    num_bases = None if state.survivors is None else state.survivors.seed.shape[0]
    evolution = _Evolution(strategy, compiled_phases(strategy), genotype, env, cutoff, test_cutoff, pools, num_bases)
    return Algorithm(
        init=evolution.init,
        step=evolution.step,
        variables=evolution.variables,
        policy=genotype.policy,
        env=env,
        config={
            "algorithm": "evolve",
            "strategy": describe(strategy),
            "network": describe(genotype.policy.config),
            "env": describe(env.config),
            "noise": describe(noise),
            "max_episode_steps": list(cutoff),
            "test_max_episode_steps": test_cutoff,
        },
        close=pools.close,
        genome=None if num_bases is None else evolution.genome,
        save=evolution.save,
        restore=evolution.restore,
        log=evolution.log,
    )


class _Place(NamedTuple):
    """What an evaluator's pools and slots are made for.

    Attributes:
      test: Whether it plays test episodes.
      max_episode_steps: The cutoff, timesteps.
      formed: Whether its slots hold formed kernels (`Encoding.formed`).
    """

    test: bool
    max_episode_steps: int
    formed: bool


@dataclasses.dataclass
class _Pools:
    """Pools, slots and the noise table: made on first use, and never part of the state.

    Attributes:
      capacity: The largest number of episodes of a phase.
      memory: The parameters of the slots.
      evaluators: What plays, by place.
    """

    genotype: Genotype
    noise: Noise
    env: Env
    behavior: Behavior
    capacity: int
    chunk_seconds: float
    memory: SlotMemory | None = None
    evaluators: dict[_Place, Evaluator] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def encoding(self) -> Encoding:
        return encoding(self.genotype, self.noise)

    def evaluator(self, place: _Place, code: Encoding, seed: int) -> Evaluator:
        """What plays a phase; it takes the place of that with another cutoff, or with slots of another kind."""
        if place not in self.evaluators:
            # Slots of both kinds at once would take the memory of both.
            self._close(lambda other: other.formed != place.formed or other.test == place.test)
            if self.memory is None:
                size = self.env.num_envs // self.env.num_groups
                self.memory = SlotMemory(self.genotype, code, self.env.num_groups, size)
            self.evaluators[place] = Evaluator(
                self.genotype,
                lambda _: self.env.make(seed, max_episode_steps=place.max_episode_steps, host=place.test),
                self.memory,
                capacity=self.capacity,
                behavior=None if place.test else self.behavior,
                chunk_seconds=self.chunk_seconds,
            )
        return self.evaluators[place]

    def close(self) -> None:
        """Frees pools and slots, and keeps the table; all are made anew when they are needed again."""
        self._close(lambda place: True)

    def _close(self, which: Callable[[_Place], bool]) -> None:
        for place in filter(which, list(self.evaluators)):
            self.evaluators.pop(place).close()
        if not self.evaluators:
            self.memory = None


@dataclasses.dataclass(frozen=True)
class _Evolution:
    """The functions of an `Algorithm`.

    Attributes:
      num_bases: Bases in a row of the lineage; None where the strategy keeps none.
    """

    strategy: Strategy
    phases: tuple[Phase, ...]
    genotype: Genotype
    env: Env
    cutoff: Cutoff
    test_cutoff: int
    pools: _Pools
    num_bases: int | None

    def init(self, key: Array) -> EvolveState:
        inner, log = self.strategy.init(key, self.pools.encoding), None
        if self.num_bases is not None:
            log = lineages.zeros(0, self.num_bases)
        return EvolveState(key, 0, inner, log, self.cutoff.start)

    def step(self, state: EvolveState, *, monitor: Monitor | None = None) -> tuple[EvolveState, dict[str, Any]]:
        began = time.perf_counter()
        inner, counts, members, fraction_cut = state.strategy, state.counts, None, 0.0
        metrics: dict[str, Any] = {"generation": state.generation + 1, "max_episode_steps": state.max_episode_steps}
        for i, phase in enumerate(self.phases):
            phase_began = time.perf_counter()
            key = jax.random.fold_in(jax.random.fold_in(state.key, state.generation), i)
            population = phase.ask(key, inner, self.pools.encoding)
            evaluation, statistics = self._evaluate(i, state, population, monitor)
            inner, told = phase.tell(inner, population, evaluation, self.pools.encoding)
            metrics |= {name: np.asarray(value).item() for name, value in told.items()}
            counts = self._counted(counts, statistics, phase.role)
            if phase.role == "training":
                members = _members(population._replace(bases=()), evaluation)
                fraction_cut = float((evaluation.lengths >= state.max_episode_steps).sum()) / statistics.episodes
                metrics |= _training_metrics(statistics) | {"fraction_cut": fraction_cut}
            metrics[f"{phase.role}_seconds"] = time.perf_counter() - phase_began
        elapsed = time.perf_counter() - began
        max_episode_steps, log = self.cutoff.grown(state.max_episode_steps, fraction_cut), state.lineage
        if max_episode_steps > state.max_episode_steps:
            inner = inner._replace(score=no_score())  # scores of different cutoffs are not compared
        if log is not None:
            log = lineages.extend(log, inner.survivors)
            if members is not None:
                members |= {f"base_{name}": x for name, x in inner.survivors._asdict().items()}
        new = EvolveState(
            key=state.key,
            generation=state.generation + 1,
            strategy=inner,
            lineage=log,
            max_episode_steps=max_episode_steps,
            counts=counts,
            members=members,
        )
        frames = counts.total_frames - state.counts.total_frames
        metrics |= counts._asdict() | {"frames_per_second": frames / elapsed, "generation_seconds": elapsed}
        return new, metrics

    def _evaluate(
        self, i: int, state: EvolveState, population: Population, monitor: Monitor | None
    ) -> tuple[Evaluation, RolloutStatistics]:
        """Plays the population of a phase."""
        phase = self.phases[i]
        test, code = phase.role == "test", self.pools.encoding
        if code.rank is not None and bool(population.initial.any()):
            code = dataclasses.replace(code, formed=True)
        place = _Place(test, self.test_cutoff if test else state.max_episode_steps, code.formed)
        compiles = place not in self.pools.evaluators

        def watch(progress: dict[str, Any]) -> bool | None:
            frames_per_second = progress.pop("timesteps_per_second") * self.env.spec.frame_skip
            figures = {"phase": phase.role, "frames_per_second": frames_per_second, **progress}
            return monitor is not None and monitor(figures)

        announced = {"phase": "compiling", "generation": state.generation + 1, "role": phase.role}
        if compiles and monitor is not None and monitor(announced):
            raise Interrupted("before the loop was compiled")
        # Seeds depend on the generation, so that a resumed run does not repeat its no-op starts.
        pool_seed = seed_of(state.key, state.generation, len(self.phases) + test)
        try:
            return self.pools.evaluator(place, code, pool_seed).evaluate(
                population,
                phase.num_episodes,
                code,
                seed=seed_of(state.key, state.generation, i),
                # At once where all is compiled, for later.
                timed=compiles or (phase.role == "training" and state.generation % _TIMED_EVERY == 1),
                monitor=watch,
            )
        except Interrupted:
            raise
        except BaseException:
            self.pools.close()  # donated buffers and pools in flight cannot be trusted any more
            raise

    def _counted(self, counts: Counts, statistics: RolloutStatistics, role: Role) -> Counts:
        frame_skip = self.env.spec.frame_skip
        scored = statistics.timesteps * frame_skip
        return Counts(
            counts.frames + (scored if role != "test" else 0),
            counts.training_frames + (scored if role == "training" else 0),
            counts.total_frames + statistics.stepped * frame_skip,
            counts.episodes + statistics.episodes,
        )

    def genome(self, state: EvolveState) -> Any:
        _check_completed(state)
        assert state.lineage is not None
        return lineages.to_json(lineages.genome(state.lineage, self.strategy.elite))

    def variables(self, state: EvolveState) -> ArrayTree:
        _check_completed(state)
        return jax.jit(self.genotype.prepare)(rows(state.strategy.bases, self.strategy.elite))

    def save(self, state: EvolveState) -> EvolveState:
        # Where bases descend from members, lineages are all that is needed to compute them again.
        inner = state.strategy if state.lineage is None else state.strategy._replace(bases=())
        return state._replace(strategy=inner, members=None)

    def restore(self, saved: Mapping[str, Any] | EvolveState) -> EvolveState:
        fields = saved if isinstance(saved, Mapping) else saved._asdict()
        generation, code = int(fields["generation"]), self.pools.encoding
        if generation == 0:
            return self.init(fields["key"])
        inner, log = jax.eval_shape(self.strategy.init, fields["key"], code), None
        if self.num_bases is not None:
            log = lineages.zeros(generation, self.num_bases)
        like = EvolveState(fields["key"], generation, inner, log, self.cutoff.start)
        state = restored(saved, self.save(like), what="run of evolution")
        if state.lineage is None:
            return state
        log = jax.tree.map(np.asarray, state.lineage)
        bases = [lineages.rebuild(code, lineages.genome(log, base)) for base in range(log.seed.shape[1])]
        bases = jax.tree.map(lambda *rows: jnp.stack(rows), *bases)
        return state._replace(strategy=state.strategy._replace(bases=bases), lineage=log)

    def log(self, state: EvolveState) -> dict[str, np.ndarray]:
        return {name: np.asarray(x) for name, x in (state.members or {}).items()}


def _training_metrics(statistics: RolloutStatistics) -> dict[str, float]:
    metrics = {
        "occupancy": statistics.occupancy,
        "makespan_over_bound": statistics.makespan_over_bound,
        "training_steps_per_second": statistics.timesteps_per_second,
    }
    if statistics.times is None:
        return metrics
    return metrics | statistics.times.shares(statistics.stepped_per_second, working="decoding")


@jax.jit
def _members(population: Population, evaluation: Evaluation) -> dict[str, Array]:
    return {
        **Member(*population[1:5])._asdict(),
        "fitness": fitness(evaluation),
        "length": mean_length(evaluation),
        "behavior": evaluation.behaviors[:, 0],
    }


def _check_completed(state: EvolveState) -> None:
    if not state.generation:
        raise ValueError("no generation is complete yet, so there is no elite; take a step first.")
