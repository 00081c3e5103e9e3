"""Populations played by actors: portions are handed out as actors ask for them, and the first answer counts.

Nothing here knows what a generation is: a phase's population comes in, and its evaluation goes out.
"""

import time
from typing import Any

import jax
import numpy as np

from volvox.distributed import bases as bases_
from volvox.distributed.actor import Actor, Answer, Order
from volvox.distributed.actors import Actors
from volvox.distributed.bases import Digest, Origin
from volvox.distributed.remote import Remote, text
from volvox.distributed.settings import ray as Settings
from volvox.distributed.work import Work, portion_size
from volvox.evolution.pools import Request, Seen
from volvox.loop.evaluator import RolloutStatistics
from volvox.population.decoding import Member
from volvox.types import ArrayTree, Config, Evaluation, Interrupted

_SLOTFULS = 4
"""Episodes of the largest portion, in slots of an actor."""
_LOOK = 1.0
"""Seconds, at most, between two looks at interrupts and at the cluster."""


class RayPlayer:
    """Plays populations on actors; see `volvox.evolution.pools.Player`.

    It is mutable, because it holds what runs elsewhere: never a part of an algorithm's state.
    """

    def __init__(
        self, settings: Settings, config: Config, num_slots: int, chunk_seconds: float, *, actor: type = Actor
    ):
        """Starts nothing yet.

        Args:
          settings: Of actors.
          config: What they play; see `volvox.evolution.pools.Workers`.
          num_slots: Environments of one actor.
          chunk_seconds: How often progress and interrupts are looked at.
          actor: The class of actors, which have the methods of `Actor`.
        """
        self._settings, self._num_slots, self._look = settings, num_slots, min(chunk_seconds, _LOOK)
        capacity = _SLOTFULS * num_slots
        self._actors = Actors(settings, (config, num_slots, capacity, chunk_seconds), actor)
        self._capacity, self._next_portion = capacity, 0
        self._sent = _Sent()
        self._bytes = [0, 0]  # sent, received
        self._repeated = 0
        self._shown: Any = None

    def play(self, request: Request, watch: Seen) -> tuple[Evaluation, RolloutStatistics]:
        """See `Player`.

        Raises:
          ConnectionError: There was no actor for longer than `wait` says.
          ValueError: Actors cannot be had as they are asked for, or cannot play this.
        """
        self._actors.begin(watch)
        began = time.perf_counter()
        self._sent.renew(request.population.bases, request.origin)
        work = Work(request.population, request.num_episodes, first_portion=self._next_portion)
        phase = _Phase(request, work)
        try:
            while work.done < work.total:
                self._actors.keep_up(watch)
                for remote in self._actors.idle():
                    self._hand_out(remote, phase)
                for remote, answer in self._actors.answers(self._look):
                    self._take(remote, answer, phase)
                for number in self._actors.lost():
                    work.give_back(number)
                if phase.is_due(self._look) and watch(phase.figures(self._actors, began)):
                    raise Interrupted(f"{work.done} of {work.total} episodes were played and are dropped")
        finally:
            self._next_portion, self._repeated = work.next_portion, self._repeated + work.repeated
            self._actors.drop_all()
        self._show(watch)
        return work.evaluation(), phase.statistics(began, self._num_slots * max(len(phase.makespan), 1))

    def figures(self) -> dict[str, Any]:
        """See `Player`: how many actors, what they did, and bytes that travelled to them and back."""
        sent, received = self._bytes
        repeated, self._bytes, self._repeated = self._repeated, [0, 0], 0
        table = self._actors.table()
        return {
            "num_actors": len(table),
            "actor_restarts": self._actors.restarts,
            "actors_idle": self._actors.idle_share(),
            "repeated_portions": repeated,
            "bytes_sent": sent,
            "bytes_received": received,
            "actors": table,
        }

    def close(self) -> None:
        """See `Player`."""
        self._actors.close()
        self._sent = _Sent()

    def _hand_out(self, remote: Remote, phase: "_Phase") -> None:
        """Gives an idle actor a portion, if there is one for it."""
        work = phase.work
        number = work.next(portion_size(work.left, self._actors.size, self._num_slots, most=self._capacity))
        if number is None and self._settings.duplicates:
            number = work.again()
        if number is not None:
            self._submit(remote, number, phase, [])

    def _submit(self, remote: Remote, number: int, phase: "_Phase", given: list[Any]) -> None:
        request, sent = phase.request, self._sent
        # Pools of different actors have seeds of their own.
        pool_seed = (request.pool_seed + remote.number) % 2**31
        rows = phase.work.rows(number)
        order = Order(number, rows, request.place, request.seed, pool_seed, sent.names, sent.origin)
        self._bytes[0] += _num_bytes((rows, sent.names, sent.origin))
        self._actors.play(remote, order, given)

    def _take(self, remote: Remote, answer: Answer, phase: "_Phase") -> None:
        work = phase.work
        if answer.missing and work.is_out(answer.portion):
            refs, size = self._sent.refs(answer.missing, remote.node)
            self._bytes[0] += size
            self._submit(remote, answer.portion, phase, refs)
        elif answer.results is None:
            work.give_back(answer.portion)
        else:
            self._bytes[1] += _num_bytes(answer.results)
            if work.take(answer.portion, answer.results):
                phase.count(remote, answer)
                self._actors.drop(answer.portion)

    def _show(self, watch: Seen) -> None:
        """Prints the table of actors where they are not those that were shown before."""
        table = self._actors.table()
        shown = [(row["host"], row["restarts"]) for row in table]
        if shown != self._shown:
            self._shown = shown
            watch({"phase": "playing", "note": text(table)})


class _Phase:
    """A phase on its way.

    Attributes:
      request: What is played.
      work: What is left of it.
      makespan: Beats of each actor.
    """

    def __init__(self, request: Request, work: Work):
        self.request, self.work = request, work
        self.makespan: dict[int, int] = {}
        self._stepped = self._busy = self._timesteps = self._longest = 0
        self._looked = 0.0

    def count(self, remote: Remote, answer: Answer) -> None:
        """Counts what an actor played."""
        assert answer.results is not None
        lengths = answer.results.lengths
        self._stepped, self._busy = self._stepped + answer.stepped, self._busy + answer.busy
        self._timesteps += int(lengths.sum(dtype=np.int64))
        self._longest = max(self._longest, int(lengths.max(initial=0)))
        self.makespan[remote.number] = self.makespan.get(remote.number, 0) + answer.makespan
        remote.count(lengths.size, answer)

    def is_due(self, every: float) -> bool:
        """Whether progress should be shown."""
        due = time.monotonic() - self._looked >= every
        if due:
            self._looked = time.monotonic()
        return due

    def figures(self, actors: Actors, began: float) -> dict[str, Any]:
        """What `watch` is given."""
        played, stepped = actors.in_progress(self.work.is_out)
        stepped += self._stepped
        return {
            "done": min(self.work.done + played, self.work.total),
            "total": self.work.total,
            "stepped": stepped,
            "occupancy": self._busy / max(self._stepped, 1),
            "timesteps_per_second": stepped / max(time.perf_counter() - began, 1e-6),
            "actors": actors.size,
        }

    def statistics(self, began: float, num_slots: int) -> RolloutStatistics:
        """How the whole phase went; repeated portions are counted once."""
        seconds, makespan = time.perf_counter() - began, max(self.makespan.values(), default=0)
        return RolloutStatistics(
            timesteps=self._timesteps,
            stepped=self._stepped,
            episodes=self.work.total,
            occupancy=self._busy / max(self._stepped, 1),
            makespan=makespan,
            makespan_over_bound=makespan / max(self._timesteps / num_slots, self._longest, 1),
            seconds=seconds,
            timesteps_per_second=self._timesteps / seconds,
            stepped_per_second=self._stepped / seconds,
            times=None,
        )


class _Sent:
    """The bases of the phase, and what of them was sent.

    Attributes:
      names: Their digests.
      origin: How they came from those of the generation before.
    """

    def __init__(self):
        self._bases: ArrayTree = None
        self._leaves: list[Any] = []
        self._refs: dict[Digest, Any] = {}
        self._nodes: set[tuple[Digest, str]] = set()
        self.names: tuple[Digest, ...] = ()
        self.origin: Origin | None = None

    def renew(self, bases: ArrayTree, origin: Member | None) -> None:
        """Takes the bases of the next phase, which may be those of the last one."""
        leaves = jax.tree.leaves(bases)
        if len(leaves) == len(self._leaves) and all(a is b for a, b in zip(leaves, self._leaves, strict=True)):
            return
        before, self._leaves, self.names = self.names, leaves, bases_.digests(bases)
        if origin is not None and before and before != self.names:
            self.origin = Origin(before, jax.tree.map(np.asarray, origin))
        elif before != self.names:
            self.origin = None
        self._refs = {name: ref for name, ref in self._refs.items() if name in self.names}
        self._nodes = {(name, node) for name, node in self._nodes if name in self.names}

    def refs(self, missing: tuple[Digest, ...], node: str) -> tuple[list[Any], int]:
        """Makes bases ready to be fetched; returns references to them, and the bytes that go to this node."""
        import ray

        new = [name for name in missing if name not in self._refs]
        if new:
            places = {name: self.names.index(name) for name in new if name in self.names}
            host = {name: [np.asarray(leaf[j]) for leaf in self._leaves] for name, j in places.items()}
            self._refs |= dict.fromkeys(host, ray.put(host))
        fetched = [name for name in missing if (name, node) not in self._nodes]
        self._nodes |= {(name, node) for name in fetched}
        one = sum(leaf.nbytes // leaf.shape[0] for leaf in self._leaves)
        return list(dict.fromkeys(self._refs[name] for name in missing if name in self._refs)), one * len(fetched)


def _num_bytes(tree: Any) -> int:
    """Bytes of arrays and numbers."""
    return sum(leaf.nbytes if isinstance(leaf, np.ndarray) else 8 for leaf in jax.tree.leaves(tree))
