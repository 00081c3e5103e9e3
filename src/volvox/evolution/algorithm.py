"""`evolve`: any strategy, network and environment as an `Algorithm`. One step is one generation."""

import dataclasses
import functools
import time
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from volvox import networks
from volvox._checks import check_has, check_type, integer, typed_key
from volvox.envs.envpool_tasks import whole_games
from volvox.evolution.strategy import (
    Cutoff,
    EliteScore,
    Strategy,
    Validation,
    choose,
    fitness,
    mean_length,
    parse_cutoff,
    scores_and_errors,
    summary,
)
from volvox.ops.flat import by_path, restored
from volvox.population import lineage as lineages
from volvox.population.decoding import Encoding, Member, decode_many, members_of, outline
from volvox.population.noise import Noise, Table
from volvox.rollout import behaviors
from volvox.rollout.behaviors import Behavior, Nothing
from volvox.rollout.evaluator import PopulationEvaluator, check_memory
from volvox.rollout.loop import Monitor, seed_of
from volvox.types import UNLIMITED, Algorithm, Array, ArrayTree, Budget, Env, Evaluation, Genotype, Population, pick


class Counts(NamedTuple):
    """Cumulative counts of a run.

    Attributes:
      frames: Emulator frames of scored timesteps in training and validation, which publications count.
      training_frames: The frames of training alone.
      total_frames: Emulator frames of all timesteps, including idle slots, resets and test.
      episodes: Episodes of training, validation and test.
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
      bases: Parameters, leaves `[P, ...]`. The last is the elite; with lineages, the parents are before it.
      score: The score of the elite.
      lineage: Descent of the bases of each generation from the previous bases, fields `[G, P]`; None without lineages.
      max_episode_steps: The current cutoff of training and validation, timesteps.
      counts: Cumulative counts.
      members: Arrays of the last generation for `log`; None before the first generation and after a resume.
    """

    key: Array
    generation: int
    strategy: Any
    bases: ArrayTree
    score: EliteScore
    lineage: Member | None
    max_episode_steps: int
    counts: Counts = Counts()
    members: dict[str, Array] | None = None


def evolve(
    strategy: Strategy,
    network: nn.Module | Genotype,
    env: Env,
    *,
    validation: Validation = Validation(),  # noqa: B008  # frozen
    noise: Noise = Table(),  # noqa: B008  # frozen
    behavior: Behavior | None = None,
    max_episode_steps: int | str | None = None,
    test_max_episode_steps: int | None = None,
    workers: Any = None,
) -> Algorithm:
    """Joins a strategy, a network and an environment into an algorithm; one step is one generation.

    Training and validation share a cutoff, and so one set of environments and one compiled loop. Test episodes run on
    environments of their own, driven from Python.

    Example:
      >>> env = vx.envs.atari("Frostbite", num_envs=64, groups=2)
      >>> algorithm = vx.evolve(vx.GA(population_size=128), vx.networks.DeepGA(env.spec.num_outputs), env)
      >>> run = vx.train(algorithm, seed=0, steps=10, run_dir="runs/frostbite")

    Args:
      strategy: A strategy, such as `GA(...)`, `ES(...)`, `Evosax(...)`, or any object with `population_size`, `init`,
        `ask` and `tell` (`volvox.evolution.Strategy`).
      network: Any flax module, or a genotype.
      env: The environments; its `num_envs` is the number of slots.
      validation: How the elite is chosen, scored and tested.
      noise: The source of noise; the default is sized to the network.
      behavior: The record of each episode, for `log`; default: the behaviour that the strategy compares.
      max_episode_steps: Cutoff of training and validation episodes in timesteps, or
        `"adaptive:start,fraction,ratio,max"`; default: the environment's own.
      test_max_episode_steps: Cutoff of test episodes in timesteps; default: the environment's own.
      workers: None: members play in this process. `volvox.distributed.ray(...)`: on actors of Ray, each with
        `env.num_envs` slots. Results are the same on pure-JAX environments.

    Returns:
      `Algorithm`, whose result is the current elite. Its metrics: scores and lengths of the members, such as
      `training_mean`, with `num_nan` and `fraction_cut`, the fraction of training episodes that reached the cutoff;
      `validation_*`, `elite_*` and `candidates_mean` (`strategy.choose`); `test_*` if asked for; cumulative `Counts`,
      and `timesteps`, the timesteps of `frames`; `frames_per_second`; `occupancy`, `makespan_over_bound` and
      `training_timesteps_per_second` of training; seconds of each part, such as `training_seconds`;
      `max_episode_steps`, the cutoff; and the strategy's own. Its `log` has, for each member of the last
      generation, `parent`, `seed`, `scale`, `initial`, `fitness`, `length` (timesteps) and `behavior` (of the first
      episode); and with lineages `base_parent`, `base_seed`, `base_scale` and `base_initial`: the descent of each base
      from the previous bases, the elite last.

    Raises:
      TypeError: An argument has the wrong type.
      ValueError: Slots or members do not fit into memory, a cutoff that is out of range, a network that does not fit
        the environment's actions, noise that does not fit the network or the strategy, or a behaviour that the
        environment does not provide or that does not cover an episode.
    """
    check_has("strategy", strategy, ("population_size", "init", "ask", "tell"), "a strategy, such as vx.GA()")
    check_type("network", network, (nn.Module, Genotype), "a flax module, such as vx.networks.DeepGA(...)")
    check_type("env", env, Env, "a function of vx.envs, such as vx.envs.atari(...)")
    check_type("validation", validation, Validation, "vx.Validation(...)")
    source = ("source",) if hasattr(noise, "rank") else ("length", "make_data", "draw", "sample")
    check_has("noise", noise, source, "Table(), Generator() or LowRank() of vx.population")
    compared = getattr(strategy, "behavior", Nothing())
    if behavior is not None:
        behaviors.check_kind("behavior", behavior)
        if compared.size:
            raise ValueError(f"{type(strategy).__name__} compares behaviours of its own; leave behavior out.")
    if whole_games(env) and env.config.get("episodic_life"):
        raise ValueError("episodic_life=True would let members continue each other's games; leave it out to evolve.")
    longest = env.spec.max_episode_steps
    max_episode_steps = longest if max_episode_steps is None else max_episode_steps
    test_max_episode_steps = longest if test_max_episode_steps is None else test_max_episode_steps
    integer("test_max_episode_steps", test_max_episode_steps, low=1)
    cutoff = parse_cutoff(max_episode_steps)
    recorded = compared if behavior is None else behavior
    behaviors.check(recorded, env.spec, max(cutoff.start, cutoff.max))
    genotype = network if isinstance(network, Genotype) else networks.genotype(network, env.spec)
    encoding = outline(genotype, noise)
    run = _Evolution(strategy, validation, genotype, env, cutoff, test_max_episode_steps, encoding)
    capacity = max(members * episodes for members, episodes in run.sizes.values())
    make_local = functools.partial(PopulationEvaluator, genotype, noise, env, recorded, capacity)
    if workers is None:
        run.evaluator = make_local()
    else:
        check_has("workers", workers, ("evaluator",), "vx.distributed.ray(...), or None for this process")
        run.evaluator = workers.evaluator(make_local, env.num_envs)
    saved_arguments: dict[str, Any] = {
        "network": network,
        "env": env.config,
        "validation": validation,
        "noise": noise,
        "behavior": behavior,
        "max_episode_steps": cutoff.start if cutoff.fraction >= 1 else max_episode_steps,
        "test_max_episode_steps": test_max_episode_steps,
    }
    local_arguments: dict[str, Any] = {"env": env, "workers": workers}
    return Algorithm(
        init=run.init,
        step=run.step,
        variables=run.variables,
        policy=genotype.policy,
        env=env,
        config={"type": "volvox.evolve", "strategy": strategy, **saved_arguments},
        close=run.evaluator.close,
        genome=run.genome if run.has_lineage else None,
        from_genome=run.from_genome if run.has_lineage else None,
        parents=run.parents if run.has_lineage else None,
        save=run.save,
        restore=run.restore,
        log=run.log,
        profile=run.profile if workers is None else None,
        remake=functools.partial(evolve, **saved_arguments | local_arguments),
    )


_OPTIONAL: dict[str, Any] = {
    "num_episodes": 1,
    "behavior": Nothing(),
    "candidates": lambda state, population, evaluation, encoding: None,
    "adopt": lambda state, candidates, evaluation, winner, encoding: (state, {}),
    "forget_scores": lambda state: state,
    "validates_first": False,
    "traceable": True,
}
"""Default values of the optional members of a strategy."""


class _Evolution:
    """The functions of an `Algorithm`.

    Attributes:
      num_rows: Rows of the bases of each population, the elite included: the same in training and validation, so that
        the loop is compiled once. With lineages it is P.
      sizes: Members and episodes of each, by role, in the order of play. The position of a role is a part of its random
        keys.
      evaluator: Set by `evolve`.
    """

    evaluator: Any

    def __init__(
        self,
        strategy: Any,
        validation: Validation,
        genotype: Genotype,
        env: Env,
        cutoff: Cutoff,
        test_max_episode_steps: int,
        encoding: Encoding,
    ):
        """Computes shapes alone; raises ValueError if noise, validation or memory do not fit."""
        self.name = type(strategy).__name__
        self.validation, self.genotype, self.env = validation, genotype, env
        self.cutoff, self.test_max_episode_steps = cutoff, test_max_episode_steps
        n = integer("population_size", strategy.population_size, low=1)
        optional = {name: getattr(strategy, name, default) for name, default in _OPTIONAL.items()}
        self.strategy = strategy = SimpleNamespace(init=strategy.init, ask=strategy.ask, tell=strategy.tell, **optional)
        e = integer("num_episodes", strategy.num_episodes, low=1)
        if strategy.validates_first and strategy.candidates is _OPTIONAL["candidates"]:
            raise ValueError("a strategy with validates_first has no members to validate yet; it needs candidates")

        def ask(key: Array, state: Any, encoding: Encoding) -> tuple[Population, Any]:
            population, state = strategy.ask(key, state, encoding)
            if population.seed.shape != (n,):
                size = population.seed.size
                raise ValueError(f"ask returned {size} members, and the strategy's population_size is {n}.")
            return population._replace(episodes=jnp.where(population.episodes > 0, jnp.int32(e), 0)), _strong(state)

        wrap: Any = jax.jit if strategy.traceable else lambda function: function
        self._ask, self._tell = wrap(ask), wrap(lambda *args: _strong(strategy.tell(*args)))
        self._candidates, self._adopt = wrap(strategy.candidates), wrap(strategy.adopt)

        state = jax.eval_shape(strategy.init, jax.random.key(0), encoding)
        challengers = None
        self.num_rows = n + 1
        self.has_lineage = getattr(state, "survivors", None) is not None
        if strategy.traceable:
            population, state = jax.eval_shape(strategy.ask, jax.random.key(0), state, encoding)
            if population.bases is not None:
                self.num_rows = _num_rows(population.bases) + 1
            shapes: Any = [jax.ShapeDtypeStruct((n, e), dtype) for dtype in (jnp.float32, jnp.int32, jnp.bool_)]
            shapes.append(jax.ShapeDtypeStruct((n, e, strategy.behavior.size), jnp.float32))
            evaluation = Evaluation(*shapes)
            played = (None, None) if strategy.validates_first else (population, evaluation)
            challengers = jax.eval_shape(strategy.candidates, state, *played, encoding)
        if self.has_lineage:
            self.num_rows = state.survivors.seed.size + 1
        if challengers is None:
            num_candidates = integer("num_elite_candidates", validation.num_elite_candidates, low=2, high=n)
        else:
            num_candidates = challengers.seed.size + 1
        sizes = {"training": (n, e), "validation": (num_candidates, validation.num_validation_episodes)}
        sizes["test"] = (1, validation.num_test_episodes)
        order = ("validation", "test", "training") if strategy.validates_first else tuple(sizes)
        self.sizes = {role: sizes[role] for role in order if sizes[role][1]}
        bases = jax.tree.map(lambda x: jax.ShapeDtypeStruct((self.num_rows, *x.shape), x.dtype), encoding.like)
        formed = self.has_lineage and encoding.rank is not None  # slots of first ancestors
        check_memory(genotype, dataclasses.replace(encoding, formed=formed), env.num_envs, state, bases)

    def init(self, key: int | Array) -> EvolveState:
        key = typed_key(key)
        lineage = lineages.zeros(0, self.num_rows) if self.has_lineage else None
        bases = self.evaluator.encoding.zeros(self.num_rows if self.has_lineage else 1)
        inner = _strong(self.strategy.init(key, self.evaluator.encoding))
        return EvolveState(key, 0, inner, bases, EliteScore(), lineage, self.cutoff.start)

    def step(
        self, state: EvolveState, *, monitor: Monitor | None = None, budget: Budget = UNLIMITED
    ) -> tuple[EvolveState, dict[str, Any]]:
        """Makes a generation; see `Algorithm.step`. The budget has no effect, because generations are whole."""
        began = time.perf_counter()
        frames = state.counts.total_frames
        encoding = self.evaluator.encoding
        row: dict[str, Any] = {"generation": state.generation + 1, "max_episode_steps": state.max_episode_steps}
        trained: Any = (None, None)  # the population and its evaluation
        candidates: Any = None
        challenger = winner = 0
        for role in self.sizes:
            if role == "training":
                ask_key, tell_key = self._keys(state)
                population, inner = self._ask(ask_key, state.strategy, encoding)
                evaluation, state = self._play(state, role, self._on_bases(population, state), row, monitor)
                inner, metrics = self._tell(tell_key, inner, population, evaluation, encoding)
                trained = (population, evaluation)
                members = members_of(population)._asdict() | _results(evaluation)
                state = state._replace(strategy=inner, members=members)
                lengths = np.asarray(evaluation.lengths)[np.asarray(evaluation.valid)]
                row["fraction_cut"] = float(np.mean(lengths >= state.max_episode_steps))
                row |= _numbers(summary(evaluation) | metrics)
            elif role == "validation":
                challengers = self._candidates(state.strategy, *trained, encoding)
                candidates, elite = self._with_elite(state, trained[0], challengers)
                result, state = self._play(state, role, candidates, row, monitor)
                challenger, winner, score, chosen = choose(self.validation, state.score, elite, result)
                inner, metrics = self._adopt(state.strategy, candidates, result, jnp.int32(winner), encoding)
                score = score._replace(length=float(candidates.priority[winner]))
                state = state._replace(strategy=inner, score=score)
                row |= chosen | _numbers(metrics)
                if state.lineage is None and winner != elite:
                    members = pick(members_of(candidates), slice(winner, winner + 1))
                    state = state._replace(bases=decode_many(encoding, candidates.bases, members))
            else:
                i = challenger if self.strategy.validates_first else winner
                tested = pick(candidates._replace(bases=()), slice(i, i + 1))
                tested = tested._replace(bases=candidates.bases, episodes=np.full(1, self.sizes[role][1], np.int32))
                result, state = self._play(state, role, tested, row, monitor)
                scores, errors = scores_and_errors(result)
                row["test_score"], row["test_standard_error"] = float(scores[0]), float(errors[0])
                row["test_best"] = float(np.asarray(result.returns).max())
        if state.lineage is None:  # moved by gradients; with lineages, bases are sums of few numbers
            params = (state.bases, getattr(state.strategy, "bases", ()))
            if not all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)):
                raise FloatingPointError(
                    f"{self.name}, generation {row['generation']}: parameters are no longer finite; the generation is "
                    "dropped. Lower learning_rate or noise_std."
                )
        else:
            survivors = jax.tree.map(jnp.append, state.strategy.survivors, pick(members_of(candidates), winner))
            state = state._replace(
                bases=decode_many(encoding, state.bases, survivors),
                lineage=lineages.extend(state.lineage, survivors),
                members=(state.members or {}) | {f"base_{name}": x for name, x in survivors._asdict().items()},
            )
        state = state._replace(generation=state.generation + 1)
        longer = self.cutoff.grown(state.max_episode_steps, row["fraction_cut"])
        if longer > state.max_episode_steps:
            inner, score = self.strategy.forget_scores(state.strategy), EliteScore(length=state.score.length)
            state = state._replace(max_episode_steps=longer, score=score, strategy=inner)
        row |= state.counts._asdict() | {"timesteps": state.counts.frames // self.env.spec.frame_skip}
        row["frames_per_second"] = (state.counts.total_frames - frames) / (time.perf_counter() - began)
        return state, row | self.evaluator.figures()

    def _with_elite(
        self, state: EvolveState, population: Population | None, challengers: Population | None
    ) -> tuple[Population, int | None]:
        """Returns the candidates, and the index of the elite so far among them; None in the first generation."""
        first = state.generation == 0
        count, num_episodes = self.sizes["validation"]
        source: Any = population if challengers is None else challengers
        row = self.num_rows - 1 if state.lineage is not None else _num_rows(source.bases)
        elite = (np.int32(row), np.int32(0), np.float32(0), np.bool_(False), np.float32(state.score.length))
        if challengers is None:  # the elite is ahead of the best members, and takes the place of the last
            results: Any = state.members
            best = np.argsort(-np.asarray(results["fitness"]), kind="stable")[:count]
            fields = [np.asarray(results[name])[best] for name in (*Member._fields, "length")]
            if not first:
                fields = [np.append(x, field[:-1]) for x, field in zip(elite, fields, strict=True)]
            plays = np.ones(count, bool)
            index = 0
        else:
            fields = (*members_of(challengers), challengers.priority)
            fields = [np.append(field, x) for field, x in zip(fields, elite, strict=True)]
            plays = np.append(challengers.episodes > 0, not first)
            index = len(plays) - 1
        *members, priority = fields
        episodes = np.where(plays, num_episodes, 0).astype(np.int32)
        candidates = Population._make((source.bases, *members, episodes, priority))
        return self._on_bases(candidates, state), None if first else index

    def _on_bases(self, population: Population, state: EvolveState) -> Population:
        """Sets the bases of a population: the bases of the run, or its own bases followed by the elite."""
        if state.lineage is not None:
            return population._replace(bases=state.bases)
        return population._replace(bases=_join(population.bases, state.bases, self.num_rows))

    def _play(
        self, state: EvolveState, role: str, population: Population, row: dict[str, Any], monitor: Monitor | None
    ) -> tuple[Evaluation, EvolveState]:
        """Evaluates a population, checks the results, and counts frames."""
        began = time.perf_counter()
        i = list(self.sizes).index(role)
        test = role == "test"
        evaluation, statistics = self.evaluator.evaluate(
            population,
            self.sizes[role][1],
            max_episode_steps=self.test_max_episode_steps if test else state.max_episode_steps,
            # Seeds depend on the generation, so that a resumed run does not repeat its no-op starts.
            seed=seed_of(state.key, state.generation, i),
            pool_seed=seed_of(state.key, state.generation, len(self.sizes) + test),
            test=test,
            lineage=state.lineage,
            monitor=None if monitor is None else self._monitor(role, monitor),
        )
        seconds = time.perf_counter() - began
        returns, lengths, valid = map(np.asarray, evaluation[:3])
        nan, infinite = int(np.isnan(returns[valid]).sum()), int(np.isinf(returns[valid]).sum())
        counted = f"{self.env.spec.name}, {role} in generation {state.generation + 1}: "
        counted += f"of {valid.sum()} returns {nan} are NaN and {infinite} infinite"
        if infinite or nan == valid.sum():
            raise FloatingPointError(f"{counted}. Rewards and observations must be finite.")
        if nan:
            warnings.warn(f"{counted}; these members are ranked last", UserWarning, stacklevel=2)
        timesteps = int(lengths.sum(dtype=np.int64))
        row[f"{role}_seconds"] = seconds
        if role == "training":
            row["occupancy"] = statistics.occupancy
            row["makespan_over_bound"] = statistics.makespan_over_bound(lengths)
            row["training_timesteps_per_second"] = timesteps / seconds
        frame_skip = self.env.spec.frame_skip
        counts = state.counts
        scored = timesteps * frame_skip
        counts = Counts(
            frames=counts.frames + (0 if test else scored),
            training_frames=counts.training_frames + (scored if role == "training" else 0),
            total_frames=counts.total_frames + statistics.stepped * frame_skip,
            episodes=counts.episodes + int(valid.sum()),
        )
        return evaluation, state._replace(counts=counts)

    def _monitor(self, role: str, monitor: Monitor) -> Monitor:
        """Adds the role and the progress of the generation to the figures of an evaluation."""
        episodes = [members * episodes for members, episodes in self.sizes.values()]
        before = sum(episodes[: list(self.sizes).index(role)])

        def watch(figures: dict[str, Any]) -> bool | None:
            if "stepped" in figures:
                rate = figures.pop("timesteps_per_second") * self.env.spec.frame_skip
                done = {"step_done": before + figures["done"], "step_total": sum(episodes)}
                figures = {"phase": role, "frames_per_second": rate, **figures, **done}
            return monitor(figures)

        return watch

    def _keys(self, state: EvolveState) -> tuple[Array, Array]:
        """The keys of `ask` and `tell`."""
        key = jax.random.fold_in(state.key, state.generation)
        i = list(self.sizes).index("training")
        return jax.random.fold_in(key, i), jax.random.fold_in(key, len(self.sizes) + i)

    def profile(self, state: EvolveState, seconds: float) -> tuple[float, float, float]:
        """Times the parts of the loop on the population of the next generation."""
        population, _ = self._ask(self._keys(state)[0], state.strategy, self.evaluator.encoding)
        seed = seed_of(state.key, state.generation)
        options = {"max_episode_steps": state.max_episode_steps, "seed": seed, "seconds": seconds}
        return self.evaluator.profile(self._on_bases(population, state), self.strategy.num_episodes, **options)

    def genome(self, state: EvolveState) -> Any:
        assert state.lineage is not None
        return lineages.genome(state.lineage, self.num_rows - 1)

    def from_genome(self, genome: Any) -> ArrayTree:
        return jax.jit(self.genotype.prepare)(lineages.rebuild(self.evaluator.encoding, genome))

    def variables(self, state: EvolveState) -> ArrayTree:
        if not state.generation:
            raise ValueError("no generation is complete yet, so there is no elite; take a step first.")
        return jax.jit(self.genotype.prepare)(pick(state.bases, -1))

    def parents(self, state: EvolveState) -> ArrayTree:
        return jax.jit(jax.vmap(self.genotype.prepare))(state.bases)

    def save(self, state: EvolveState) -> EvolveState:
        # With lineages, the bases are computed from them again.
        return state._replace(bases=state.bases if state.lineage is None else (), members=None)

    def restore(self, saved: Any) -> EvolveState:
        fields = by_path(saved)
        key, generation = fields[("key",)], int(fields[("generation",)])
        if generation == 0:
            return self.init(key)
        encoding = self.evaluator.encoding
        lineage = lineages.zeros(generation, self.num_rows) if self.has_lineage else None
        inner = jax.eval_shape(lambda: _strong(self.strategy.init(key, encoding)))
        like = EvolveState(key, generation, inner, encoding.zeros(1), EliteScore(), lineage, self.cutoff.start)
        state = restored(saved, self.save(like), owner="run of evolution")
        if state.lineage is None:
            return state
        log = jax.tree.map(np.asarray, state.lineage)
        bases = [lineages.rebuild(encoding, lineages.genome(log, base)) for base in range(self.num_rows)]
        return state._replace(bases=jax.tree.map(lambda *x: jnp.stack(x), *bases), lineage=log)

    def log(self, state: EvolveState) -> dict[str, np.ndarray]:
        return {name: np.asarray(x) for name, x in (state.members or {}).items()}


@jax.jit
def _results(evaluation: Evaluation) -> dict[str, Array]:
    behavior = evaluation.behaviors[:, 0]
    return {"fitness": fitness(evaluation), "length": mean_length(evaluation), "behavior": behavior}


@functools.partial(jax.jit, static_argnums=2)
def _join(bases: ArrayTree, elite: ArrayTree, num_rows: int) -> ArrayTree:
    """Joins bases `[K, ...]` and the elite `[1, ...]`, and fills up to `num_rows` with zeros."""

    def join(bases: Array, elite: Array) -> Array:
        joined = jnp.concatenate([bases, elite])
        return jnp.pad(joined, [(0, max(num_rows - len(joined), 0))] + [(0, 0)] * (joined.ndim - 1))

    return jax.tree.map(join, bases, elite)


def _num_rows(bases: ArrayTree) -> int:
    return jax.tree.leaves(bases)[0].shape[0]


def _numbers(metrics: Mapping[str, Array]) -> dict[str, Any]:
    return {name: np.asarray(value).item() for name, value in metrics.items()}


def _strong(tree: ArrayTree) -> ArrayTree:
    """Returns the arrays without weak types (`jnp.full(3, 0.5)` has one), so that JAX does not compile again."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)
