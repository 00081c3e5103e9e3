"""Populations played by actors: portions are handed out as actors ask for them, and the first answer counts.

Nothing here knows what a generation is: a phase's population comes in, and its evaluation goes out.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from volvox.distributed import bases as bases_
from volvox.distributed.actor import Actor, Answer, Order, code_of
from volvox.distributed.actors import Actors
from volvox.distributed.bases import Digest, Origin
from volvox.distributed.remote import Remote, slow, text
from volvox.distributed.settings import ray as Settings
from volvox.distributed.work import Rows, Work, portion_size
from volvox.evolution.pools import Request, Seen
from volvox.rollout.evaluator import RolloutStatistics
from volvox.types import Config, Evaluation, Interrupted

_SLOTFULS = 4
"""Episodes of the largest portion, in slots of an actor."""
_LOOK = 1.0
"""Seconds, at most, between two looks at interrupts and at the cluster."""
_SHOWN_EVERY = 600.0
"""Seconds after which the table of actors is printed although it tells nothing new."""
_PIECE, _KEPT = 64 * 2**20, 256 * 2**20
"""Bytes of bases that an actor is sent at a time, and that are kept for others."""
_AT_ONCE = 16 * 2**20
"""Bytes of a portion's own bases up to which they are sent with it, before they are asked for."""
_OWN = 100 * 2**10
"""Bytes up to which Ray sends an object to each actor that asks for it, and not to its machine once."""


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
          chunk_seconds: How often progress and interrupts are looked at; by actors after a quarter of their patience at
            most.
          actor: The class of actors, which have the methods of `Actor`.
        """
        self._settings, self._num_slots, self._look = settings, num_slots, min(chunk_seconds, _LOOK)
        capacity, chunk_seconds = _SLOTFULS * num_slots, min(chunk_seconds, settings.patience / 4)
        self._actors = Actors(
            settings, ({**config, "code": code_of(config)}, num_slots, capacity, chunk_seconds), actor
        )
        self._capacity, self._next_portion = capacity, 0
        self._sent = _Sent()
        self._bytes = [0, 0]  # sent, received
        self._repeated, self._repeatable = 0, False
        self._shown = _Shown()

    def play(self, request: Request, watch: Seen) -> tuple[Evaluation, RolloutStatistics]:
        """See `Player`.

        Raises:
          ChildProcessError: Several actors died or hung, one after the other, while they played the same episodes.
          ConnectionError: There was no actor for longer than `wait` says.
          ValueError: Actors cannot be had as they are asked for, or cannot play this.
        """
        self._actors.begin(watch)
        began = time.perf_counter()
        self._sent.renew(request)
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
        table, rate = self._actors.table(), self._actors.members_per_second()
        return {
            "num_actors": len(table),
            "actor_restarts": self._actors.restarts,
            "actors_idle": self._actors.idle_share(),
            "members_per_second": rate,
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
        if number is None and self._settings.duplicates and self._repeatable:
            number = work.again()
        if number is not None:
            self._submit(remote, number, phase, [])

    def _submit(self, remote: Remote, number: int, phase: "_Phase", given: list[Any]) -> None:
        request, sent = phase.request, self._sent
        # Pools of different actors have seeds of their own.
        pool_seed = (request.pool_seed + remote.number) % 2**31
        rows, names = phase.work.rows(number), sent.names
        if sent.explicit:
            rows, names, at_once = sent.of_rows(rows, self._capacity)
            given = given or at_once
            self._bytes[0] += _num_bytes(at_once) * (given is at_once)
        order = Order(number, rows, request.place, request.seed, pool_seed, names, sent.origin)
        self._bytes[0] += _num_bytes((rows, names, sent.origin))
        self._actors.play(remote, order, given)

    def _take(self, remote: Remote, answer: Answer, phase: "_Phase") -> None:
        work = phase.work
        if answer.missing and work.is_out(answer.portion):
            ref, size = self._sent.piece(answer.missing, remote)
            self._bytes[0] += size
            self._submit(remote, answer.portion, phase, [ref])
        elif answer.results is None:
            work.give_back(answer.portion)
        else:
            self._bytes[1] += _num_bytes(answer.results)
            # Of copies with other episodes, the first to end would be one with short episodes.
            self._repeatable, members = answer.repeatable, work.members(answer.portion)
            if work.take(answer.portion, answer.results):
                phase.count(remote, members, answer)
                self._actors.drop(answer.portion)

    def _show(self, watch: Seen) -> None:
        """Prints the table of actors if they changed, if one became slow or fast, and otherwise every ten minutes."""
        table, since = self._actors.table(), time.monotonic() - self._shown.at
        actors, lagging = [(row["actor"], row["host"], row["restarts"]) for row in table], slow(table)
        soon = actors == self._shown.actors and since < _SHOWN_EVERY
        if not soon or (lagging != self._shown.lagging and since > _SHOWN_EVERY / 10):
            self._shown = _Shown(actors, lagging, time.monotonic())
            watch({"phase": "playing", "note": text(table)})


class _Shown(NamedTuple):
    """The table of actors that was printed last.

    Attributes:
      actors: Which actors they were.
      lagging: Those that were slow.
      at: When, seconds.
    """

    actors: Sequence[Any] = ()
    lagging: frozenset[int] = frozenset()
    at: float = 0.0


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

    def count(self, remote: Remote, members: float, answer: Answer) -> None:
        """Counts what an actor played; of two episodes of a member each is half of one."""
        assert answer.results is not None
        lengths = answer.results.lengths
        self._stepped, self._busy = self._stepped + answer.stepped, self._busy + answer.busy
        self._timesteps += int(lengths.sum(dtype=np.int64))
        self._longest = max(self._longest, int(lengths.max(initial=0)))
        self.makespan[remote.number] = self.makespan.get(remote.number, 0) + answer.makespan
        remote.count(members, answer)

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


class _Piece(NamedTuple):
    """Some bases that can be fetched.

    Attributes:
      number: Of all pieces that there ever were.
      ref: Ray's reference to their leaves by digest.
      size: Bytes.
    """

    number: int
    ref: Any
    size: int


class _Sent:
    """The bases of the phase, and what of them was sent.

    Attributes:
      names: Their digests.
      origin: How they came from those of the generation before.
      explicit: Whether members are bases as they are; then each portion is sent with its own.
    """

    def __init__(self):
        self._leaves: list[Any] = []
        self._host: list[np.ndarray] = []
        self._pieces: dict[Digest, _Piece] = {}
        self._reached: set[tuple[int, Any]] = set()
        self._number = 0
        self.names: tuple[Digest, ...] = ()
        self.origin: Origin | None = None
        self.explicit = False

    def renew(self, request: Request) -> None:
        """Takes the bases of the next phase, which may be those of the last one."""
        origin, leaves = request.origin, jax.tree.leaves(request.population.bases)
        if len(leaves) != len(self._leaves) or any(a is not b for a, b in zip(leaves, self._leaves, strict=True)):
            before, self._leaves, self._host = self.names, leaves, []
            self.names = bases_.digests(request.population.bases)
            if before != self.names:
                members = jax.tree.map(np.asarray, origin)
                self.origin = Origin(before, members) if origin is not None and before else None
            self._pieces = {name: piece for name, piece in self._pieces.items() if name in self.names}
        few = len(self.names) == 1 or set(self.names) == {bases_.ZEROS}
        self.explicit = origin is None and not few and not np.asarray(request.population.scale).any()

    def piece(self, missing: tuple[Digest, ...], remote: Remote) -> tuple[Any, int]:
        """Makes some of the missing bases ready to be fetched: their reference, and the bytes that travel."""
        import ray

        if missing[0] not in self._pieces:
            one = sum(leaf.nbytes // leaf.shape[0] for leaf in self._leaves)
            lacking = [name for name in missing if name not in self._pieces][: max(_PIECE // one, 1)]
            host = {name: [np.asarray(leaf[self.names.index(name)]) for leaf in self._leaves] for name in lacking}
            self._number += 1
            self._pieces |= dict.fromkeys(host, _Piece(self._number, ray.put(host), one * len(host)))
            kept = list(dict.fromkeys(self._pieces.values()))
            while len(kept) > 1 and sum(piece.size for piece in kept) > _KEPT:
                kept.pop(0)
            self._pieces = {name: piece for name, piece in self._pieces.items() if piece in kept}
        piece = self._pieces[missing[0]]
        place = (piece.number, remote.number if piece.size < _OWN else remote.node)
        new, self._reached = place not in self._reached, self._reached | {place}
        return piece.ref, piece.size * new

    def of_rows(self, rows: Rows, capacity: int) -> tuple[Rows, tuple[Digest, ...], list[dict[Digest, Any]]]:
        """The bases of a portion alone: its episodes with parents among these, their digests, and what to send at once.

        There are as many digests for every portion, so that actors compile once. Large bases are sent when they are
        asked for.
        """
        if not self._host:
            self._host = [np.asarray(leaf) for leaf in self._leaves]
        used, parent = np.unique(rows.parent, return_inverse=True)
        names = [self.names[j] for j in used]
        leaves = {name: [leaf[j] for leaf in self._host] for name, j in zip(names, used, strict=True)}
        names += [bases_.ZEROS] * (min(len(self.names), capacity) - len(names))
        return rows._replace(parent=parent.astype(np.int32)), tuple(names), [leaves] * (_num_bytes(leaves) <= _AT_ONCE)


def _num_bytes(tree: Any) -> int:
    """Bytes of arrays and numbers."""
    return sum(leaf.nbytes if isinstance(leaf, np.ndarray) else 8 for leaf in jax.tree.leaves(tree))
