"""Evaluates a population on Ray actors.

A population is split into chunks of episodes, longest expected first. An idle actor takes the next chunk. Bases are
rebuilt on the actors from their lineage; if there is none, they are sent through Ray's object store.
"""

import collections
import contextlib
import functools
import logging
import math
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from volvox.distributed.chunks import Chunk, chunk_sizes, split
from volvox.distributed.settings import RaySettings
from volvox.population.decoding import Encoding, Member, decode
from volvox.rollout.evaluator import PopulationEvaluator, RolloutStatistics
from volvox.types import Array, ArrayTree, Evaluation, Interrupted, Population

_MAX_SECONDS_BETWEEN_CHECKS = 1.0
_MAX_LOSSES = 4
"""Actors that may die on the same chunk before the evaluation ends with an error."""
_CONNECT_SECONDS = 5.0
_JAX_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_compilation_cache_dir",
)
"""Options of JAX that actors take over, because results or the time to compile depend on them."""


@ray.remote(max_restarts=-1, max_task_retries=-1)
class PopulationActor:
    """Evaluates chunks with an evaluator of its own."""

    def __init__(self, make_local: Callable[[], PopulationEvaluator], jax_options: dict[str, Any]):
        for name, value in jax_options.items():
            jax.config.update(name, value)
        self._local = make_local()
        self._lineage: Member | None = None
        self._bases: ArrayTree = None

    def ready(self) -> None:
        """Returns when the actor has started."""

    @ray.method(max_task_retries=0)
    def evaluate(self, chunk: Chunk, bases: ArrayTree, lineage: Member | None, settings: dict[str, Any]) -> Any:
        """Returns the evaluation of a chunk, without padding, and the statistics."""
        if lineage is not None:
            bases = self._rebuilt_bases(lineage)
        evaluation, statistics = self._local.evaluate(
            chunk.population._replace(bases=chunk.bases if bases is None else bases),
            1,
            part=chunk.part,
            monitor=lambda _: ray.get_runtime_context().is_canceled(),
            **settings,
        )
        return jax.tree.map(lambda x: np.asarray(x)[: chunk.size, 0], evaluation), statistics

    def _rebuilt_bases(self, lineage: Member) -> ArrayTree:
        """Returns the newest bases of a lineage, made from those of the last call if it continues their lineage."""
        known = 0 if self._lineage is None else self._lineage.seed.shape[0]
        pairs = zip(self._lineage or lineage, lineage, strict=True)
        if known and not all(np.array_equal(before, now[:known]) for before, now in pairs):
            known = 0
        self._bases = extend_bases(self._local.encoding, lineage, self._bases if known else None, known)
        self._lineage = lineage
        return self._bases


def extend_bases(encoding: Encoding, lineage: Member, bases: ArrayTree = None, known: int = 0) -> ArrayTree:
    """Computes the newest bases of a lineage.

    Args:
      encoding: Encoding of the network.
      lineage: How the bases of each generation came from those before, each field `[G, P]`.
      bases: Bases of generation `known`, leaves `[P, ...]`; None if that is 0.
      known: Number of generations after which `bases` were the newest.

    Returns:
      Parameters, leaves `[P, ...]`; zeros if G is 0.
    """
    num_generations, num_bases = lineage.seed.shape
    bases = encoding.zeros(num_bases) if bases is None else bases
    needed = [np.ones(num_bases, bool)]  # of the last generation all, before that the ancestors of these
    for g in range(num_generations - 1, known, -1):
        parents = lineage.parent[g][needed[-1] & ~lineage.initial[g]]
        needed.append(np.isin(np.arange(num_bases), parents))
    for g, mask in zip(range(known, num_generations), reversed(needed), strict=False):
        bases = _next_bases(encoding, bases, jax.tree.map(lambda x, g=g: x[g], lineage), mask)
    return bases


@jax.jit
def _next_bases(encoding: Encoding, bases: ArrayTree, members: Member, needed: Array) -> ArrayTree:
    def one(row):
        member, is_needed = row
        return jax.lax.cond(is_needed, lambda: decode(encoding, bases, member), encoding.zeros)

    return jax.lax.map(one, (members, needed))


class RayEvaluator:
    """Evaluates populations like `volvox.rollout.evaluator.PopulationEvaluator`, on Ray actors."""

    def __init__(
        self,
        settings: RaySettings,
        make_local: Callable[[], PopulationEvaluator],
        num_slots: int,
        chunk_seconds: float = 1.0,
    ):
        """Starts nothing yet; see `RaySettings.evaluator`."""
        self._settings, self._make_local, self._num_slots = settings, make_local, num_slots
        self._seconds_between_checks = min(chunk_seconds, _MAX_SECONDS_BETWEEN_CHECKS)
        self._restarts = self._bytes_sent = self._bytes_received = 0
        self._reset()

    def _reset(self) -> None:
        self._actors: dict[Any, Any] = {}  # by node or number
        self._starting: dict[Any, Any] = {}  # call of `ready` -> key of the actor
        self._idle: list[Any] = []
        self._failed: set[Any] = set()
        self._shared: tuple[list[Any], Any] = ([], None)
        self._last_checked, self._last_active = -math.inf, time.monotonic()

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
        """Evaluates a population.

        Args:
          population: `N` members.
          num_episodes: E, maximum number of episodes of any member.
          max_episode_steps: Cutoff of episodes in timesteps.
          seed: Seed of the episodes.
          pool_seed: Seed of new environments; each actor adds its own index.
          test: Whether these are test episodes.
          lineage: The lineage of `population.bases`, each field `[G, P]`. None: the bases are sent.
          monitor: Called about once a second with progress; True stops the evaluation.

        Returns:
          (`Evaluation` `[N, E]`, `RolloutStatistics` of all actors).

        Raises:
          Interrupted: `monitor` returned True; the evaluator can be used again.
          RuntimeError: Several actors died on the same chunk.
          TimeoutError: There has been no running actor for `RaySettings.wait` seconds.
          ValueError: The cluster has too few CPUs or GPUs.
        """
        began, watch = time.perf_counter(), monitor or (lambda progress: False)
        self._last_active = time.monotonic()
        self._update_actors()
        host = Population(population.bases, *jax.device_get(population[1:]))
        sizes = chunk_sizes(int(host.episodes.sum()), max(len(self._actors), 1), self._num_slots)
        share_bases = lineage is not None or jax.tree.leaves(host.bases)[0].shape[0] <= max(sizes)
        if not share_bases:
            host = host._replace(bases=jax.device_get(host.bases))
        bases = self._put_shared(host.bases) if share_bases and lineage is None else None
        lineage = None if lineage is None else self._put(jax.tree.map(np.asarray, lineage))
        # Chunks are made when they are needed, because some hold parameters.
        chunks, lost = split(host, sizes, share_bases=share_bases), list[Chunk]()
        fixed = {"max_episode_steps": max_episode_steps, "seed": seed, "test": test}
        results = _Results((host.episodes.size, num_episodes), sum(sizes), began)
        losses, running = collections.Counter(), {}
        try:
            while results.done < results.total:
                self._update_actors()
                while self._idle and (chunk := lost.pop() if lost else next(chunks, None)) is not None:
                    key = self._idle.pop(0)
                    settings = fixed | {"pool_seed": (pool_seed + list(self._actors).index(key)) % 2**31}
                    self._bytes_sent += _num_bytes(chunk)
                    call = self._actors[key].evaluate.remote(chunk, bases, lineage, settings)
                    running[call] = key, chunk
                for call in self._wait([*running]):
                    key, chunk = running.pop(call)
                    try:
                        evaluation, statistics = ray.get(call)
                    except ray.exceptions.RayTaskError:
                        self._idle.append(key)
                        raise
                    except ray.exceptions.RayError as error:  # the actor died, and Ray restarts it
                        self._starting[self._actors[key].ready.remote()] = key
                        self._restarts += 1
                        losses[id(chunk)] += 1
                        if losses[id(chunk)] == _MAX_LOSSES:
                            raise RuntimeError(f"{_MAX_LOSSES} Ray actors died on the same episodes") from error
                        lost.append(chunk)
                        watch({"phase": "waiting for actors", "note": f"a Ray actor died: {_first_line(error)}"})
                        continue
                    self._idle.append(key)
                    self._bytes_received += _num_bytes(evaluation)
                    results.add(key, chunk, evaluation, statistics)
                active = len(self._idle) + len(running)
                figures = results.progress() | {"actors": active} if active else {"phase": "waiting for actors"}
                if watch(figures) and results.done < results.total:
                    raise Interrupted(f"{results.done} of {results.total} episodes were run and are dropped")
                self._check_active(active)
        finally:
            for call, (key, _) in running.items():
                ray.cancel(call)
                self._idle.append(key)  # it takes its next call when it has stopped
        return results.evaluation(), results.statistics(self._num_slots)

    def figures(self) -> dict[str, Any]:
        """Returns metrics: number of actors, restarts in all, and bytes passed to and from Ray since the last call."""
        sent, received = self._bytes_sent, self._bytes_received
        self._bytes_sent = self._bytes_received = 0
        num_actors = len(self._actors) - len(self._starting)
        restarts = {"num_actors": num_actors, "actor_restarts": self._restarts}
        return restarts | {"bytes_sent": sent, "bytes_received": received}

    def close(self) -> None:
        """Ends the actors; the next evaluation starts new ones."""
        if ray.is_initialized():
            for actor in self._actors.values():
                ray.kill(actor)
        self._reset()

    def _put(self, tree: ArrayTree) -> Any:
        self._bytes_sent += _num_bytes(tree)
        return ray.put(tree)

    def _put_shared(self, bases: ArrayTree) -> Any:
        """Puts bases into Ray's object store, unless they are those of the last call."""
        leaves, before = jax.tree.leaves(bases), self._shared[0]
        if len(leaves) != len(before) or any(a is not b for a, b in zip(leaves, before, strict=True)):
            self._shared = leaves, self._put(jax.device_get(bases))
        return self._shared[1]

    def _update_actors(self) -> None:
        """Starts missing actors; looks at the cluster once a second at most."""
        if time.monotonic() - self._last_checked < _MAX_SECONDS_BETWEEN_CHECKS:
            return
        self._last_checked = time.monotonic()
        _connect(self._settings.address)
        for key, options in self._places().items():
            if key not in self._actors and key not in self._failed:
                actor: Any = PopulationActor.options(**options)
                jax_options = {name: getattr(jax.config, name) for name in _JAX_OPTIONS}
                self._actors[key] = actor.remote(self._make_local, jax_options)
                self._starting[self._actors[key].ready.remote()] = key

    def _wait(self, running: list[Any]) -> list[Any]:
        """Waits for the next event, and returns the calls of `running` that have ended."""
        calls = [*running, *self._starting]
        if not calls:
            time.sleep(self._seconds_between_checks)
            return []
        ready, _ = ray.wait(calls, timeout=self._seconds_between_checks)
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0) if ready else (ready, None)
        for call in ready:
            if call in self._starting:
                self._note_started(call)
        return [call for call in ready if call in running]

    def _note_started(self, call: Any) -> None:
        """Makes an actor idle that has started; gives it up if it cannot start, or its node is gone."""
        key = self._starting.pop(call)
        try:
            ray.get(call)
        except ray.exceptions.RayError as error:
            del self._actors[key]
            self._failed.add(key)
            if not self._actors and getattr(error, "actor_init_failed", False):
                raise
            warnings.warn(f"a Ray actor is left out: {_first_line(error)}", UserWarning, stacklevel=2)
        else:
            self._idle.append(key)

    def _places(self) -> dict[Any, dict[str, Any]]:
        """Returns Ray's options for each actor that there should be."""
        settings = self._settings
        num_cpus, num_gpus = settings.num_cpus_per_actor or 1, settings.num_gpus_per_actor
        if settings.num_actors == "nodes":
            nodes = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
            return {
                node: {
                    "num_cpus": settings.num_cpus_per_actor or int(resources["CPU"]),
                    "num_gpus": num_gpus,
                    "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
                }
                for node, resources in nodes.items()
                if resources.get("CPU", 0) >= 1
            }
        resources = ray.cluster_resources()
        if settings.num_actors == "gpus":
            count, num_gpus = int(resources.get("GPU", 0)), 1
        else:
            count = int(settings.num_actors or 1)
        if not self._actors and (
            not count or count * num_cpus > resources.get("CPU", 0) or count * num_gpus > resources.get("GPU", 0)
        ):
            raise ValueError(
                f"num_actors={settings.num_actors!r}, each with {num_cpus} CPUs and {num_gpus:g} GPUs: the cluster has "
                f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs. Use fewer actors."
            )
        options = {"num_cpus": num_cpus, "num_gpus": num_gpus, "scheduling_strategy": "SPREAD"}
        return dict.fromkeys(range(count), options)

    def _check_active(self, active: int) -> None:
        if active:
            self._last_active = time.monotonic()
        elif time.monotonic() - self._last_active > self._settings.wait:
            raise TimeoutError(
                f"no Ray actor has been running for {self._settings.wait:g} seconds; `ray status` shows the free "
                "resources. Add machines, and resume the run."
            )


class _Results:
    """Results of the chunks so far."""

    def __init__(self, shape: tuple[int, int], total: int, began: float):
        self.total, self.done, self._began = total, 0, began
        fields: Any = (np.zeros(shape, dtype) for dtype in (np.float32, np.int32, bool))
        self._evaluation = Evaluation(*fields, behaviors=jnp.zeros((*shape, 0)))
        self._stepped = self._busy = 0
        self._beats: collections.Counter[Any] = collections.Counter()  # by actor

    def add(self, key: Any, chunk: Chunk, evaluation: Evaluation, statistics: RolloutStatistics) -> None:
        """Adds the results of a chunk that actor `key` has evaluated."""
        if not self.done:
            shape = (*self._evaluation.valid.shape, evaluation.behaviors.shape[-1])
            behaviors: Any = np.zeros(shape, np.float32)
            self._evaluation = self._evaluation._replace(behaviors=behaviors)
        place = chunk.part.member[: chunk.size], chunk.part.episode[: chunk.size]
        for all_, new in zip(self._evaluation, evaluation, strict=True):
            all_[place] = new
        self.done += chunk.size
        self._stepped += statistics.stepped
        self._busy += statistics.busy
        self._beats[key] += statistics.makespan

    def evaluation(self) -> Evaluation:
        """Returns the evaluation of the whole population."""
        return jax.tree.map(jnp.asarray, self._evaluation)

    def progress(self) -> dict[str, Any]:
        """Returns figures for a monitor."""
        return {
            "done": self.done,
            "total": self.total,
            "stepped": self._stepped,
            "occupancy": self._busy / max(self._stepped, 1),
            "timesteps_per_second": self._stepped / (time.perf_counter() - self._began),
        }

    def statistics(self, num_slots: int) -> RolloutStatistics:
        """Returns the statistics of all actors."""
        return RolloutStatistics(self._stepped, self._busy, max(self._beats.values()), num_slots * len(self._beats))


def _connect(address: str | None) -> None:
    """Connects this process to a cluster, or starts a local one, unless it is connected already."""
    if ray.is_initialized():
        return
    host, _, port = (address or "").rpartition(":")
    if port.isdigit() and "//" not in host:  # Ray itself would try for several minutes
        try:
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            raise ConnectionError(f"no Ray cluster answers at address={address!r}: {error}") from error
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main_thread else None
    with contextlib.ExitStack() as stack:
        if callable(handler):  # Ray's handler would end the process before `volvox.train` saves
            stack.callback(signal.signal, signal.SIGTERM, handler)
        stack.enter_context(warnings.catch_warnings())
        # JAX warns of every fork; Ray executes another program after it.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)


def _num_bytes(tree: ArrayTree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if hasattr(leaf, "nbytes"))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
