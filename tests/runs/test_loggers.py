"""Loggers: what they write, and how they are opened and closed."""

import contextlib
import csv
import json
import sys
import types

import pytest

import volvox as vx
from volvox.runs.loggers import LoggedRun, open_loggers


def rows(numbers, **more):
    return [{"generation": n, "score": 10.0 * n, "nothing": None, **more} for n in numbers]


def log(loggers, path, new, before=()):
    """Writes new rows to loggers, which are told of the rows before."""
    run = LoggedRun(path, "Pong", "generation", {"type": "volvox.evolve"}, before)
    with contextlib.ExitStack() as stack:
        write = open_loggers(loggers, run, stack)
        for step, row in enumerate(new, start=len(before) + 1):
            write(step, row)


class Recorder:
    def __init__(self, run=None, fails=()):
        self.run, self.fails, self.calls = run, fails, []

    def write(self, step, row):
        self.calls.append((step, dict(row)))
        row.clear()
        if "write" in self.fails:
            raise OSError("no space left")

    def close(self):
        self.calls.append("close")
        if "close" in self.fails:
            raise OSError("not closed")


def test_loggers_and_functions_that_make_them_get_each_row(tmp_path):
    made, ready = [], Recorder()
    log([ready, lambda run: made.append(Recorder(run)) or made[-1]], tmp_path, rows([3, 4]), rows([1, 2]))
    assert ready.calls == made[0].calls == [*zip([3, 4], rows([3, 4]), strict=True), "close"]
    assert (made[0].run.path, made[0].run.rows) == (tmp_path, rows([1, 2]))
    with pytest.raises(TypeError):
        log(["csv"], tmp_path, [])


def test_an_error_closes_all_loggers_and_is_raised(tmp_path):
    other = Recorder()
    with pytest.raises(OSError, match="no space left"):
        log([other, Recorder(fails=("write", "close"))], tmp_path, rows([1]))
    assert other.calls[-1] == "close"
    with pytest.raises(OSError, match="not closed"):
        log([Recorder(fails=("close",))], tmp_path, rows([1]))


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_line_a_step_and_columns_that_come_later(tmp_path):
    later = [*rows([1], text="a,b"), *rows([2], actors=[{"actor": 0}])]
    log([vx.loggers.csv()], tmp_path, later)
    found = read_csv(tmp_path / "metrics.csv")
    assert [row["score"] for row in found] == ["10.0", "20.0"]
    assert [(row["text"], row["nothing"]) for row in found] == [("a,b", ""), ("", "")]
    assert [row["actors"] for row in found] == ["", json.dumps([{"actor": 0}])]


def test_csv_of_a_resumed_run_drops_lines_of_steps_that_are_repeated(tmp_path):
    path = tmp_path / "tables" / "own.csv"
    log([vx.loggers.csv(path)], None, rows([1, 2, 3]))
    log([vx.loggers.csv(path)], None, rows([3, 4]), before=rows([1, 2]))
    assert [row["generation"] for row in read_csv(path)] == ["1", "2", "3", "4"]
    with pytest.raises(ValueError, match="run_dir"):
        log([vx.loggers.csv()], None, [])


def test_tensorboard_has_the_numbers_of_all_rows(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    log([vx.loggers.tensorboard()], tmp_path, rows([1, 2], flag=True, text="x", infinite=float("inf")))
    log([vx.loggers.tensorboard()], tmp_path, rows([3]), before=rows([1, 2]))
    found, starts = [], []
    for path in (tmp_path / "tensorboard").iterdir():
        data, at = path.read_bytes(), 0
        while at < len(data):  # length (8 bytes), its checksum (4), the event, its checksum (4)
            length = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            starts += [event.step] if event.HasField("session_log") else []
            at += length + 16
    assert sorted(found) == sorted(
        [("score", n, 10.0 * n) for n in (1, 2, 3)] + [("generation", n, n) for n in (1, 2, 3)]
    )
    assert sorted(starts) == [1, 3]


class FakeRun:
    """A run of Weights & Biases."""

    def __init__(self, client, **options):
        self.client, self.options, self.logged, self.ended = client, options, [], None
        self.id = options.get("id") or f"id-{len(client.runs)}"
        self.config = types.SimpleNamespace(setdefaults=lambda config: options.setdefault("config", config))
        client.runs.append(self)
        client.run = self

    def log(self, values, step=None):
        assert self.ended is None
        self.logged.append((step, values["score"]))

    def finish(self, exit_code=0):
        self.ended, self.client.run = exit_code, None


@pytest.fixture
def client(monkeypatch):
    client = types.SimpleNamespace(run=None, runs=[])
    client.init = lambda **options: FakeRun(client, **options)
    monkeypatch.setitem(sys.modules, "wandb", client)
    return client


def test_wandb_continues_its_run_and_has_all_rows(tmp_path, client):
    log([vx.loggers.wandb("project", tags=["a"])], tmp_path, rows([3]), before=rows([1, 2]))
    log([vx.loggers.wandb("project")], tmp_path, rows([4]), before=rows([1, 2, 3]))
    first, second = client.runs
    assert first.logged == [(1, 10.0), (2, 20.0), (3, 30.0)]
    assert second.logged == [(4, 40.0)]
    assert first.id == second.id == (tmp_path / "wandb_id").read_text()
    assert (first.options["project"], first.options["tags"], first.options["name"]) == ("project", ["a"], tmp_path.name)
    assert (first.ended, second.ended) == (0, 0)


def test_a_run_that_fails_is_a_failed_one_in_wandb(tmp_path, client):
    with pytest.raises(OSError, match="no space"):
        log([vx.loggers.wandb(), Recorder(fails=("write",))], tmp_path, rows([1]))
    assert client.runs[0].ended == 1


@pytest.mark.parametrize("fails", [False, True])
def test_the_active_run_of_the_user_is_used_and_left_open(tmp_path, client, fails):
    mine = client.init(id="mine")
    with contextlib.suppress(OSError):
        log([vx.loggers.wandb("project"), *([Recorder(fails=("write",))] if fails else [])], tmp_path, rows([1]))
    assert client.runs == [mine]
    assert mine.ended is None
    assert mine.logged == [(None, 10.0)]  # in the steps of the user, which may be others
    assert mine.options["config"] == {"type": "volvox.evolve"}
    mine.log({"score": 5.0})
    mine.finish()
    log([vx.loggers.wandb("project")], tmp_path, rows([2]), before=rows([1]))  # a resume opens the run of the user
    assert (client.runs[1].id, client.runs[1].logged) == ("mine", [(None, 20.0)])


def test_wandb_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"pip install 'volvox\[wandb\]'"):
        log([vx.loggers.wandb()], tmp_path, [])


@pytest.mark.slow
def test_wandb_offline(tmp_path, monkeypatch):
    """The interface of the real library."""
    wandb = pytest.importorskip("wandb", reason="volvox[wandb] is not installed")
    for name, value in {"WANDB_SILENT": "true", "WANDB_MODE": "offline", "WANDB_DIR": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    for before, new in ((), rows([1])), (rows([1]), rows([2])):
        log([vx.loggers.wandb("tests")], tmp_path, new, before=before)
        assert wandb.run is None
    name = (tmp_path / "wandb_id").read_text()
    files = list(tmp_path.glob(f"wandb/offline-run-*/run-{name}.wandb"))
    assert len(files) == 2
    assert all(b"score" in path.read_bytes() for path in files)
    with wandb.init(project="tests") as mine:
        log([vx.loggers.wandb("tests")], tmp_path, rows([3]), before=rows([1, 2]))
        mine.log({"score": 1.0})
        assert (tmp_path / "wandb_id").read_text() == f"{mine.id} user"
