"""What runs on other machines: an actor that owns pools, slots, noise table and compiled loop.

It is made from import paths and settings alone, and told by name what to play; see `volvox.distributed.player`.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import volvox.networks as networks
from volvox._parts import env_of, import_paths, network_of
from volvox._programs import keep_programs
from volvox._settings import describe, rebuild
from volvox.distributed.bases import Bases, Digest, Origin
from volvox.distributed.work import Results, Rows
from volvox.evolution.pools import Place, Pools, Request
from volvox.provenance import versions
from volvox.rollout.slots import Part
from volvox.types import Config, Genotype, Interrupted, Population

_OPTIONS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable")
_OPTIONS += ("jax_disable_most_optimizations",)


class Order(NamedTuple):
    """What an actor is asked to play.

    Attributes:
      portion: Number of the portion.
      rows: Its episodes.
      place: What the pools and slots are made for.
      seed: Seed of the episodes.
      pool_seed: Seed of the pools, if new ones are made.
      names: Digests of the population's bases.
      origin: How these came from the bases before, if that is known.
    """

    portion: int
    rows: Rows
    place: Place
    seed: int
    pool_seed: int
    names: tuple[Digest, ...]
    origin: Origin | None


class Answer(NamedTuple):
    """What an actor answers to an order.

    Attributes:
      portion: Number of the portion.
      results: Results of the portion; None if it was not played.
      missing: Digests of bases that must be sent first.
      stepped: Timesteps of the emulators.
      busy: Those of slots that had an episode to play.
      makespan: Beats.
      repeatable: Whether another actor would play the same episodes: environments take keys (`EnvGroup.rekey`).
    """

    portion: int
    results: Results | None = None
    missing: tuple[Digest, ...] = ()
    stepped: int = 0
    busy: int = 0
    makespan: int = 0
    repeatable: bool = False


def options() -> dict[str, Any]:
    """How JAX computes in this process, as far as results depend on it."""
    return {name: jax.config.values[name] for name in _OPTIONS}


def installed() -> dict[str, str | None]:
    """Versions that must agree between the process of the script and its actors, the code of volvox included."""
    found = {name: importlib.metadata.version(name) for name in ("jaxlib", "flax", "numpy", "ray")}
    root, code = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        code.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return {**versions(), **found, "volvox's code": code.hexdigest()[:12]}


def code_of(config: Any) -> dict[str, str]:
    """Modules, outside of volvox, that a description of parts names: versions of their packages, hashes of their files.

    Modules that these import are not checked.
    """
    paths = [path.split(":", 1) for path in import_paths(config) if ":" in path]
    modules = {module for module, _ in paths if module.partition(".")[0] != "volvox"}
    modules |= {name for _, name in paths if name in ("gymnasium", "gymnax", "brax")}  # of volvox.envs
    return {module: _version(module) for module in sorted(modules)}


def _version(module: str) -> str:
    said = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        said.append(importlib.metadata.version(module.partition(".")[0]))
    with contextlib.suppress(ImportError, ValueError):  # of a module without a specification, such as __main__
        file = Path(getattr(importlib.util.find_spec(module), "origin", None) or "")
        if file.is_file():
            said.append(hashlib.sha256(file.read_bytes()).hexdigest()[:12])
    return " ".join(said) or "missing"


class Actor:
    """Plays portions of populations. Ray makes one for each machine or GPU, and calls its methods from several threads.

    `play` is called once at a time; the others also while it plays.
    """

    def __init__(self):
        """Makes nothing yet."""
        self._config: Config = {}
        self._pools: Pools | None = None
        self._bases: Bases | None = None
        self._playing = (-1, 0, 0)
        self._dropped = -1

    def describe(self) -> dict[str, Any]:
        """Returns the machine, the process, its cores, and the versions installed."""
        machine = Path("/proc/sys/kernel/random/boot_id")
        return {
            "machine": machine.read_text().strip() if machine.exists() else socket.gethostname(),
            "host": socket.gethostname(),
            "node": _node(),
            "process": os.getpid(),
            "cpus": sorted(os.sched_getaffinity(0)),
            "versions": installed(),
        }

    def prepare(
        self,
        config: Config,
        num_slots: int,
        capacity: int,
        chunk_seconds: float,
        how: Mapping[str, Any],
        cpus: list[int],
    ) -> None:
        """Makes network, environment, noise and behaviour from their settings.

        Args:
          config: See `volvox.evolution.pools.Workers`; and `code`, what `code_of` says of it where the run began.
          num_slots: Environments.
          capacity: The most episodes of a portion.
          chunk_seconds: How often it is looked at whether to stop.
          how: See `options`.
          cpus: The cores to compute on; empty for all that there are.
        """
        _pin(cpus)
        for name, value in how.items():
            jax.config.update(name, value)
        keep_programs()
        others = {name: code for name, code in code_of(config).items() if code != config["code"].get(name)}
        if wrong := {name: code for name, code in others.items() if code != "missing"}:  # that is said below
            told = ", ".join(f"{name} {code} (there {config['code'].get(name)})" for name, code in wrong.items())
            raise ValueError(f"here is other code than where the run began: {told}; install here what is there.")
        env = env_of(config["env"])
        if env.num_envs != num_slots:
            raise ValueError(f"env: here it has {env.num_envs} environments, and {num_slots} are wanted.")
        network = network_of(config["network"], env)
        genotype = network if isinstance(network, Genotype) else networks.genotype(network, env.spec)
        if (made := describe(genotype.policy.config)) != config["network"]:
            raise ValueError(
                f"network: made from its settings it is another, {made} instead of {config['network']}; a reference "
                "batch has to be vx.reference_batch(env, size=...) with its own seed, which is how it is made here."
            )
        noise, behavior = rebuild(config["noise"], place="noise"), rebuild(config["behavior"], place="behavior")
        self._pools = Pools(genotype, noise, env, behavior, capacity, chunk_seconds)
        self._bases = Bases(self._pools.encoding)

    def play(self, order: Order, given: Sequence[Any]) -> Answer:
        """Plays a portion.

        Args:
          order: What to play.
          given: Bases that were sent: their leaves by digest, or references of Ray to such mappings.
        """
        pools, bases = self._pools, self._bases
        assert pools is not None
        assert bases is not None
        if missing := bases.take(order.names, order.origin, _fetched(given)):
            return Answer(order.portion, missing=missing)
        self._playing = (order.portion, 0, 0)
        population, part = _padded(order.rows, bases.tree, pools.capacity)

        def watch(progress: Mapping[str, Any]) -> bool:
            self._playing = (order.portion, progress.get("done", 0), progress.get("stepped", 0))
            return self._dropped == order.portion

        request = Request(population, 1, order.place, order.seed, order.pool_seed, part=part)
        try:
            evaluation, statistics = pools.play(request, watch)
        except Interrupted:
            return Answer(order.portion)
        count = order.rows.seed.size
        returns, lengths, _, behaviors = (np.asarray(values)[:count, 0] for values in evaluation)
        busy = round(statistics.occupancy * statistics.stepped)
        results = Results(returns, lengths, behaviors)
        counts = statistics.stepped, busy, statistics.makespan
        return Answer(order.portion, results, (), *counts, pools.repeatable(order.place))

    def progress(self) -> tuple[int, int, int]:
        """The number of the portion that is being played, its episodes that were played, and timesteps."""
        return self._playing

    def drop(self, portion: int) -> None:
        """Stops playing a portion, which others have played."""
        self._dropped = portion


def _node() -> str:
    """Ray's name of this machine; empty outside of actors."""
    import ray

    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""


def _pin(cpus: Sequence[int]) -> None:
    """Keeps all threads of this process, and those that they will start, on some cores."""
    if cpus:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.sched_setaffinity(int(thread.name), cpus)


def _fetched(given: Sequence[Any]) -> dict[Digest, Sequence[np.ndarray]]:
    if any(not isinstance(sent, dict) for sent in given):
        import ray

        given = [sent if isinstance(sent, dict) else ray.get(sent) for sent in given]
    return {name: leaves for sent in given for name, leaves in sent.items()}


def _padded(rows: Rows, bases: Any, capacity: int) -> tuple[Population, Part]:
    """A population of `capacity` rows, so that portions of all sizes have one shape; those beyond play no episode."""
    count = rows.seed.size
    filled = Rows(*(np.concatenate([field, np.zeros(capacity - count, field.dtype)]) for field in rows))
    episodes = (np.arange(capacity) < count).astype(np.int32)
    fields: Any = (filled.parent, filled.seed, filled.scale, filled.initial, episodes, filled.priority)  # NumPy's
    played: Any = (filled.member, filled.episode)
    return Population(bases, *fields), Part(*played)
