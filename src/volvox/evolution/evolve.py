"""Any strategy as an `Algorithm`: its rounds, played on pools of environments."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox import networks
from volvox._checks import integer
from volvox.evolution.cutoff import Cutoff, cutoff, grown
from volvox.evolution.scores import fitness, mean_length
from volvox.evolution.strategy import Strategy, compiled_rounds
from volvox.loop import behaviors
from volvox.loop.balance import shares
from volvox.loop.evaluator import Evaluator, Figures, SlotMemory, evaluator
from volvox.population import lineage as lineages
from volvox.population.decoding import Encoding, encoding, outline
from volvox.population.noise import Noise, table
from volvox.types import Algorithm, Array, ArrayTree, Env, Evaluation, Interrupted, Policy, Population

_TIMED_EVERY = 10
"""Generations."""


class Counts(NamedTuple):
    """Cumulative counts of a run.

    Attributes:
      frames: Emulator frames of scored training steps: what publications count.
      total_frames: Emulator frames of every step taken: idle slots, resets, validation and test included.
      episodes: Episodes played to their end, in all rounds.
    """

    frames: int = 0
    total_frames: int = 0
    episodes: int = 0


class EvolveState(NamedTuple):
    """A run between two generations.

    Attributes:
      generation: Generations completed.
      lineage: None where the strategy keeps none.
      max_episode_steps: The current cutoff of training and validation.
      best_score: The best mean validation return of any generation's elite.
      best_generation: The generation whose elite it was, counted from 1; 0 before the first.
      members: What `log` gives of the last generation; None before the first, and after a resume.
    """

    key: Array
    generation: int
    strategy: ArrayTree
    lineage: lineages.Lineage | None
    max_episode_steps: int
    counts: Counts
    best_score: float
    best_generation: int
    members: dict[str, Array] | None = None


class _Resources:
    """Pools, slots and tables: made once, on first use, and never part of the state."""

    def __init__(self):
        self.encoding: Encoding | None = None
        self.memory: SlotMemory | None = None
        self.training: Evaluator | None = None
        self.training_cutoff = 0
        self.test: Evaluator | None = None

    def close(self):
        """Drops pools and slots, and keeps the table; all are made anew when they are needed again."""
        for used in (self.training, self.test):
            if used is not None:
                used.close()
        self.memory = self.training = self.test = None


def evolve(
    strategy: Strategy,
    network: Any,
    env: Env,
    *,
    noise: Noise | None = None,
    behavior: behaviors.Behavior | None = None,
    max_episode_steps: int | str | Cutoff | None = None,
    test_max_episode_steps: int | None = None,
    chunk_seconds: float = 1.0,
) -> Algorithm:
    """Joins a strategy, a network and an environment into an algorithm; one step is one generation.

    Training and validation share a cutoff, and so one set of pools and one compiled loop; test episodes run on pools
    of their own, driven from Python.

    Args:
      strategy: e.g. `ga(...)`.
      network: any flax module, or a `Policy`.
      env: the environments; its `num_envs` is the number of slots.
      noise: where noise comes from; default: `table()`, sized to the network.
      behavior: what is recorded of each episode, for `log`; default: what the strategy compares them by.
      max_episode_steps: cutoff of training and validation episodes in steps, or
        `"adaptive:start,fraction,ratio,max"`; default: the environment's own.
      test_max_episode_steps: cutoff of test episodes in steps; default: the environment's own.
      chunk_seconds: how often progress and interrupts are looked at.

    Returns:
      `Algorithm`. Its metrics: `training_*` over the offspring, `elite_score` (validation mean) with its standard
      error, `test_*` if asked for, cumulative `frames`, `total_frames` and `episodes`, `frames_per_second`, `occupancy`
      and `makespan_over_bound` of training, seconds of each round, and the cutoff; in the second generation and every
      tenth from there `share_emulators`, `share_inference`, `share_decoding` and `speed_over_turns`, of a few beats
      played with a stopwatch (`rollout.balance`). Its `log` gives, of each member of the last generation, `parent`
      (index of the base it descends from), `seed`, `scale`, `initial`, `fitness`, `length` (steps) and `behavior` (of
      its first episode); and, where there are lineages, `base_parent`, `base_seed`, `base_scale` and `base_initial`:
      how each base came from those before, the elite last.

    Raises:
      ValueError: a cutoff that is not positive, a network that does not fit the environment's actions, noise that does
        not fit the network or the strategy, or a behaviour that the environment does not tell.
    """
    rule = cutoff(env.spec.max_episode_steps if max_episode_steps is None else max_episode_steps)
    test_cutoff = env.spec.max_episode_steps if test_max_episode_steps is None else test_max_episode_steps
    integer("test_max_episode_steps", test_cutoff, low=1)
    if all(round_.role == "test" for round_ in strategy.rounds):
        raise ValueError(f"strategy {strategy.config} has no training or validation round, so nothing would learn.")
    policy = network if isinstance(network, Policy) else networks.policy(network, env.spec)
    noise = table() if noise is None else noise
    jax.eval_shape(strategy.init, jax.random.key(0), outline(policy, noise))  # which refuses what does not fit
    if behavior is not None and strategy.behavior.size:
        raise ValueError(f"strategy {strategy.config['kind']} compares behaviours of its own; leave behavior out.")
    recorded = strategy.behavior if behavior is None else behavior
    behaviors.check(recorded, env.spec)
    rounds = compiled_rounds(strategy)
    capacity = {
        role: max(
            (r.num_members * r.num_episodes for r in strategy.rounds if (r.role == "test") == (role == "test")),
            default=0,
        )
        for role in ("training", "test")
    }
    resources = _Resources()

    def ready() -> Encoding:
        if resources.encoding is None:
            resources.encoding = encoding(policy, noise)
        return resources.encoding

    def memory() -> SlotMemory:
        if resources.memory is None:
            size = env.num_envs // env.num_groups
            resources.memory = SlotMemory(policy, ready(), env.num_groups, size)
        return resources.memory

    def seed_of(state: EvolveState, number: int) -> int:
        # Depends on the generation, so that a resumed run does not repeat its no-op starts.
        entropy = [*np.asarray(jax.random.key_data(state.key)).ravel().tolist(), state.generation, number]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)

    def pools(state: EvolveState, role: str) -> Evaluator:
        seed = seed_of(state, len(strategy.rounds) + int(role == "test"))
        if role == "test":
            if resources.test is None:
                groups = env.make(seed, max_episode_steps=test_cutoff, host=True)
                resources.test = evaluator(
                    policy, groups, memory(), capacity=capacity["test"], chunk_seconds=chunk_seconds
                )
            return resources.test
        if resources.training is not None and resources.training_cutoff != state.max_episode_steps:
            resources.training.close()
            resources.training = None
        if resources.training is None:
            groups = env.make(seed, max_episode_steps=state.max_episode_steps)
            resources.training = evaluator(
                policy,
                groups,
                memory(),
                capacity=capacity["training"],
                behavior=recorded,
                chunk_seconds=chunk_seconds,
            )
            resources.training_cutoff = state.max_episode_steps
        return resources.training

    def init(key: Array) -> EvolveState:
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        inner, log = strategy.init(key, ready()), None
        if strategy.survivors is not None:
            log = lineages.empty(strategy.num_bases)
            if ready().rank is not None:  # bases before the first generation
                log = lineages.extend(log, strategy.survivors(inner))
        return EvolveState(
            key=key,
            generation=0,
            strategy=inner,
            lineage=log,
            max_episode_steps=rule.start,
            counts=Counts(),
            best_score=-np.inf,
            best_generation=0,
        )

    def play(state: EvolveState, i: int, inner: ArrayTree, monitor):
        """One round: ask, evaluate, tell. Returns (strategy's state, metrics, population, evaluation, figures)."""
        round_, code = rounds[i], ready()
        role = "test" if round_.role == "test" else "training"
        fresh = _must_compile(resources, role, state.max_episode_steps)
        if monitor is not None and fresh:
            announced = {"phase": "compiling", "generation": state.generation + 1, "role": round_.role}
            if monitor(announced):
                raise Interrupted("before the loop was compiled")

        def watch(progress):
            assert monitor is not None
            frames_per_second = progress.pop("steps_per_second") * env.spec.frame_skip
            return monitor({"phase": round_.role, "frames_per_second": frames_per_second, **progress})

        key = jax.random.fold_in(jax.random.fold_in(state.key, state.generation), i)
        population = round_.ask(key, inner, code)
        try:
            evaluation, figures = pools(state, role).evaluate(
                population,
                round_.num_episodes,
                code,
                seed=seed_of(state, i),
                # At once where all is compiled, for later.
                timed=fresh or (round_.role == "training" and state.generation % _TIMED_EVERY == 1),
                monitor=None if monitor is None else watch,
            )
        except Interrupted:
            raise
        except BaseException:
            resources.close()  # donated buffers and pools in flight cannot be trusted any more
            raise
        inner, told = round_.tell(inner, population, evaluation, code)
        told = {name: np.asarray(value).item() for name, value in told.items()}
        return inner, told, population, evaluation, figures

    def step(state: EvolveState, *, monitor=None) -> tuple[EvolveState, dict[str, Any]]:
        began = time.perf_counter()
        inner, counts = state.strategy, state.counts
        metrics: dict[str, Any] = {"generation": state.generation + 1, "max_episode_steps": state.max_episode_steps}
        stepped, fraction_cut, members = 0, 0.0, None
        for i, round_ in enumerate(strategy.rounds):
            round_began = time.perf_counter()
            inner, told, population, evaluation, figures = play(state, i, inner, monitor)
            metrics |= told | {f"{round_.role}_seconds": time.perf_counter() - round_began}
            stepped += figures.stepped
            counts = _counted(counts, figures, round_.role == "training", env.spec.frame_skip)
            if round_.role == "training":
                members = _members(population._replace(bases=()), evaluation)
                fraction_cut = float((evaluation.lengths >= state.max_episode_steps).sum()) / figures.episodes
                metrics |= {
                    "fraction_cut": fraction_cut,
                    "occupancy": figures.occupancy,
                    "makespan_over_bound": figures.makespan_over_bound,
                    "training_steps_per_second": figures.steps_per_second,
                }
                if figures.times is not None:
                    metrics |= shares(figures.times, figures.stepped_per_second, working="decoding")
        elapsed = time.perf_counter() - began
        metrics |= counts._asdict()
        metrics |= {"frames_per_second": stepped * env.spec.frame_skip / elapsed, "generation_seconds": elapsed}
        if members is not None and strategy.survivors is not None:
            members |= {f"base_{name}": x for name, x in strategy.survivors(inner)._asdict().items()}
        generation, score = state.generation + 1, float(strategy.score(inner))
        improved = not state.best_generation or score > state.best_score
        new = EvolveState(
            key=state.key,
            generation=generation,
            strategy=inner,
            lineage=(
                None
                if strategy.survivors is None or state.lineage is None
                else lineages.extend(state.lineage, strategy.survivors(inner))
            ),
            max_episode_steps=grown(rule, state.max_episode_steps, fraction_cut),
            counts=counts,
            best_score=score if improved else state.best_score,
            best_generation=generation if improved else state.best_generation,
            members=members,
        )
        metrics["best_score"] = new.best_score
        return new, metrics

    def genome(state: EvolveState) -> lineages.Genome:
        _completed(state)
        assert state.lineage is not None
        # With low-rank noise the log begins with the bases before the first generation.
        before = len(state.lineage.seed) - state.generation
        log = lineages.Lineage(*(rows[: before + state.best_generation] for rows in state.lineage))
        return lineages.genome(log, strategy.elite)

    def best(state: EvolveState) -> ArrayTree:
        if state.lineage is not None:
            return lineages.rebuild(ready(), genome(state))
        _completed(state)
        bases, _ = strategy.split(state.strategy)
        return jax.tree.map(lambda x: x[strategy.elite], bases)

    def save(state: EvolveState) -> dict[str, Any]:
        _, rest = strategy.split(state.strategy)
        # Where bases descend from members, lineages are all that is needed to make them again.
        kept = state.strategy if state.lineage is None else rest
        return {
            "key": np.asarray(jax.random.key_data(state.key)),
            "key_impl": str(jax.random.key_impl(state.key)),
            "strategy": [np.asarray(leaf) for leaf in jax.tree.leaves(kept)],
            "lineage": {} if state.lineage is None else state.lineage._asdict(),
            "counts": np.array(state.counts, np.int64),
            "progress": np.array([state.generation, state.max_episode_steps, state.best_generation], np.int64),
            "best_score": np.float64(state.best_score),
        }

    def restore(saved: dict[str, Any]) -> EvolveState:
        code = ready()
        key = jax.random.wrap_key_data(jnp.asarray(saved["key"]), impl=saved["key_impl"])
        generation, max_steps, best_generation = (int(value) for value in saved["progress"])
        if generation == 0:
            return init(key)
        like = jax.eval_shape(lambda: strategy.init(key, code))
        if strategy.survivors is not None:
            _, like = strategy.split(like)
        shapes = [leaf.shape for leaf in jax.tree.leaves(like)]
        if shapes != [np.shape(leaf) for leaf in saved["strategy"]]:
            raise ValueError(
                f"the checkpoint holds a state of {len(saved['strategy'])} arrays that is not one of this strategy, "
                f"which has {len(shapes)}; was it saved with another optimiser or network?"
            )
        inner = jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(leaf) for leaf in saved["strategy"]])
        log = None
        if strategy.survivors is not None:
            log = lineages.Lineage(**saved["lineage"])
            bases = [lineages.rebuild(code, lineages.genome(log, base)) for base in range(strategy.num_bases)]
            inner = strategy.join(jax.tree.map(lambda *rows: jnp.stack(rows), *bases), inner)
        return EvolveState(
            key=key,
            generation=generation,
            strategy=inner,
            lineage=log,
            max_episode_steps=max_steps,
            counts=Counts(*(int(value) for value in saved["counts"])),
            best_score=float(saved["best_score"]),
            best_generation=best_generation,
        )

    return Algorithm(
        init=init,
        step=step,
        policy=best,
        genome=None if strategy.survivors is None else lambda state: lineages.to_json(genome(state)),
        save=save,
        restore=restore,
        close=resources.close,
        env=env,
        network=policy,
        config={
            "algorithm": "evolve",
            "strategy": dict(strategy.config),
            "network": dict(policy.config),
            "env": dict(env.config),
            "noise": dict(noise.config),
            "max_episode_steps": list(rule),
            "test_max_episode_steps": test_cutoff,
        },
        log=lambda state: {name: np.asarray(x) for name, x in (state.members or {}).items()},
    )


@jax.jit
def _members(population: Population, evaluation: Evaluation) -> dict[str, Array]:
    return {
        **{name: getattr(population, name) for name in ("parent", "seed", "scale", "initial")},
        "fitness": fitness(evaluation),
        "length": mean_length(evaluation),
        "behavior": evaluation.behaviors[:, 0],
    }


def _completed(state: EvolveState) -> None:
    if not state.best_generation:
        raise ValueError("no generation is complete yet, so there is no elite; take a step first.")


def _must_compile(resources: _Resources, role: str, max_episode_steps: int) -> bool:
    if role == "test":
        return resources.test is None
    return resources.training is None or resources.training_cutoff != max_episode_steps


def _counted(counts: Counts, figures: Figures, training: bool, frame_skip: int) -> Counts:
    return Counts(
        counts.frames + (figures.steps * frame_skip if training else 0),
        counts.total_frames + figures.stepped * frame_skip,
        counts.episodes + figures.episodes,
    )
