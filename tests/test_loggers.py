"""Loggers and `on_step`: what they are given, when they are closed, and what becomes of their errors."""

import csv
import functools
import json
import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import volvox as vx
from volvox import checkpoint
from volvox.loggers import CSV, LoggedRun, TensorBoard

SPEC = vx.EnvSpec("count", (1,), np.float32, 2, None, None, None, 10, 1)
POLICY = vx.Policy(
    init=lambda key: jnp.zeros(1),
    initial_state=lambda batch_size: (),
    apply=lambda variables, observation, state: (observation, state),
    sample=lambda key, output: output,
    mode=lambda output: output,
    config={},
)


def counting(rows=lambda number: {}):
    """Counts its steps; `rows` gives further metrics of each."""

    def step(state, *, monitor=None):
        number = state["step"] + 1
        return {"step": number}, {"score": 10.0 * number, **rows(number)}

    env = vx.Env(SPEC, 1, 1, lambda seed, **_: (), {})
    config = {"algorithm": "counting"}
    return vx.Algorithm(lambda key: {"step": 0}, step, lambda state: jnp.zeros(1), POLICY, env, config, lambda: None)


def train(algorithm=None, **options):
    return vx.train(counting() if algorithm is None else algorithm, **{"progress": False, "loggers": (), **options})


class Told:
    """Keeps what it is told, and fails where it is asked to."""

    def __init__(self, run=None, *, fails=""):
        self.run, self.fails, self.told = run, fails, []

    def write(self, step, row):
        self.told.append((step, dict(row)))
        row.clear()  # what a logger does to its row is its own business
        if self.fails == "write" and step == 2:
            raise OSError("no space left")

    def close(self):
        self.told.append("closed")
        if self.fails == "close":
            raise OSError("not closed")


def kept(path):
    return checkpoint.steps(path / "checkpoints")[-1]


def lines(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_logger_gets_each_row_and_is_closed():
    logger = Told()
    run = train(steps=2, loggers=[logger])
    assert logger.told == [(1, run.metrics[0]), (2, run.metrics[1]), "closed"]
    assert run.metrics[0]["score"] == 10.0


def test_a_class_opens_itself_with_what_a_logger_may_know(tmp_path):
    made = []

    def open_one(run):
        made.append(Told(run))
        return made[-1]

    train(steps=2, run_dir=tmp_path / "a", loggers=(open_one,))
    train(steps=3, run_dir=tmp_path / "a", loggers=(open_one, Told), resume=True)
    train(steps=1, loggers=(functools.partial(Told, fails=""),))
    first, second = (one.run for one in made)
    assert first == LoggedRun(tmp_path / "a", "count", "generation", {"algorithm": "counting"}, ())
    assert [row["generation"] for row in second.rows] == [1, 2]
    assert [told if told == "closed" else told[0] for told in made[1].told] == [3, "closed"]


def test_csv_has_a_line_a_step_and_columns_that_come_later(tmp_path):
    algorithm = counting(lambda number: {"later": [number, None]} if number > 1 else {"text": "a,b"})
    train(algorithm, steps=3, run_dir=tmp_path / "a", loggers=(vx.loggers.csv(),))
    found = lines(tmp_path / "a" / "metrics.csv")
    assert [row["generation"] for row in found] == ["1", "2", "3"]
    assert [row["score"] for row in found] == ["10.0", "20.0", "30.0"]
    assert [row["later"] for row in found] == ["", "[2, null]", "[3, null]"]
    assert [row["text"] for row in found] == ["a,b", "", ""]


def test_csv_drops_lines_beyond_the_checkpoint(tmp_path):
    path = tmp_path / "tables" / "own.csv"
    loggers = (vx.loggers.csv(path),)
    train(steps=2, run_dir=tmp_path / "a", loggers=loggers)
    with path.open("a") as file:  # killed between the line of step 3 and its checkpoint
        file.write("3,0,0,99.0\n")
    train(steps=4, run_dir=tmp_path / "a", loggers=loggers, resume=True)
    assert [(row["generation"], row["score"]) for row in lines(path)] == [(str(n), f"{10.0 * n}") for n in range(1, 5)]
    # A logger that comes later has the rows before, too.
    train(steps=5, run_dir=tmp_path / "a", loggers=(vx.loggers.csv(),), resume=True)
    assert len(lines(tmp_path / "a" / "metrics.csv")) == 5


def test_csv_is_whole_after_each_line(tmp_path):
    logger = CSV(tmp_path / "a.csv", LoggedRun(None, "", "generation", {}, ()))
    assert (tmp_path / "a.csv").read_text() == ""
    for number in (1, 2):
        logger.write(number, {"generation": number})
        assert len(lines(tmp_path / "a.csv")) == number


def test_a_table_is_kept_in_files(tmp_path):
    """That of actors of Ray, for example."""
    table = [{"actor": 0, "host": "a", "members_per_second": 2.5}, {"actor": 1, "host": "b", "members_per_second": 0.0}]
    options = {"run_dir": tmp_path, "loggers": (vx.loggers.csv(),)}
    run = train(counting(lambda number: {"num_actors": 2, "actors": table}), steps=1, **options)
    assert run.metrics[0]["actors"] == json.loads(lines(tmp_path / "metrics.csv")[0]["actors"]) == table
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["actors"] == table


def test_tensorboard_scalars(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    for first in (1, 3):
        events = TensorBoard(None, LoggedRun(tmp_path, "", "generation", {}, ({},) * (first - 1)))
        for step in (first, first + 1):
            row = {"score": 10.0 * step, "nan": None, "flag": True, "inf": float("inf"), "text": "x"}
            row["actors"] = [{"actor": 0, "members_per_second": 2.5}]
            events.write(step, row)
        events.close()
    found, starts = [], []
    for path in sorted((tmp_path / "tensorboard").iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):  # length (8 bytes), its checksum (4), the event, its checksum (4)
            length = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            starts += [event.step] if event.HasField("session_log") else []
            at += length + 16
    assert sorted(found) == [("score", step, 10.0 * step) for step in (1, 2, 3, 4)]
    assert sorted(starts) == [1, 3]


def test_a_logger_that_fails_is_named_and_the_run_is_saved(tmp_path):
    other = Told()
    with pytest.raises(OSError, match=r"^no space left") as error:
        train(steps=5, run_dir=tmp_path / "a", checkpoint_every=10, loggers=(other, Told(fails="write")))
    assert error.value.__notes__ == ["This was raised by loggers[1] (Told)."]
    assert kept(tmp_path / "a") == 2
    assert other.told[-1] == "closed"
    assert len(train(steps=3, run_dir=tmp_path / "a", resume=True).metrics) == 3


def test_a_logger_that_cannot_be_opened_leaves_the_directory_unused(tmp_path):
    def fails(run):
        raise ConnectionError("no server")

    with pytest.raises(ConnectionError, match=r"^no server") as error:
        train(steps=1, run_dir=tmp_path / "a", loggers=(fails,))
    assert "loggers[0] (test_a_logger_that_cannot_be_opened" in error.value.__notes__[0]
    train(steps=1, run_dir=tmp_path / "a")
    with pytest.raises(ValueError, match=r"no run directory for metrics\.csv: give train a run_dir, or the logger"):
        train(steps=1, loggers=(vx.loggers.csv(),))


def test_an_error_of_closing_is_named_and_hides_no_other(tmp_path):
    with pytest.raises(OSError, match="not closed") as error:
        train(steps=3, run_dir=tmp_path / "a", checkpoint_every=10, loggers=(Told(fails="close"),))
    assert error.value.__notes__ == ["This was raised by loggers[0] (Told)."]
    assert kept(tmp_path / "a") == 3
    with pytest.raises(KeyError, match="mine") as error:
        train(steps=3, on_step=lambda run: {}["mine"], loggers=(Told(fails="close"),))
    assert error.value.__notes__ == ["loggers[0] (Told) could not be closed either: not closed"]


def test_without_loggers_there_are_event_files_where_there_is_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(steps=1, loggers=None)
    assert os.listdir(tmp_path) == []
    train(steps=1, run_dir="a", loggers=None)
    train(steps=1, run_dir="b")
    assert (tmp_path / "a" / "tensorboard").is_dir()
    assert not (tmp_path / "b" / "tensorboard").exists()


# ---- on_step ----


@pytest.mark.parametrize("true", [True, np.True_, jnp.bool_(True)], ids=["python", "numpy", "jax"])
def test_on_step_sees_the_run_and_stops_it_saved(tmp_path, true, capsys):
    seen = []

    def on_step(run):
        seen.append((len(run.metrics), run.state["step"], run.metrics[-1]["score"], run.run_dir))
        return true if len(run.metrics) == 2 else False

    run = train(steps=5, run_dir=tmp_path / "a", checkpoint_every=10, on_step=on_step)
    assert seen == [(1, 1, 10.0, tmp_path / "a"), (2, 2, 20.0, tmp_path / "a")]
    assert (run.interrupted, run.exit_code, kept(tmp_path / "a")) == (False, 0, 2)
    assert "stopped after generation 2/5: on_step returned True" in capsys.readouterr().err
    again = train(steps=5, run_dir=tmp_path / "a", resume=True, on_step=lambda run: None)
    assert [row["score"] for row in again.metrics] == [10.0, 20.0, 30.0, 40.0, 50.0]


@pytest.mark.parametrize("answer", [None, 1, "yes", (1.0, 2.0), np.ones(3), vx.Score])
def test_what_on_step_returns_otherwise_means_nothing(answer):
    assert len(train(steps=3, on_step=lambda run: answer).metrics) == 3


def test_an_error_in_on_step_is_the_users_and_the_run_is_saved(tmp_path):
    def on_step(run):
        if len(run.metrics) == 2:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match=r"^mine$") as error:
        train(steps=5, run_dir=tmp_path / "a", checkpoint_every=10, on_step=on_step)
    assert not hasattr(error.value, "__notes__")
    assert kept(tmp_path / "a") == 2


# ---- Weights & Biases ----

OFFLINE = """
import sys
sys.path.insert(0, {tests!r})
from test_loggers import counting, train, vx
logger = vx.loggers.wandb("volvox-tests", mode="offline", tags=["a"])
told = counting(lambda number: {{"note": f"of step {{number}}"}})
run = train(told, steps=int(sys.argv[1]), run_dir={run_dir!r}, resume=True, loggers=(logger,))
print(len(run.metrics))
"""


@pytest.mark.slow
def test_wandb_offline(tmp_path):
    pytest.importorskip("wandb", reason="Weights & Biases is an extra: pip install 'volvox[wandb]'")
    script = textwrap.dedent(OFFLINE.format(tests=str(Path(__file__).parent), run_dir=str(tmp_path / "a")))
    environment = os.environ | {"WANDB_SILENT": "true", "HOME": str(tmp_path), "WANDB_DIR": str(tmp_path)}
    names = []
    for steps in (1, 2):
        program = [sys.executable, "-c", script, str(steps)]
        done = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(steps)
        names.append((tmp_path / "a" / "wandb_id").read_text())
    assert names[0] == names[1]
    files = sorted((tmp_path / "a" / "wandb").glob(f"offline-run-*/run-{names[0]}.wandb"))
    assert len(files) == 2
    data = [path.read_bytes() for path in files]
    assert all(b"score" in one and b"counting" in one for one in data)
    assert [(b"of step 1" in one, b"of step 2" in one) for one in data] == [(True, False), (False, True)]  # once each


def test_wandb_goes_on_with_its_run_and_has_all_rows(tmp_path, monkeypatch):
    begun, logged = [], []
    client = types.SimpleNamespace(
        init=lambda **options: begun.append(options) or client,
        log=lambda values, step: logged.append((step, values["score"], "nan" in values)),
        finish=lambda: logged.append("finished"),
    )
    monkeypatch.setitem(sys.modules, "wandb", client)
    algorithm, how = counting(lambda number: {"nan": float("nan")}), {"run_dir": tmp_path / "a", "resume": True}
    train(algorithm, steps=2, **how)  # without the logger
    for steps in (3, 4):
        train(algorithm, steps=steps, loggers=(vx.loggers.wandb("tests"),), **how)
    assert [entry if entry == "finished" else entry[0] for entry in logged] == [1, 2, 3, "finished", 4, "finished"]
    assert [entry[1:] for entry in logged if entry != "finished"] == [(10.0 * n, False) for n in range(1, 5)]
    assert [options["id"] for options in begun] == [(tmp_path / "a" / "wandb_id").read_text()] * 2
    assert all((options["resume"], options["project"], options["name"]) == ("allow", "tests", "a") for options in begun)


def test_csv_after_a_resume_has_new_columns_and_empty_fields_for_nan(tmp_path):
    algorithm = counting(lambda number: {"loss": float("nan")} if number < 3 else {"loss": 0.5, "later": number})
    for steps in (2, 4):
        train(algorithm, steps=steps, run_dir=tmp_path / "a", resume=True, loggers=(vx.loggers.csv(),))
    found = lines(tmp_path / "a" / "metrics.csv")
    assert [(row["generation"], row["loss"], row["later"]) for row in found] == [
        ("1", "", ""),
        ("2", "", ""),
        ("3", "0.5", "3"),
        ("4", "0.5", "4"),
    ]


def test_wandb_that_is_not_installed_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"pip install 'volvox\[wandb\]'"):
        train(steps=1, loggers=(vx.loggers.wandb(),))


def test_rows_are_those_of_the_metrics_file(tmp_path):
    logger = Told()
    train(steps=2, run_dir=tmp_path / "a", loggers=(logger,))
    written = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [row for _, row in logger.told[:-1]] == written


def test_a_run_that_fails_is_a_failed_one_there(tmp_path, monkeypatch):
    ended = []
    client = types.SimpleNamespace(
        init=lambda **options: client, log=lambda values, step: None, finish=lambda **how: ended.append(how)
    )
    monkeypatch.setitem(sys.modules, "wandb", client)

    def fail(number):
        if number == 2:
            raise OSError("emulator lost")
        return {}

    with pytest.raises(OSError, match="emulator lost"):
        train(counting(fail), steps=3, run_dir=tmp_path / "a", loggers=(vx.loggers.wandb("tests"),))
    train(counting(lambda number: {}), steps=3, run_dir=tmp_path / "a", resume=True, loggers=(vx.loggers.wandb("t"),))
    assert ended == [{"exit_code": 1}, {}]
