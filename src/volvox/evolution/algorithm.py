"""Any strategy as an `Algorithm`: its phases, played on pools of environments."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox import networks
from volvox._arguments import check_env, check_network, check_part, said
from volvox._checks import one_thread, typed_key
from volvox._settings import describe
from volvox.checkpoint import restored
from volvox.evolution.compiled import compiled_phases, explicit_bases
from volvox.evolution.pools import Place, Player, Pools, Request, Workers
from volvox.evolution.schedules import Cutoff, cutoffs_in
from volvox.evolution.strategy import (
    Phase,
    Role,
    Strategy,
    check_bases,
    check_behaviors,
    check_returns,
    check_shared,
    fitness,
    mean_length,
    rows,
)
from volvox.population import lineage as lineages
from volvox.population.decoding import Member, members_of, outline
from volvox.population.noise import Noise, Table
from volvox.rollout import behaviors
from volvox.rollout.behaviors import Behavior
from volvox.rollout.driver import Monitor, is_timed, seed_of
from volvox.rollout.evaluator import RolloutStatistics, check_memory
from volvox.types import Algorithm, Array, ArrayTree, Env, Evaluation, Genotype, Population


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
    workers: Workers | int | None = None,
) -> Algorithm:
    """Joins a strategy, a network and an environment into an algorithm; one step is one generation.

    Training and validation share a cutoff, and so one set of pools and one compiled loop; test episodes run on pools
    of their own, driven from Python.

    Example:
      >>> env = vx.envs.atari("Frostbite", num_envs=64, groups=2)
      >>> algorithm = vx.evolve(vx.GA(population_size=128), vx.networks.DeepGA(env.spec.num_outputs), env)
      >>> run = vx.train(algorithm, seed=0, steps=10, run_dir="runs/frostbite")

    Args:
      strategy: For example `GA(...)`, or what `volvox.evolution.from_ask_tell` makes.
      network: Any flax module, or a genotype.
      env: The environments; its `num_envs` is the number of slots.
      noise: Where noise comes from; the default is sized to the network.
      behavior: What is recorded of each episode, for `log`; default: what the strategy compares them by.
      max_episode_steps: Cutoff of training and validation episodes in timesteps, or
        `"adaptive:start,fraction,ratio,max"`; default: the environment's own.
      test_max_episode_steps: Cutoff of test episodes in timesteps; default: the environment's own.
      chunk_seconds: How often progress and interrupts are looked at.
      workers: Where members are played: None or 1, in this process; `volvox.distributed.ray(...)`, on actors of Ray, of
        which each has `env.num_envs` slots. Results are the same on environments of pure functions.

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
      ValueError: slots do not fit into memory, a cutoff that is not positive or that the environment does not keep, a
        network that does not fit the environment's actions, noise that does not fit the network or the strategy, or a
        behaviour that the environment does not tell or that does not cover an episode.
    """
    if not hasattr(strategy, "phases") or isinstance(strategy, type):
        given = said(strategy)
        if hasattr(strategy, "ask") and not hasattr(strategy, "phases"):
            name = getattr(strategy, "__name__", type(strategy).__name__)
            given = f"{name}, which asks and tells: vx.evolution.from_ask_tell({name}, ...) makes a strategy of it"
        raise TypeError(f"evolve takes a strategy, such as vx.GA() or vx.ES(), a network, an env; got {given}")
    check_network("evolve(strategy, network, env)", network)
    check_env("evolve(strategy, network, env)", env)
    used = ("source",) if hasattr(noise, "rank") else ("length", "make_data", "draw", "sample")
    check_part("noise", noise, used, "Table(), Generator() or LowRank() of vx.population")
    if behavior is not None:
        behaviors.check_kind("behavior", behavior)
    if env.config.get("episodic_life"):
        raise ValueError("episodic_life=True would let members go on with each other's games; leave it out to evolve.")
    cutoff, test_cutoff = cutoffs_in(env, max_episode_steps, test_max_episode_steps)
    if all(phase.role == "test" for phase in strategy.phases):
        raise ValueError(f"strategy {strategy} has no training or validation phase, so nothing would learn.")
    genotype = network if isinstance(network, Genotype) else networks.genotype(network, env.spec)
    shapes = outline(genotype, noise)
    state = jax.eval_shape(strategy.init, jax.random.key(0), shapes)  # raises where they do not fit
    phases, num_bases = compiled_phases(strategy), None
    if state.survivors is not None:
        num_bases = state.survivors.seed.shape[0]
    members = () if num_bases else explicit_bases(phases, state, shapes)
    formed = num_bases is not None and shapes.rank is not None  # for the first ancestors
    check_memory(genotype, dataclasses.replace(shapes, formed=formed), env.num_envs, state, members)
    if behavior is not None and strategy.behavior.size:
        raise ValueError(f"strategy {type(strategy).__name__} compares behaviours of its own; leave behavior out.")
    recorded = strategy.behavior if behavior is None else behavior
    behaviors.check(recorded, env.spec, max(cutoff.start, cutoff.max))
    capacity = max(phase.num_members * phase.num_episodes for phase in strategy.phases)
    parts = {"network": genotype.policy.config, "env": env.config, "noise": noise, "behavior": recorded}
    player = _player(workers, describe(parts), env.num_envs, chunk_seconds)
    pools = Pools(genotype, noise, env, recorded, capacity, chunk_seconds)
    evolution = _Evolution(strategy, phases, genotype, env, cutoff, test_cutoff, pools, player or pools, num_bases)
    return Algorithm(
        init=evolution.init,
        step=evolution.step,
        variables=evolution.variables,
        policy=genotype.policy,
        env=env,
        config={
            "type": "volvox.evolve",
            "strategy": strategy,
            "network": network,
            "env": dict(env.config),
            "noise": noise,
            "behavior": behavior,
            "max_episode_steps": cutoff,
            "test_max_episode_steps": test_cutoff,
        },
        close=evolution.close,
        genome=None if num_bases is None else evolution.genome,
        from_genome=None if num_bases is None else evolution.from_genome,
        save=evolution.save,
        restore=evolution.restore,
        log=evolution.log,
        lock=pools.lock,
    )


def _player(workers: Workers | int | None, config: Any, num_slots: int, chunk_seconds: float) -> Player | None:
    if workers is None or workers == 1:
        return None
    if not hasattr(workers, "player") or isinstance(workers, type):
        raise TypeError(
            f"workers={workers!r}: give vx.distributed.ray(num_actors=...), or None for this process, which uses all "
            "of its cores"
        )
    return workers.player(config, num_slots, chunk_seconds)  # pyright: ignore[reportAttributeAccessIssue]


@dataclasses.dataclass(frozen=True)
class _Evolution:
    """The functions of an `Algorithm`.

    Attributes:
      pools: Holds the encoding, and plays where no others do.
      player: What plays.
      num_bases: Bases in a row of the lineage; None where the strategy keeps none.
    """

    strategy: Strategy
    phases: tuple[Phase, ...]
    genotype: Genotype
    env: Env
    cutoff: Cutoff
    test_cutoff: int
    pools: Pools
    player: Player
    num_bases: int | None

    def init(self, key: int | Array) -> EvolveState:
        key = typed_key(key)
        inner, log = self.strategy.init(key, self.pools.encoding), None
        if self.num_bases is not None:
            log = lineages.zeros(0, self.num_bases)
        return EvolveState(key, 0, inner, log, self.cutoff.start)

    def close(self) -> None:
        with one_thread(self.pools.lock):
            self.player.close()

    def step(self, state: EvolveState, *, monitor: Monitor | None = None) -> tuple[EvolveState, dict[str, Any]]:
        with one_thread(self.pools.lock):
            return self._generation(state, monitor)

    def _generation(self, state: EvolveState, monitor: Monitor | None) -> tuple[EvolveState, dict[str, Any]]:
        began = time.perf_counter()
        inner, counts, members, fraction_cut = state.strategy, state.counts, None, 0.0
        metrics: dict[str, Any] = {"generation": state.generation + 1, "max_episode_steps": state.max_episode_steps}
        key = jax.random.fold_in(state.key, state.generation)
        for i, phase in enumerate(self.phases):
            phase_began = time.perf_counter()
            ask_key, tell_key = (jax.random.fold_in(key, number) for number in (i, len(self.phases) + i))
            population, inner = phase.ask(ask_key, inner, self.pools.encoding)
            if state.lineage is not None:
                check_shared(population.bases, inner.bases, f"{type(self.strategy).__name__}, {phase.role} phase")
            evaluation, statistics = self._evaluate(i, state._replace(strategy=inner), population, monitor)
            where = f"{self.env.spec.name}, {phase.role} in generation {state.generation + 1}"
            check_returns(evaluation, where)
            if self.strategy.behavior.size:
                check_behaviors(evaluation, where)
            inner, figures = phase.tell(tell_key, inner, population, evaluation, self.pools.encoding)
            metrics |= {name: np.asarray(value).item() for name, value in figures.items()}
            counts = self._counted(counts, statistics, phase.role)
            if phase.role == "training":
                members = _members(population._replace(bases=()), evaluation)
                fraction_cut = float((evaluation.lengths >= state.max_episode_steps).sum()) / statistics.episodes
                metrics |= _training_metrics(statistics) | {"fraction_cut": fraction_cut}
            metrics[f"{phase.role}_seconds"] = time.perf_counter() - phase_began
        if state.lineage is None:  # moved by gradients; where there are lineages, bases are sums of few numbers
            check_bases(inner.bases, f"generation {state.generation + 1} of {type(self.strategy).__name__}")
        elapsed = time.perf_counter() - began
        max_episode_steps, log = self.cutoff.grown(state.max_episode_steps, fraction_cut), state.lineage
        if max_episode_steps > state.max_episode_steps:
            inner = self.strategy.forget_scores(inner)
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
        return new, metrics | self.player.figures()

    def _evaluate(
        self, i: int, state: EvolveState, population: Population, monitor: Monitor | None
    ) -> tuple[Evaluation, RolloutStatistics]:
        """Plays the population of a phase."""
        phase = self.phases[i]
        test, formed = phase.role == "test", self.pools.encoding.rank is not None and bool(population.initial.any())
        most = [self._most_timesteps(phase, state) for phase in self.phases]
        share, here = (sum(most[:i]), most[i], sum(most)), {"generation": state.generation + 1, "role": phase.role}

        def watch(progress: dict[str, Any]) -> bool | None:
            if monitor is None:
                return False
            if "stepped" not in progress:
                return monitor(progress | here)
            frames_per_second = progress.pop("timesteps_per_second") * self.env.spec.frame_skip
            figures = {"phase": here["role"], "frames_per_second": frames_per_second, **progress}
            figures["step_done"] = share[0] + min(progress["stepped"], share[1])
            return monitor(figures | {"step_total": share[2]})

        request = Request(
            population=population,
            num_episodes=phase.num_episodes,
            place=Place(test, self.test_cutoff if test else state.max_episode_steps, formed),
            # Seeds depend on the generation, so that a resumed run does not repeat its no-op starts.
            seed=seed_of(state.key, state.generation, i),
            pool_seed=seed_of(state.key, state.generation, len(self.phases) + test),
            timed=phase.role == "training" and is_timed(state.generation),
            origin=state.strategy.survivors if state.generation else None,
        )
        return self.player.play(request, watch)

    def _most_timesteps(self, phase: Phase, state: EvolveState) -> int:
        """The timesteps of a phase in which every episode lasts until the cutoff, those of idle slots included."""
        cutoff, slots = self.test_cutoff if phase.role == "test" else state.max_episode_steps, self.env.num_envs
        return -(-phase.num_members * phase.num_episodes // slots) * slots * cutoff

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

    def from_genome(self, genome: Any) -> ArrayTree:
        return jax.jit(self.genotype.prepare)(lineages.rebuild(self.pools.encoding, lineages.from_json(genome)))

    def variables(self, state: EvolveState) -> ArrayTree:
        _check_completed(state)
        return jax.jit(self.genotype.prepare)(rows(state.strategy.bases, self.strategy.elite))

    def save(self, state: EvolveState) -> EvolveState:
        # Where bases descend from members, lineages are all that is needed to compute them again.
        inner = state.strategy if state.lineage is None else state.strategy._replace(bases=())
        return state._replace(strategy=inner, members=None)

    def restore(self, saved: Mapping[str, Any] | EvolveState) -> EvolveState:
        fields = saved if isinstance(saved, Mapping) else getattr(saved, "_asdict", dict)()
        if type(fields.get("generation")) is not int or not hasattr(fields.get("key"), "dtype"):
            raise ValueError("the checkpoint is of another state: it holds no key and generation of a run of evolution")
        generation, code = fields["generation"], self.pools.encoding
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
        "training_timesteps_per_second": statistics.timesteps_per_second,
    }
    if statistics.times is None:
        return metrics
    return metrics | statistics.times.shares(statistics.stepped_per_second, working="decoding")


@jax.jit
def _members(population: Population, evaluation: Evaluation) -> dict[str, Array]:
    return {
        **members_of(population)._asdict(),
        "fitness": fitness(evaluation),
        "length": mean_length(evaluation),
        "behavior": evaluation.behaviors[:, 0],
    }


def _check_completed(state: EvolveState) -> None:
    if not state.generation:
        raise ValueError("no generation is complete yet, so there is no elite; take a step first.")
