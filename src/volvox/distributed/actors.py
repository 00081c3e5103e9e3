"""Creates, monitors and replaces the actors of a run; `volvox.distributed.player` decides what they play.

Actors are not restarted by Ray. A new one is made in the place of one that died, hung or failed, at the pace at which
places fail; and with `"nodes"` one for each machine that joins.
"""

import collections
import time
from collections.abc import Callable, Iterator
from typing import Any

from volvox.distributed.actor import Answer, Order, installed, options
from volvox.distributed.remote import Place, Remote, connect, cores, disconnect, why
from volvox.distributed.settings import ray as Settings
from volvox.evolution.pools import Seen
from volvox.types import Interrupted

_LOOK = 1.0
"""Seconds between two looks at the cluster."""
_REASONS = 3
"""Actors of which an error says why they are not there."""
_MOST_DEATHS = 4
"""Actors that may die or hang while they play the same episodes, before these are held to be the cause."""
_LATER = 30.0
"""Seconds, at most, that the first actor of `"nodes"` that is ready waits for the other machines."""
_LONGEST_PAUSE = 60.0
"""Seconds until a place that fails again and again, or a machine that cannot take part, is tried once more."""


class Actors:
    """All actors.

    Attributes:
      restarts: Actors that took the place of others.
    """

    def __init__(self, settings: Settings, given: tuple[Any, ...], actor: type):
        """Starts nothing yet.

        Args:
          settings: Of actors.
          given: What `prepare` of an actor is told: config, slots, capacity, `chunk_seconds`.
          actor: The class of actors.
        """
        self._settings, self._given, self._actor = settings, given, actor
        self._clear()

    def _clear(self) -> None:
        self._ray: Any = None
        self._begun = False
        self._remotes: dict[int, Remote] = {}
        self._places: dict[str, int] = {}
        self._restarts: collections.Counter[int] = collections.Counter()
        self._not_before: dict[int, float] = {}
        self._failures: collections.Counter[int] = collections.Counter()
        self._deaths: collections.Counter[int] = collections.Counter()
        self._lost: list[int] = []
        self._refused: set[str] = set()
        self._notes: list[str] = []
        self._looked = self._awake = self._phase_began = self._phases = 0.0
        self._ticked = time.monotonic()
        self._alone: float | None = None

    @property
    def restarts(self) -> int:
        """Actors that took the place of others."""
        return self._restarts.total()

    @property
    def size(self) -> int:
        """Actors that play, or could."""
        return len(self._members())

    def idle(self) -> list[Remote]:
        """Actors that could play."""
        return [remote for remote in self._remotes.values() if remote.stage == "ready"]

    def begin(self, watch: Seen) -> None:
        """Begins a phase; at first connects to the cluster, and waits until the actors are there.

        Raises:
          ValueError: There are fewer actors than asked for, or their machines have other versions or lack a module.
          Interrupted: `watch` returned True.
        """
        self._phase_began = time.monotonic()
        if self._begun:
            return
        try:
            self._begin(watch)
        except BaseException:
            self.close()
            raise
        self._begun, self._phase_began = True, time.monotonic()

    def _begin(self, watch: Seen) -> None:
        self._connect()
        asked = self._make(first=True)
        until = self._settings.wait
        while any(remote.stage in ("describing", "preparing") for remote in self._remotes.values()):
            if watch({"phase": "starting actors"}):
                raise Interrupted("before actors were there")
            if self.size and self._settings.num_actors == "nodes":  # a busy machine joins when it can
                until = min(until, self._awake + _LATER)
            if self._awake > until:
                break
            self._wait(_LOOK)
        if self.size < (asked if self._settings.num_actors != "nodes" else 1):
            reason = "`ray status` says what the cluster lacks; ask for fewer (num_actors), or for fewer CPUs for each "
            reason = "; ".join(self._notes[:_REASONS]) or f"{reason}(num_cpus_per_actor)"
            after = f"there after {self._awake:.0f} seconds"
            raise ValueError(f"{asked} actors were asked for, and {self.size} are {after}: {reason}")

    def keep_up(self, watch: Seen) -> None:
        """Looks once a second for actors that hang, places without an actor, and whether any is left.

        Raises:
          ChildProcessError: Several actors died or hung, one after the other, while they played the same episodes.
          ConnectionError: There has been no actor for too long.
          Interrupted: `watch` returned True.
        """
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            self._looked = now
            self._look_after()
            self._make(first=False)
        if self.size:
            self._alone = None
        elif self._alone is None:
            self._alone = self._awake
            self._notes.append(f"no actor is left; waiting for one, for at most {self._settings.wait:g} seconds")
        elif self._awake - self._alone > self._settings.wait:
            raise ConnectionError(
                f"there has been no actor for {self._settings.wait:g} seconds: start machines (`ray start "
                "--address=...`), and resume the run"
            )
        stop = False
        while self._notes:
            stop |= bool(watch({"phase": "playing" if self.size else "waiting for actors", "note": self._notes.pop(0)}))
        if self._alone is not None:
            stop |= bool(watch({"phase": "waiting for actors"}))
        if stop:
            raise Interrupted("the phase is dropped")

    def play(self, remote: Remote, order: Order, given: list[Any]) -> None:
        """Gives an actor a portion."""
        remote.stage, remote.portion, remote.began, remote.dropped = "playing", order.portion, time.monotonic(), False
        remote.progress, remote.kind = (order.portion, 0, 0), (order.place, len(order.names))
        remote.answered = remote.advanced = self._awake
        remote.call = remote.handle.play.remote(order, given)

    def answers(self, seconds: float) -> Iterator[tuple[Remote, Answer]]:
        """Waits for answers, for so many seconds at most."""
        yield from self._wait(seconds)

    def lost(self) -> list[int]:
        """Portions that actors played, who are gone since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def drop(self, portion: int) -> None:
        """Tells those who still play a portion that they need not."""
        for remote in self._remotes.values():
            if remote.stage == "playing" and remote.portion == portion and not remote.dropped:
                remote.dropped = True
                remote.handle.drop.remote(portion)

    def drop_all(self) -> None:
        """Ends a phase: nothing that is being played is needed."""
        for portion in {remote.portion for remote in self._remotes.values() if remote.stage == "playing"}:
            self.drop(portion)
        self._lost = []
        self._phases += time.monotonic() - self._phase_began

    def in_progress(self, counts: Callable[[int], bool]) -> tuple[int, int]:
        """Episodes and timesteps of the portions that are being played and count."""
        playing = [remote for remote in self._remotes.values() if remote.stage == "playing" and counts(remote.portion)]
        most = {remote.portion: remote.progress for remote in sorted(playing, key=lambda remote: remote.progress[1])}
        return sum(played for _, played, _ in most.values()), sum(stepped for _, _, stepped in most.values())

    def table(self) -> list[dict[str, Any]]:
        """What each actor did since `idle_share` was asked for."""
        remotes = sorted(self._members(), key=lambda remote: remote.number)
        return [remote.row(self._phases, self._restarts[remote.number]) for remote in remotes]

    def members_per_second(self) -> float:
        """Of all actors, since `idle_share` was asked for."""
        return sum(remote.members for remote in self._remotes.values()) / max(self._phases, 1e-6)

    def idle_share(self) -> float:
        """The share of the phases' time in which actors had nothing to do, since the last call."""
        remotes = self._members()
        busy, elapsed = sum(remote.busy_seconds for remote in remotes), self._phases * max(len(remotes), 1)
        for remote in self._remotes.values():
            remote.clear()
        self._phases = 0.0
        return max(1.0 - busy / max(elapsed, 1e-6), 0.0)

    def close(self) -> None:
        """Ends all actors, and the cluster if it was begun here and nobody else uses it."""
        for remote in self._remotes.values():
            self._kill(remote)
        if self._ray is not None:
            disconnect(id(self))
        self._clear()

    def _members(self) -> list[Remote]:
        return [remote for remote in self._remotes.values() if remote.stage in ("ready", "playing")]

    def _connect(self) -> None:
        """Connects to the cluster."""
        self._ray = connect(self._settings.address, id(self))

    def _make(self, *, first: bool) -> int:
        """Makes actors where there are none; returns how many there should be."""
        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
        places = self._wanted(nodes, first=first)
        now = time.monotonic()
        for place in places:
            if place.number not in self._remotes and now >= self._not_before.get(place.number, 0.0):
                made = self._remotes[place.number] = Remote(place, self._created(place))
                made.answered = self._awake
        return len(places)

    def _wanted(self, nodes: list[dict[str, Any]], *, first: bool) -> list[Place]:
        """Where actors should be.

        Raises:
          ValueError: At first, the cluster has no room for all.
        """
        settings, wanted = self._settings, self._settings.num_actors
        cpus = settings.num_cpus_per_actor
        if wanted == "nodes":
            numbers = {node["NodeID"]: self._places.setdefault(node["NodeID"], len(self._places)) for node in nodes}
            return [Place(numbers[n["NodeID"]], n["NodeID"], cpus or int(n["Resources"]["CPU"])) for n in nodes]
        cpus = cpus or 1
        gpus = 1 if wanted == "gpus" else settings.num_gpus_per_actor
        free = [(node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0)) for node in nodes]
        count = int(sum(gpu for _, gpu in free)) if wanted == "gpus" else int(wanted or 1)
        room = sum(int(min(cpu // cpus, gpu // gpus if gpus else cpu)) for cpu, gpu in free)
        if first and (room < count or not count):
            asked = f"num_actors={wanted!r}, each with {cpus} CPUs and {gpus:g} GPUs"
            raise ValueError(
                f"{asked}: the cluster of {len(free)} machines has {sum(cpu for cpu, _ in free):g} CPUs and "
                f"{sum(gpu for _, gpu in free):g} GPUs, room for {room} actors; ask for fewer, or start more machines"
            )
        return [Place(number, None, cpus) for number in range(count)]

    def _created(self, place: Place) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        settings = self._settings
        where: Any = "SPREAD" if place.node is None else NodeAffinitySchedulingStrategy(place.node, soft=False)
        return (
            self._ray.remote(self._actor)
            .options(
                num_cpus=place.cpus,
                num_gpus=1 if settings.num_actors == "gpus" else settings.num_gpus_per_actor,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=4,  # it plays, and meanwhile says how far it is
                scheduling_strategy=where,
            )
            .remote()
        )

    def _look_after(self) -> None:
        """Asks those who play how far they are, and replaces those who do not answer, or get no further."""
        patience, wait = self._settings.patience, self._settings.wait
        for remote in list(self._remotes.values()):
            silent, still = self._awake - remote.answered, self._awake - remote.advanced
            if remote.stage == "playing":
                # What is played for the first time is compiled, and nothing advances meanwhile.
                compiles = remote.kind not in remote.compiled and not remote.progress[2]
                if silent > patience:
                    self._gone(remote, f"has not answered for {silent:.0f} seconds")
                elif still > (max(patience, wait) if compiles else patience):
                    self._gone(remote, f"hangs: it has not played a timestep for {still:.0f} seconds")
                elif remote.ping is None:
                    remote.ping = remote.handle.progress.remote()
            elif remote.stage in ("describing", "preparing") and self._begun and silent > wait:
                self._gone(remote, f"was not ready after {silent:.0f} seconds")

    def _wait(self, seconds: float) -> list[tuple[Remote, Answer]]:
        """Waits until an actor has answered something; returns what was played."""
        # Time in which this process was stopped, or was busy with other things, is no silence of actors.
        before, self._ticked = self._ticked, time.monotonic()
        self._awake += min(self._ticked - before, _LOOK)
        asked = {remote.call: remote for remote in self._remotes.values() if remote.call is not None}
        asked |= {remote.ping: remote for remote in self._remotes.values() if remote.ping is not None}
        if not asked:
            time.sleep(seconds)
            return []
        refs = list(asked)
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=seconds, fetch_local=False)
        if ready and len(refs) > 1:
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        answers = [(asked[ref], self._answered(asked[ref], ref)) for ref in ready]
        return [(remote, answer) for remote, answer in answers if answer is not None]

    def _answered(self, remote: Remote, ref: Any) -> Answer | None:
        """Takes what an actor answered: what was played, or nothing of that kind."""
        if remote.stage == "gone":
            return None
        pinged = ref is remote.ping
        try:
            value = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            self._failed(remote, error)
            return None
        except self._ray.exceptions.RayError as error:
            self._gone(remote, f"died ({why(error)})")
            return None
        remote.answered = self._awake
        if pinged:
            remote.ping = None
            if value[0] == remote.portion and tuple(value) != remote.progress:
                remote.progress, remote.advanced = tuple(value), self._awake
            return None
        remote.call = None
        if remote.stage == "describing":
            self._prepare(remote, value)
        elif remote.stage == "preparing":
            remote.stage = "ready"
        elif remote.stage == "playing":
            remote.stage, answer = "ready", value
            remote.busy_seconds += time.monotonic() - remote.began
            if answer.results is not None:
                remote.compiled.add(remote.kind)
            return answer
        return None

    def _prepare(self, remote: Remote, about: dict[str, Any]) -> None:
        """Checks what an actor says of itself, and has it make what it plays with."""
        remote.about, remote.stage = about, "preparing"
        here = installed()
        wrong = {name: there for name, there in about["versions"].items() if here.get(name) != there}
        if wrong:
            told = ", ".join(f"{name} {there} (here {here.get(name)})" for name, there in wrong.items())
            self._refuse(remote, f"{about['host']} has {told}: install there what is here")
            return
        remote.call = remote.handle.prepare.remote(*self._given, options(), cores(remote, self._remotes.values()))

    def _failed(self, remote: Remote, error: Any) -> None:
        """An actor's method raised an error."""
        cause = getattr(error, "cause", None) or error
        told = why(cause)
        if remote.stage in ("describing", "preparing"):
            self._refuse(remote, f"{remote.about.get('host', remote.name)} cannot play this ({told})")
            return
        self._failures[remote.portion] += 1
        if self._failures[remote.portion] > 1:
            cause.add_note(f"This was raised by {remote.name}; another actor failed on the same episodes before.")
            raise cause from None
        self._gone(remote, f"failed ({told})")

    def _refuse(self, remote: Remote, why: str) -> None:
        """A machine cannot take part: at the start that ends the run, later it is tried again every minute."""
        if not self._begun:
            raise ValueError(why)
        if why not in self._refused:
            self._refused.add(why)
            self._notes.append(f"{why}; it is left out, and tried again every {_LONGEST_PAUSE:g} seconds")
        self._kill(remote)
        del self._remotes[remote.number]
        self._not_before[remote.number] = time.monotonic() + _LONGEST_PAUSE

    def _gone(self, remote: Remote, why: str) -> None:
        """An actor is gone; what it played is given to others."""
        if remote.stage == "playing":
            self._lost.append(remote.portion)
            self._deaths[remote.portion] += 1
        given = "; what it played is given to others" if remote.stage == "playing" else ""
        self._notes.append(f"{remote.name} {why}{given}")
        self._kill(remote)
        del self._remotes[remote.number]
        self._restarts[remote.number] += 1
        pause = min(2.0 ** (self._restarts[remote.number] - 1) - 1, _LONGEST_PAUSE)
        self._not_before[remote.number] = time.monotonic() + pause
        if (deaths := self._deaths[remote.portion]) >= _MOST_DEATHS and given:
            raise ChildProcessError(
                f"{deaths} actors died or hung while they played the same episodes; the last was {remote.name}, which "
                f"{why}: find out whether the environment crashes or memory is short, and resume the run"
            )

    def _kill(self, remote: Remote) -> None:
        remote.stage = "gone"
        if self._ray is not None and self._ray.is_initialized():
            self._ray.kill(remote.handle, no_restart=True)
