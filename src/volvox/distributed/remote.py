"""One actor, as it is seen from here."""

import collections
import logging
import signal
import statistics
import threading
import time
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from volvox.distributed.actor import Answer
from volvox.distributed.settings import check_connected

_LONGEST = 240
"""Characters of a reason."""
_USERS: set[int] = set()
"""Who uses this process's connection, if it was begun here. Ray has one a process, and the last to leave ends it."""


class Place(NamedTuple):
    """Where an actor may be.

    Attributes:
      number: Number of the actor; an actor that replaces another has the same.
      node: Ray's name of the machine; None: where Ray finds room.
      cpus: CPUs that Ray reserves for it.
    """

    number: int
    node: str | None
    cpus: float


def connect(address: str | None, user: int) -> Any:
    """Connects this process to a cluster of Ray, or begins one, unless it is connected already.

    Args:
      address: Of the cluster, as `volvox.distributed.ray` takes it.
      user: What `disconnect` is told, to leave the connection.

    Returns:
      The module `ray`.

    Raises:
      ValueError: That fails, or the process is connected to another cluster.
    """
    import ray

    if ray.is_initialized():
        check_connected(address, ray.get_runtime_context().gcs_address)
        if _USERS:
            _USERS.add(user)
        return ray
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if main else None
    with warnings.catch_warnings():
        # JAX warns of every fork of a process with threads; Ray's are programs of their own at once.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(f"no connection to a cluster of Ray: {' '.join(str(error).split())}") from error
        finally:
            if callable(handler):  # Ray puts its own in the place of the one by which `train` saves
                signal.signal(signal.SIGTERM, handler)
    _USERS.clear()
    _USERS.add(user)
    return ray


def disconnect(user: int) -> None:
    """Leaves the connection of this process, and ends it with its last user, if it was begun here."""
    import ray

    if user in _USERS:
        _USERS.remove(user)
        if not _USERS:
            ray.shutdown()


class Remote:
    """An actor, as it is seen from here.

    Attributes:
      place: Where it is.
      number: Of its place.
      handle: Ray's.
      stage: `describing` (it starts), `preparing`, `ready`, `playing`, or `gone`.
      call: What it was asked, and has not answered.
      portion: The portion that it plays or played last.
      about: What it says of itself.
      progress: Of its portion: number, episodes, timesteps.
      kind: Of what it plays: what is compiled anew for another one.
      compiled: Kinds that it has played before.
      answered: When it answered last, in seconds in which this process ran.
      advanced: When its progress changed last, likewise.
    """

    def __init__(self, place: Place, handle: Any):
        self.place, self.number, self.handle, self.stage = place, place.number, handle, "describing"
        self.call: Any = handle.describe.remote()
        self.ping: Any = None
        self.about: dict[str, Any] = {}
        self.portion, self.progress, self.dropped = -1, (-1, 0, 0), False
        self.kind: Any = None
        self.compiled: set[Any] = set()
        self.began, self.answered, self.advanced = time.monotonic(), 0.0, 0.0
        self.clear()

    @property
    def node(self) -> str:
        """Where bases that are fetched once serve all: Ray's name of the machine."""
        return self.place.node or self.about["node"]

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"actor {self.number} on {self.about.get('host', 'a machine that has not answered yet')}"

    def clear(self) -> None:
        """Begins to count anew."""
        self.busy_steps = self.steps = 0
        self.members = self.busy_seconds = 0.0

    def count(self, members: float, answer: Answer) -> None:
        """Counts what was played, in members: of two episodes of a member each is half of one."""
        self.members, self.steps = self.members + members, self.steps + answer.stepped
        self.busy_steps += answer.busy

    def row(self, elapsed: float, restarts: int) -> dict[str, Any]:
        """What it did, for metrics.

        Args:
          elapsed: Seconds that phases took since it was counted anew.
          restarts: Actors that were in its place before.
        """
        return {
            "actor": self.number,
            "host": self.about["host"],
            "members_per_second": round(self.members / max(self.busy_seconds, 1e-6), 2),
            "occupancy": round(self.busy_steps / max(self.steps, 1), 4),
            "busy": round(min(self.busy_seconds / max(elapsed, 1e-6), 1.0), 4),
            "restarts": restarts,
        }


def cores(remote: Remote, remotes: Iterable[Remote]) -> list[int]:
    """Chooses cores for an actor that does not have its machine for itself: those used least by the other actors.

    Args:
      remote: The actor; `about["cores"]` is set.
      remotes: All actors.

    Returns:
      The cores that it keeps to; none where the machine is its own.
    """
    own, count = remote.about["cpus"], int(remote.place.cpus)
    if count < 1 or count >= len(own):
        remote.about["cores"] = []
        return []
    machine = [other for other in remotes if other.about.get("machine") == remote.about["machine"]]
    used = collections.Counter(core for other in machine for core in other.about.get("cores", []))
    remote.about["cores"] = sorted(sorted(own, key=lambda core: (used[core], core))[:count])
    return remote.about["cores"]


def text(table: list[dict[str, Any]]) -> str:
    """The rows of actors, for people."""
    head = f"{'actor':>5}  {'machine':<24}  {'members/s':>9}  {'occupancy':>9}  {'busy':>5}  {'restarts':>8}"
    lines = [
        f"{row['actor']:>5}  {row['host'][:24]:<24}  {row['members_per_second']:>9.4g}  {row['occupancy']:>9.0%}  "
        f"{row['busy']:>5.0%}  {row['restarts']:>8}"
        for row in table
    ]
    return "\n".join([head, *lines])


def slow(table: list[dict[str, Any]]) -> frozenset[int]:
    """Actors that play less than half as many members a second as the median one, of those that played at all."""
    rates = {row["actor"]: row["members_per_second"] for row in table if row["busy"]}
    return frozenset(actor for actor, rate in rates.items() if rate < statistics.median(rates.values()) / 2)


def why(error: BaseException) -> str:
    """Returns in one line why an actor died, or what it raised; Ray gives the reason in the last line."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    told = lines[-1] if lines else "no reason is known"
    return f"{type(error).__name__}: {told[:_LONGEST]}{'...' if len(told) > _LONGEST else ''}"
