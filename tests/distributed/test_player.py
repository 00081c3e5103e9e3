"""Actors that die, hang, fail, come late or answer late: every result is there, once, and is the right one.

Actors are stubs, which answer by a formula, so that nothing is compiled in them.
"""

import dataclasses
import os
import signal
import time

import numpy as np
import pytest

from volvox import distributed
from volvox.distributed import actors
from volvox.distributed.player import RayPlayer
from volvox.evolution.pools import Place, Request
from volvox.types import Interrupted, Population

pytestmark = pytest.mark.filterwarnings("ignore")
N, SECONDS = 60, 0.02


def stub(folder=None):
    """The class of stub actors: defined in a function, so that Ray sends it by value."""
    seconds = SECONDS

    class Stub:
        def __init__(self):
            self._progress, self._dropped = (-1, 0, 0), -1

        def describe(self):
            import os
            import socket

            from volvox.distributed.actor import installed

            cpus = sorted(os.sched_getaffinity(0))
            about = {"machine": "here", "host": socket.gethostname(), "process": os.getpid(), "cpus": cpus}
            versions = installed()
            if folder is not None and (folder / "other").exists():
                versions["jax"] = "0.0.1"
            return about | {"versions": versions}

        def prepare(self, config, *others):
            if folder is not None and (folder / "missing").exists():
                raise ValueError("env: games.py:frostbite cannot be imported here")

        def play(self, order, given):
            import time

            import numpy as np

            from volvox.distributed.actor import Answer
            from volvox.distributed.work import Results

            rows = order.rows
            if folder is not None and (folder / "failing").exists():
                raise FloatingPointError("an emulator broke")
            for i in range(rows.seed.size):
                time.sleep(seconds)
                self._progress = (order.portion, i, 10 * i)
                if self._dropped == order.portion:
                    return Answer(order.portion)
            returns = (rows.seed + rows.episode / 10).astype(np.float32)
            results = Results(returns, rows.member + 1, np.zeros((returns.size, 0), np.float32))
            return Answer(order.portion, results, (), 20 * returns.size, 10 * returns.size, 5)

        def progress(self):
            return self._progress

        def drop(self, portion):
            self._dropped = portion

    return Stub


def request():
    rows = np.arange(N, dtype=np.int32)
    bases = {"kernel": np.zeros((1, 3), np.float32)}
    zeros = np.zeros(N, np.float32)
    population = Population(bases, rows * 0, rows + 100, zeros, rows < 0, rows % 2 + 1, zeros)
    return Request(population, 2, Place(False, 10, False), 0, 0)


def check(evaluation):
    rows = np.arange(N)
    np.testing.assert_array_equal(evaluation.valid.sum(1), rows % 2 + 1)
    expected = np.where(evaluation.valid, rows[:, None] + 100 + np.arange(2) / 10, 0).astype(np.float32)
    np.testing.assert_array_equal(evaluation.returns, expected)
    np.testing.assert_array_equal(evaluation.lengths, np.where(evaluation.valid, rows[:, None] + 1, 0))


class Watch:
    """Does something once, when a share of the episodes was played; keeps the notes."""

    def __init__(self, share=2.0, action=None):
        self.notes, self.phases, self._share, self._action = [], [], share, action

    def __call__(self, figures):
        self.phases.append(figures.get("phase"))
        if "note" in figures:
            self.notes.append(figures["note"])
        if self._action is not None and figures.get("done", 0) >= self._share * figures.get("total", 1):
            action, self._action = self._action, None
            return action()
        return False


@pytest.fixture
def player(machines):
    """Makes players, and closes them."""
    made = []

    def make(folder=None, **settings):
        workers = distributed.ray(address=machines.address, **{"patience": 5.0, "wait": 60.0} | settings)
        made.append(RayPlayer(workers, {}, 4, 0.1, actor=stub(folder)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def process(player, number):
    return player._actors._remotes[number].about["process"]


def test_all_machines_play(player, machines):
    machines.set(2)
    one, watch = player(), Watch()
    for _ in range(2):
        evaluation, statistics = one.play(request(), watch)
        check(evaluation)
    assert statistics.episodes == 90
    assert statistics.occupancy == pytest.approx(0.5)
    figures = one.figures()
    assert figures["num_actors"] == len(figures["actors"]) == 2
    assert figures["actor_restarts"] == 0
    assert all(row["members_per_second"] > 0 and row["busy"] > 0.2 for row in figures["actors"])
    assert 2 * 90 * 25 < figures["bytes_sent"] < 2 * 90 * 25 * 3
    assert figures["bytes_received"] >= 2 * 90 * 8
    assert one.figures()["bytes_sent"] == 0
    assert watch.notes[0].startswith("actor  machine")
    assert len(watch.notes) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_an_actor_is_lost(player, machines, how):
    """A hanging one is passed by, and replaced once it has been silent for long."""
    machines.set(2)
    one = player()
    watch = Watch(0.1, lambda: os.kill(process(one, 0), how))
    check(one.play(request(), watch)[0])
    began = time.monotonic()
    while not one._actors.restarts and time.monotonic() - began < 30:
        check(one.play(request(), watch)[0])
    assert one.figures()["actor_restarts"] == 1
    assert any("what it played is given to others" in note for note in watch.notes)


def test_a_machine_is_killed_and_another_joins(player, machines):
    machines.set(2)
    node = machines.add()
    one = player()
    check(one.play(request(), Watch(0.1, lambda: machines.kill(node)))[0])
    watch = Watch(0.1, lambda: machines.add() is None)
    began = time.monotonic()
    check(one.play(request(), watch)[0])
    while len(one._actors.table()) < 3 and time.monotonic() - began < 30:
        check(one.play(request(), Watch())[0])
    assert one.figures()["num_actors"] == 3


def test_interrupted_and_played_again(player, machines):
    machines.set(2)
    one = player()
    with pytest.raises(Interrupted, match="of 90 episodes were played and are dropped"):
        one.play(request(), Watch(0.2, lambda: True))
    check(one.play(request(), Watch())[0])


def test_nobody_is_left(player, machines):
    machines.set(1)
    one = player()

    def end():
        one._actors._settings = dataclasses.replace(one._settings, wait=2.0)
        machines.set(0)

    watch = Watch(0.1, end)
    with pytest.raises(ConnectionError, match="there has been no actor for 2 seconds"):
        one.play(request(), watch)
    assert "no actor is left; waiting for one, for at most 2 seconds" in watch.notes
    assert "waiting for actors" in watch.phases


def test_an_actor_that_fails_is_replaced_and_an_error_that_stays_is_raised(player, machines, tmp_path):
    machines.set(1)
    (tmp_path / "failing").touch()
    with pytest.raises(FloatingPointError, match="an emulator broke") as caught:
        player(tmp_path).play(request(), Watch())
    assert "another actor failed on the same episodes before" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("other", r"has jax 0.0.1 \(here .*\): install there what is here"),
        ("missing", "cannot play this .*games.py:frostbite cannot be imported here"),
    ],
)
def test_what_a_machine_lacks(player, machines, tmp_path, mark, message):
    machines.set(1)
    (tmp_path / mark).touch()
    with pytest.raises(ValueError, match=message):
        player(tmp_path).play(request(), Watch())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"num_actors": 3}, "the cluster of 1 machines has 1 CPUs and 0 GPUs, room for 1 actors"),
        ({"num_actors": "gpus"}, "room for 0 actors"),
    ],
)
def test_fewer_actors_than_asked(player, machines, asked, message):
    machines.set(1)
    with pytest.raises(ValueError, match=message):
        player(**asked).play(request(), Watch())


def test_cores_are_shared_out():
    """Actors of one machine keep to cores of their own."""
    made = actors.Actors(distributed.ray(), (), object)

    class There:
        place = Place
        about: dict

        def __init__(self, cpus, count):
            self.place, self.about = actors.Place(0, None, count), {"machine": "a", "cpus": cpus}

    there = [There([3, 5, 7, 9], 2) for _ in range(3)]
    made._remotes = dict(enumerate(there))
    assert [made._cores(one) for one in there] == [[3, 5], [7, 9], [3, 5]]
    assert made._cores(There([3, 5], 2)) == []  # the machine is its own
