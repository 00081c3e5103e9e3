"""Actors that die, hang, fail, come late or answer late: every result is there, once, and is the right one.

Actors are stubs, which answer by a formula, so that nothing is compiled in them.
"""

import dataclasses
import os
import signal
import time
from unittest.mock import MagicMock

import numpy as np
import pytest

from volvox import distributed
from volvox.distributed import actors, remote
from volvox.distributed.player import RayPlayer
from volvox.distributed.player import _Sent as Sent
from volvox.distributed.remote import Remote
from volvox.distributed.work import Rows, Work
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
            if folder is not None and (folder / "broken").exists():
                raise OSError("no space left on the device")

        def describe(self):
            import os
            import socket

            from volvox.distributed.actor import installed

            cpus = sorted(os.sched_getaffinity(0))
            about = {"machine": "here", "node": "", "host": socket.gethostname(), "process": os.getpid(), "cpus": cpus}
            versions = installed()
            if folder is not None and (folder / "other").exists():
                versions["jax"] = "0.0.1"
            return about | {"versions": versions}

        def prepare(self, config, *others):
            import contextlib
            import time

            if folder is not None:
                with contextlib.suppress(FileNotFoundError):
                    (folder / "busy").rmdir()  # by the first that comes
                    time.sleep(30.0)
            if folder is not None and (folder / "missing").exists():
                raise ValueError("env: games.py:frostbite cannot be imported here")

        def play(self, order, given):
            import os
            import time

            import numpy as np

            from volvox.distributed.actor import Answer
            from volvox.distributed.work import Results

            rows = order.rows
            if folder is not None and (folder / "failing").exists():
                raise FloatingPointError("an emulator broke")
            if folder is not None and (folder / "deadly").exists():
                os._exit(1)
            told = (folder / "process").read_text() if folder is not None and (folder / "process").exists() else ""
            mine = told == str(os.getpid())
            while mine and (folder / "blocked").exists():
                time.sleep(seconds)
            if mine and (folder / "late").exists():
                time.sleep(3.0)
                wrong = np.full(rows.seed.size, -1, np.float32)
                return Answer(
                    order.portion, Results(wrong, rows.member, np.zeros((wrong.size, 0), np.float32)), repeatable=True
                )
            for i in range(rows.seed.size):
                time.sleep(seconds)
                self._progress = (order.portion, i, 10 * i)
                if self._dropped == order.portion:
                    return Answer(order.portion)
            returns = (rows.seed + rows.episode / 10).astype(np.float32)
            results = Results(returns, rows.member + 1, np.zeros((returns.size, 0), np.float32))
            return Answer(order.portion, results, (), 20 * returns.size, 10 * returns.size, 5, repeatable=True)

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
        workers = distributed.ray(**{"address": machines.address, "patience": 5.0, "wait": 60.0} | settings)
        made.append(RayPlayer(workers, {}, 4, 0.1, actor=stub(folder)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def process(player, number):
    return player._actors._remotes[number].about["process"]


@pytest.mark.slow
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
    assert 0 < figures["members_per_second"] < 2 * 1.01 / SECONDS
    assert all(row["members_per_second"] > 0 and row["busy"] > 0.2 for row in figures["actors"])
    assert 2 * 90 * 25 < figures["bytes_sent"] < 2 * 90 * 25 * 3
    assert figures["bytes_received"] >= 2 * 90 * 8
    assert one.figures()["bytes_sent"] == 0
    assert watch.notes[0].startswith("actor  machine")
    assert len(watch.notes) == 1


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.slow),
    ],
)
def test_an_actor_is_lost(player, machines, how):
    """A hanging one is passed by, and replaced once it has been silent for long."""
    machines.set(2)
    one = player(patience=2.5)
    watch = Watch(0.1, lambda: os.kill(process(one, 0), how))
    check(one.play(request(), watch)[0])
    began = time.monotonic()
    while not (one._actors.restarts and one._actors.size == 2) and time.monotonic() - began < 30:
        check(one.play(request(), watch)[0])
    figures = one.figures()
    assert (figures["actor_restarts"], figures["num_actors"]) == (1, 2)
    assert any("what it played is given to others" in note for note in watch.notes)


@pytest.mark.slow
def test_an_actor_whose_environment_blocks_is_replaced(player, machines, tmp_path):
    """Though its process answers: only what it plays does not advance."""
    machines.set(2)
    one = player(tmp_path, patience=3.0)
    check(one.play(request(), Watch())[0])  # nothing compiles from here
    (tmp_path / "process").write_text(str(process(one, 0)))
    (tmp_path / "blocked").touch()
    watch = Watch()
    began = time.monotonic()
    while not (one._actors.restarts and one._actors.size == 2) and time.monotonic() - began < 30:
        check(one.play(request(), watch)[0])
    assert one._actors.size == 2
    assert any("hangs: it has not played a timestep for 3 seconds" in note for note in watch.notes)


@pytest.mark.slow
def test_who_plays_something_for_the_first_time_has_longer(player, machines, tmp_path):
    """It compiles, so nothing advances; its process must answer all the same."""
    machines.set(1)
    one = player(tmp_path, patience=2.0)
    (tmp_path / "blocked").touch()

    one._actors.begin(Watch())
    began = time.monotonic()
    (tmp_path / "process").write_text(str(process(one, 0)))

    def watch(figures):
        if time.monotonic() - began > 4:
            (tmp_path / "blocked").unlink(missing_ok=True)

    check(one.play(request(), watch)[0])
    assert one._actors.restarts == 0


@pytest.mark.slow
def test_actors_outlast_a_pause_of_the_script(player, machines):
    """Time in which the script was stopped is not held against them."""
    machines.set(2)
    one = player(patience=2.0)
    check(one.play(request(), Watch(0.1, lambda: time.sleep(4)))[0])
    assert one._actors.restarts == 0


def test_only_episodes_that_are_the_same_everywhere_are_played_twice():
    """Of copies with other episodes, that with the shortest would end first."""
    one = RayPlayer(distributed.ray(), {}, 4, 0.1, actor=stub())
    actor, submitted = MagicMock(), []
    one._submit = lambda remote, number, phase, given: submitted.append(number)
    phase = MagicMock(work=Work(request().population, 2))
    for repeatable in (False, True):
        while phase.work.left:
            one._hand_out(actor, phase)
        out, one._repeatable = len(submitted), repeatable
        one._hand_out(actor, phase)
        assert (len(submitted) > out) is repeatable


@pytest.mark.slow
def test_who_answers_late_is_not_heard(player, machines, tmp_path):
    """Another actor played its episodes meanwhile; the answer comes, wrong, in the next phase."""
    machines.set(2)
    one = player(tmp_path)
    one._actors.begin(Watch())
    (tmp_path / "process").write_text(str(process(one, 0)))
    (tmp_path / "late").touch()
    for _ in range(3):
        check(one.play(request(), Watch())[0])
    assert one.figures()["repeated_portions"] > 0
    assert one._actors.restarts == 0


def test_why_an_actor_died_at_the_start(player, machines, tmp_path):
    machines.set(1)
    (tmp_path / "broken").touch()
    message = (
        "1 actors were asked for, and 0 are there after .*: actor 0 .* died .*OSError: no space left on the device"
    )
    with pytest.raises(ValueError, match=message) as caught:
        player(tmp_path).play(request(), Watch())
    assert "\n" not in str(caught.value)


def test_another_cluster_than_the_one_connected_to(player, machines):
    machines.set(1)
    one = player()
    one._actors._connect()
    host, _, port = machines.address.rpartition(":")
    assert player(address=f"{host}:{port}")._actors._connect() is None
    assert player(address=None)._actors._connect() is None
    with pytest.raises(ValueError, match=f"this process is connected to the cluster at .*:{port} already"):
        player(address=f"{host}:{int(port) + 1}")._actors._connect()
    with pytest.raises(ValueError, match=r"leave address out, or call ray\.shutdown\(\) before"):
        player(address="local")._actors._connect()


def test_a_connection_leaves_signals_alone_and_ends_with_its_last_user(player, machines):
    """Ray's own handler of SIGTERM would end the process in place of saving the run."""
    import ray

    machines.set(1)
    ray.shutdown()
    before, mine = signal.getsignal(signal.SIGTERM), lambda number, frame: None
    signal.signal(signal.SIGTERM, mine)
    try:
        one, two = player(), player()
        one._actors._connect()
        assert signal.getsignal(signal.SIGTERM) is mine
        two._actors._connect()
        one.close()
        assert ray.is_initialized()
        two.close()
        assert not ray.is_initialized()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_machine_that_joins_with_other_versions_is_tried_again(player, machines, tmp_path, monkeypatch):
    monkeypatch.setattr(actors, "_LONGEST_PAUSE", 1.0)
    machines.set(1)
    one, watch, began = player(tmp_path), Watch(), time.monotonic()
    check(one.play(request(), watch)[0])
    (tmp_path / "other").touch()
    machines.add()
    while not any("left out" in note for note in watch.notes) and time.monotonic() - began < 60:
        check(one.play(request(), watch)[0])
    (tmp_path / "other").unlink()
    while len(one._actors.table()) < 2 and time.monotonic() - began < 90:
        check(one.play(request(), watch)[0])
    assert one.figures()["num_actors"] == 2
    refused = [note for note in watch.notes if "has jax 0.0.1" in note]
    assert len(refused) == 1
    assert refused[0].endswith("; it is left out, and tried again every 1 seconds")


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_actor_that_fails_is_replaced_and_an_error_that_stays_is_raised(player, machines, tmp_path):
    machines.set(1)
    (tmp_path / "failing").touch()
    with pytest.raises(FloatingPointError, match="an emulator broke") as caught:
        player(tmp_path).play(request(), Watch())
    assert "another actor failed on the same episodes before" in caught.value.__notes__[0]


@pytest.mark.slow
def test_one_busy_machine_keeps_nobody_waiting(player, machines, tmp_path, monkeypatch):
    monkeypatch.setattr(actors, "_LATER", 1.0)
    machines.set(2)
    (tmp_path / "busy").mkdir()
    one, began = player(tmp_path, num_actors="nodes"), time.monotonic()
    check(one.play(request(), Watch())[0])
    assert not (tmp_path / "busy").exists()
    assert one._actors.size == 1
    assert time.monotonic() - began < 25


@pytest.mark.slow
def test_episodes_that_end_every_actor_are_an_error(player, machines, tmp_path, monkeypatch):
    """As for want of memory: otherwise they would be given to others for ever."""
    monkeypatch.setattr(actors, "_LONGEST_PAUSE", 0.1)
    machines.set(1)
    (tmp_path / "deadly").touch()
    watch = Watch()
    with pytest.raises(ChildProcessError, match=r"4 actors died or hung while .* the last was actor 0 .*, which died"):
        player(tmp_path).play(request(), watch)
    assert sum("what it played is given to others" in note for note in watch.notes) == 3


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


def test_bases_are_sent_in_pieces_and_counted_once_a_machine(monkeypatch):
    import ray

    put = []
    monkeypatch.setattr(ray, "put", lambda value: put.append(value) or len(put))
    monkeypatch.setattr("volvox.distributed.player._PIECE", 2 * 60_000)
    monkeypatch.setattr("volvox.distributed.player._KEPT", 4 * 60_000)
    bases = {"kernel": np.arange(6 * 15_000, dtype=np.float32).reshape(6, -1)}  # of 60 000 bytes each
    sent = Sent()
    sent.renew(request()._replace(population=request().population._replace(bases=bases)))
    names, size = sent.names, 2 * 60_000
    one, other, elsewhere = (Remote(actors.Place(number, node, 1), MagicMock()) for number, node in enumerate("aab"))
    assert sent.piece(names, one) == (1, size)
    assert [list(piece) for piece in put] == [list(names[:2])]
    np.testing.assert_array_equal(put[0][names[1]], bases["kernel"][1:2])
    assert sent.piece(names, other) == (1, 0)  # it is on that machine already
    assert sent.piece(names[1:], elsewhere) == (1, size)  # a piece travels as a whole
    assert sent.piece(names[2:], one) == (2, size)
    assert sent.piece(names[5:], one) == (3, 60_000)
    assert sent.piece(names[5:], other) == (3, 60_000)  # what is small travels to each
    assert sent.piece(names[3:], other) == (2, 0)
    assert sent.piece(names, one) == (4, size)  # the first was given up, for those that came later


@pytest.mark.parametrize("large", [False, True])
def test_explicit_members_travel_to_who_plays_them(monkeypatch, large):
    bases = {"kernel": np.arange(24, dtype=np.float32).reshape(8, 3)}
    members = request().population
    rows = Rows(*(np.zeros(3, np.int32) for _ in Rows._fields))._replace(parent=np.array([6, 2, 6], np.int32))
    sent = Sent()
    monkeypatch.setattr("volvox.distributed.player._AT_ONCE", 0 if large else 100)
    sent.renew(request()._replace(population=members._replace(bases=bases)))
    assert sent.explicit
    remade, names, given = sent.of_rows(rows, 5)
    np.testing.assert_array_equal(remade.parent, [1, 0, 1])
    assert names == (sent.names[2], sent.names[6], (0, 0), (0, 0), (0, 0))
    if large:
        assert given == []
    else:
        assert [list(leaves) for leaves in given] == [list(names[:2])]
        np.testing.assert_array_equal(given[0][names[0]], bases["kernel"][2:3])
    assert len(sent.of_rows(rows, 100)[1]) == 8
    sent.renew(request()._replace(population=members._replace(bases=bases, scale=np.ones(N, np.float32))))
    assert not sent.explicit
    sent.renew(request()._replace(population=members._replace(bases=bases), origin=()))  # descends from others
    assert not sent.explicit


def test_slow_actors_are_named():
    rows = [{"actor": i, "members_per_second": rate, "busy": busy} for i, rate, busy in ROWS]
    assert remote.slow(rows) == {1}
    assert remote.slow([]) == frozenset()


ROWS = [(0, 9.0, 0.9), (1, 3.0, 0.9), (2, 8.0, 0.8), (3, 0.0, 0.0)]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "it\nfailed:\n\n  ModuleNotFoundError: No module named 'games'\n",
            "ModuleNotFoundError: No module named 'games'",
        ),
        ("x" * 300, "x" * 240 + "..."),
        ("", "no reason is known"),
    ],
)
def test_the_reason_of_an_error_is_one_line(message, told):
    assert remote.why(ValueError(message)) == f"ValueError: {told}"


def test_cores_are_shared_out():
    """Actors of one machine keep to cores of their own."""

    class There:
        place = Place
        about: dict

        def __init__(self, cpus, count):
            self.place, self.about = remote.Place(0, None, count), {"machine": "a", "cpus": cpus}

    there = [There([3, 5, 7, 9], 2) for _ in range(3)]
    assert [remote.cores(one, there) for one in there] == [[3, 5], [7, 9], [3, 5]]
    assert remote.cores(There([3, 5], 2), there) == []  # the machine is its own
