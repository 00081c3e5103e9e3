"""Evaluates a population on Ray actors.

A population is split into chunks of episodes, longest expected first. An idle actor takes the next chunk. Bases are
rebuilt on the actors from their lineage; if there is none, they are sent through Ray's object store.

Ray is imported when it is used, because a single process does not need it.
"""

import collections
import contextlib
import dataclasses
import functools
import logging
import math
import signal
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from volvox._checks import import_extra, integer, integers
from volvox.population.decoding import Encoding, Member, decode_many
from volvox.rollout.evaluator import PopulationEvaluator, RolloutStatistics
from volvox.rollout.loop import CHUNK_SECONDS
from volvox.types import Array, ArrayTree, Evaluation, Interrupted, Population, pick

_MAX_LOSSES = 4
"""Actors that may die on the same chunk before the evaluation ends with an error."""
_JAX_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_compilation_cache_dir",
)
"""Options of JAX that actors take over, because results or the time to compile depend on them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Evaluates populations on Ray actors, each with its own environments, slots, and noise table.

    Use it as `vx.distributed.ray(...)`. A population travels as seeds: each actor decodes the parameters itself. On
    pure-JAX environments the results do not depend on the number of actors; on other environments the initial states
    depend on the actor that runs the episode. If an actor dies, Ray restarts it, and another actor evaluates its chunk
    of the population again. While no actor runs, an evaluation waits.

    Network, environment and behavior are pickled, so they may be defined in a script or a notebook. Every machine needs
    the same versions of Python, Ray, JAX and volvox, and your own modules (see `runtime_env` of `ray.init`). If this
    process is connected to Ray already, that connection is used. Ray keeps running when the run ends; `ray.shutdown()`
    stops a local cluster.

    Example:
      >>> workers = vx.distributed.ray(num_actors="nodes")
      >>> algorithm = vx.evolve(vx.GA(population_size=1_000), network, env, workers=workers)

    Attributes:
      num_actors: Number of actors. `"nodes"`: one on each machine of the cluster that has CPUs, including machines that
        join between two evaluations. `"gpus"`: one for each GPU. 1 or None evaluates in this process, without Ray.
      num_cpus_per_actor: CPUs that Ray reserves for an actor. None: all of the machine for `"nodes"`, otherwise 1.
      address: Address of the cluster, such as `"10.0.0.1:6379"`. None: `RAY_ADDRESS`, or a cluster that runs on this
        machine, or a new local one.
    """

    num_actors: int | Literal["nodes", "gpus"] | None = "nodes"
    num_cpus_per_actor: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a setting out of range."""
        if isinstance(self.num_actors, str) and self.num_actors not in ("nodes", "gpus"):
            raise ValueError(f'num_actors={self.num_actors!r}: give "nodes", "gpus" or a number')
        if not isinstance(self.num_actors, str | None):
            integer("num_actors", self.num_actors, low=1)
        integers(self, "num_cpus_per_actor", low=1)

    def evaluator(self, make_local: Callable[[], Any], num_slots: int) -> Any:
        """Returns the evaluator of a population; no actor starts before its first evaluation.

        Args:
          make_local: Picklable function without arguments that makes a `volvox.rollout.evaluator.PopulationEvaluator`.
          num_slots: Environments of each actor.

        Returns:
          A `RayEvaluator`, or the result of `make_local` if there is one actor only.

        Raises:
          ImportError: Ray is not installed.
        """
        if self.num_actors in (None, 1):
            return make_local()
        import_extra("ray", "ray")
        return RayEvaluator(self, make_local, num_slots)

    def connect(self) -> None:
        """Connects this process to Ray, unless it is connected."""
        ray = import_extra("ray", "ray")
        if not ray.is_initialized():
            handler = signal.getsignal(signal.SIGTERM)
            with warnings.catch_warnings():
                # JAX warns of every fork; Ray executes another program after it.
                warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
                ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
            with contextlib.suppress(ValueError):  # in another thread than the main one
                # Ray's handler would end the process before `volvox.train` saves.
                signal.signal(signal.SIGTERM, handler)

    def places(self) -> dict[Any, dict[str, Any]]:
        """Returns Ray's options for each actor that there should be."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        count, num_cpus = self.num_actors, self.num_cpus_per_actor
        if count == "nodes":
            nodes = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
            return {
                node: {
                    "num_cpus": num_cpus or cpus,
                    "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
                }
                for node, cpus in nodes.items()
                if cpus
            }
        options = {"num_cpus": num_cpus or 1, "num_gpus": int(count == "gpus"), "scheduling_strategy": "SPREAD"}
        if count == "gpus":
            count = int(ray.cluster_resources().get("GPU", 0))
            if not count:
                raise ValueError("num_actors='gpus', but the cluster has no GPUs")
        return dict.fromkeys(range(int(count or 1)), options)

    def run(self, function: Callable[[Any], Any], next_job: Callable[[], Any]) -> Generator[tuple[Any, Any]]:
        """Calls a function of a job in Ray tasks, one at a time in the place of each actor.

        Args:
          function: Picklable function of a job.
          next_job: () -> the next job, or None. It is asked again when a task has ended.

        Yields:
          (job, result), as tasks end. Tasks that run when the iteration stops get a SIGINT, and a minute to end.
        """
        ray, jax_options = import_extra("ray", "ray"), _jax_options()

        def task(job: Any) -> Any:  # Ray accepts no `functools.partial`
            _set_jax_options(jax_options)
            return function(job)

        self.connect()
        idle, running = list(self.places().values()), dict[Any, tuple[Any, Any]]()
        try:
            while True:
                while idle and (job := next_job()) is not None:
                    options = idle.pop()
                    call: Any = ray.remote(max_retries=0, **options)(task)
                    running[call.remote(job)] = options, job
                if not running:
                    return
                (ended,), _ = ray.wait(list(running))
                options, job = running.pop(ended)
                idle.append(options)
                yield job, ray.get(ended)
        finally:
            for call in running:
                ray.cancel(call)
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=60)


def _jax_options() -> dict[str, Any]:
    return {name: getattr(jax.config, name) for name in _JAX_OPTIONS}


def _set_jax_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        jax.config.update(name, value)


Chunk = tuple[Population, tuple[Array, Array]]
"""Episodes that an actor runs in one call: K rows of one episode each, and their places in the whole population.

`episodes` is 0 in the rows at the end that are padding. `bases` is None if the chunk shares them with other chunks.
"""


def chunk_sizes(num_episodes: int, num_actors: int, num_slots: int) -> list[int]:
    """Sizes of the chunks: at most four episodes a slot, and smaller towards the end, so that actors end together."""
    sizes, left = [], num_episodes
    while left:
        size = min(max(min(math.ceil(left / (2 * num_actors)), 4 * num_slots), num_slots), left)
        sizes, left = [*sizes, size], left - size
    return sizes


def split(population: Population, sizes: list[int], *, share_bases: bool) -> Iterator[Chunk]:
    """Splits a population into chunks of one shape.

    Args:
      population: Members; all fields but `bases` are NumPy arrays, and `bases` too if they are not shared.
      sizes: Episodes of each chunk.
      share_bases: Leave out the bases. Otherwise each chunk has those of its own members.

    Yields:
      Each `Chunk`.
    """
    num_rows, episodes = max(sizes), population.episodes
    num_bases = min(num_rows, np.unique(population.parent[episodes > 0]).size)
    member = np.repeat(np.arange(episodes.size, dtype=np.int32), episodes)
    episode = np.concatenate([np.arange(count, dtype=np.int32) for count in episodes])
    order = np.argsort(-np.nan_to_num(population.priority)[member], kind="stable")
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        rows = np.resize(order[end - size : end], num_rows)  # repeats rows as padding
        chosen = Population(None, *(field[member[rows]] for field in population[1:]))
        chosen = chosen._replace(episodes=(np.arange(num_rows) < size).astype(np.int32))
        if not share_bases:
            parents, index = np.unique(chosen.parent, return_inverse=True)
            parents = np.resize(parents, num_bases)  # one shape for all chunks
            bases = pick(population.bases, parents)
            chosen = chosen._replace(bases=bases, parent=index.astype(np.int32))
        part: Any = member[rows], episode[rows]
        yield chosen, part


class PopulationActor:
    """Evaluates chunks with an evaluator of its own."""

    def __init__(self, make_local: Callable[[], PopulationEvaluator], jax_options: dict[str, Any]):
        _set_jax_options(jax_options)
        self._local = make_local()
        self._lineage: Member | None = None
        self._bases: ArrayTree = None

    def evaluate(self, chunk: Chunk, bases: ArrayTree, lineage: Member | None, settings: dict[str, Any]) -> Any:
        """Returns the evaluation of a chunk, without padding, and the statistics."""
        import ray

        population, part = chunk
        if lineage is not None:
            bases = self.rebuilt_bases(lineage)
        if bases is not None:
            population = population._replace(bases=bases)
        is_canceled = ray.get_runtime_context().is_canceled
        evaluation, statistics = self._local.evaluate(
            population, 1, part=part, monitor=lambda _: is_canceled(), **settings
        )
        return jax.tree.map(lambda x: np.asarray(x)[population.episodes > 0, 0], evaluation), statistics

    def rebuilt_bases(self, lineage: Member) -> ArrayTree:
        """Computes the newest bases of a lineage, from those of the last call if it continues their lineage.

        Args:
          lineage: How the bases of each generation descend from those of the generation before, each field `[G, P]`.

        Returns:
          Parameters, leaves `[P, ...]`; zeros if G is 0.
        """
        known = 0 if self._lineage is None else len(self._lineage.seed)
        pairs = zip(self._lineage or lineage, lineage, strict=True)
        if not all(np.array_equal(before, now[:known]) for before, now in pairs):
            known = 0
        num_generations, num_bases = lineage.seed.shape
        needed = [np.arange(num_bases)]  # of each generation, those from which the newest bases descend
        for g in reversed(range(known + 1, num_generations)):
            needed.insert(0, np.unique(np.asarray(lineage.parent[g])[needed[0]]))
        bases = self._bases if known else self._local.encoding.zeros(num_bases)
        places = np.arange(num_bases)
        for g, rows in zip(range(known, num_generations), needed, strict=False):
            padded = np.resize(rows, 1 << (len(rows) - 1).bit_length())  # few sizes are compiled
            members = jax.tree.map(lambda x, g=g, padded=padded: np.asarray(x)[g, padded], lineage)
            parent = np.searchsorted(places, members.parent).astype(np.int32)
            bases, places = decode_many(self._local.encoding, bases, members._replace(parent=parent)), rows
        bases = pick(bases, slice(num_bases))
        self._lineage, self._bases = lineage, bases
        return bases


class RayEvaluator:
    """Evaluates populations like `volvox.rollout.evaluator.PopulationEvaluator`, on Ray actors."""

    def __init__(self, settings: RaySettings, make_local: Callable[[], PopulationEvaluator], num_slots: int):
        """Starts nothing yet; see `RaySettings.evaluator`."""
        self._settings, self._make_local, self._num_slots = settings, make_local, num_slots
        self._restarts = 0
        self._reset()

    def _reset(self) -> None:
        self._actors: dict[Any, Any] = {}  # by node or number
        self._idle: list[Any] = []  # keys of actors
        self._calls: dict[Any, tuple[Any, Chunk | None]] = {}  # call -> key and chunk; None if the actor starts

    @functools.cached_property
    def encoding(self) -> Encoding:
        """The encoding of members, with a noise table of this process."""
        return self._make_local().encoding

    def evaluate(
        self,
        population: Population,
        num_episodes: int,
        *,
        max_episode_steps: int,
        seed: int,
        pool_seed: int,
        test: bool = False,
        lineage: Member | None = None,
        monitor: Callable[[dict[str, Any]], bool | None] | None = None,
    ) -> tuple[Evaluation, RolloutStatistics]:
        """Evaluates a population as `PopulationEvaluator.evaluate` does; the statistics are of all actors.

        Each actor adds its index to `pool_seed`. With `lineage`, each field `[G, P]`, the bases are not sent.

        Raises:
          Interrupted: `monitor` returned True; the evaluator can be used again.
          RuntimeError: Several actors died on the same chunk.
          ValueError: The cluster has no GPUs for `num_actors="gpus"`.
        """
        import ray.exceptions

        began = time.perf_counter()
        self._update_actors()
        host = Population(population.bases, *jax.device_get(population[1:]))
        total = int(host.episodes.sum())
        sizes = chunk_sizes(total, max(len(self._actors), 1), self._num_slots)
        bases = sent_lineage = None
        share_bases = lineage is not None or jax.tree.leaves(host.bases)[0].shape[0] <= max(sizes)
        if lineage is not None:
            sent_lineage = ray.put(jax.tree.map(np.asarray, lineage))
        elif share_bases:
            bases = ray.put(jax.device_get(host.bases))
        else:
            host = host._replace(bases=jax.device_get(host.bases))
        # Chunks are made when they are needed, because some hold parameters.
        chunks, lost = split(host, sizes, share_bases=share_bases), list[Chunk]()
        losses, results, beats = collections.Counter(), list[tuple[Any, Evaluation]](), collections.Counter()
        done = stepped = busy = 0
        try:
            while done < total:
                while self._idle and (chunk := lost.pop() if lost else next(chunks, None)) is not None:
                    key = self._idle.pop(0)
                    settings = {"max_episode_steps": max_episode_steps, "seed": seed, "test": test}
                    settings["pool_seed"] = (pool_seed + list(self._actors).index(key)) % 2**31
                    call = self._actors[key].evaluate.remote(chunk, bases, sent_lineage, settings)
                    self._calls[call] = key, chunk
                if not self._calls:  # there is no actor
                    time.sleep(CHUNK_SECONDS)
                    self._update_actors()
                ended = ray.wait(list(self._calls), timeout=CHUNK_SECONDS)[0] if self._calls else []
                for call in ended:
                    key, chunk = self._calls.pop(call)
                    try:
                        result = ray.get(call)
                    except ray.exceptions.RayTaskError:
                        self._idle.append(key)
                        raise
                    except ray.exceptions.RayError as error:
                        if chunk is None:  # the actor cannot start, or its node is gone
                            del self._actors[key]
                            if getattr(error, "actor_init_failed", False):
                                raise
                            continue
                        self._await_start(key)  # Ray restarts an actor that died
                        self._restarts += 1
                        first = tuple(int(x[0]) for x in chunk[1])
                        losses[first] += 1
                        if losses[first] == _MAX_LOSSES:
                            raise RuntimeError(f"{_MAX_LOSSES} Ray actors died on the same episodes") from error
                        lost.append(chunk)
                        warnings.warn(f"Ray restarts an actor, which died: {error}", stacklevel=2)
                        continue
                    self._idle.append(key)
                    if chunk is not None:
                        evaluation, statistics = result
                        results.append((chunk[1], evaluation))
                        done += len(evaluation.returns)
                        stepped, busy = stepped + statistics.stepped, busy + statistics.busy
                        beats[key] += statistics.makespan
                active = len(self._idle) + sum(chunk is not None for _, chunk in self._calls.values())
                figures = {"done": done, "total": total, "stepped": stepped, "actors": active}
                figures["timesteps_per_second"] = stepped / (time.perf_counter() - began)
                waiting = {"phase": "waiting for actors"}
                if monitor is not None and monitor(figures if active else waiting) and done < total:
                    raise Interrupted(f"{done} of {total} episodes were run and are dropped")
        finally:
            for call, (key, chunk) in list(self._calls.items()):
                if chunk is not None:
                    ray.cancel(call)
                    del self._calls[call]
                    self._idle.append(key)  # it takes its next call when it has stopped
        evaluation = _gather(results, (host.episodes.size, num_episodes))
        return evaluation, RolloutStatistics(stepped, busy, max(beats.values()), self._num_slots * len(beats))

    def figures(self) -> dict[str, Any]:
        """Returns metrics: the number of running actors, and the restarts so far."""
        return {"num_actors": len(self._idle), "actor_restarts": self._restarts}

    def close(self) -> None:
        """Ends the actors; the next evaluation starts new ones."""
        import ray

        if ray.is_initialized():
            for actor in self._actors.values():
                ray.kill(actor)
        self._reset()

    def _await_start(self, key: Any) -> None:
        """Makes an actor idle as soon as it has started."""
        self._calls[self._actors[key].__ray_ready__.options(max_task_retries=-1).remote()] = key, None

    def _update_actors(self) -> None:
        """Connects to Ray, and starts missing actors."""
        import ray

        self._settings.connect()
        for key, options in self._settings.places().items():
            if key not in self._actors:
                make: Any = ray.remote(max_restarts=-1, **options)(PopulationActor)
                self._actors[key] = make.remote(self._make_local, _jax_options())
                self._await_start(key)


def _gather(results: list[tuple[tuple[Array, Array], Evaluation]], shape: tuple[int, int]) -> Evaluation:
    """Puts the results of all chunks into their places in the whole population."""
    member = np.concatenate([part[0][: len(found.returns)] for part, found in results])
    episode = np.concatenate([part[1][: len(found.returns)] for part, found in results])

    def scatter(*parts: np.ndarray) -> jax.Array:
        values = np.concatenate(parts)
        whole = np.zeros((*shape, *values.shape[1:]), values.dtype)
        whole[member, episode] = values
        return jnp.asarray(whole)

    return jax.tree.map(scatter, *(evaluation for _, evaluation in results))
