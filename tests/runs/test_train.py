"""`train`: budgets, rows, callbacks, errors, refusals, and what a run leaves on disk."""

import json
import os
import shutil
import signal
import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import volvox as vx
from volvox.report.files import read_log, read_metrics
from volvox.runs import checkpoint

from .conftest import assert_equal_trees, evolution, random_walk, train, without_times


def test_rows_hold_metrics_step_and_time_and_are_on_disk(tmp_path):
    run = train(random_walk(), tmp_path / "a", steps=3)
    rows = read_metrics(tmp_path / "a" / "metrics.jsonl")
    assert rows == run.metrics
    assert [row["generation"] for row in rows] == [1, 2, 3]
    assert all(row["seconds"] >= row["step_seconds"] >= 0 and row["nothing"] is None for row in rows)
    assert (run.interrupted, run.exit_code, run.state["step"]) == (False, 0, 3)
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {".lock", "checkpoints", "config.json", "elite.json", "learning_curve.png", "metrics.jsonl"}
    assert json.loads((tmp_path / "a" / "elite.json").read_text()) == run.algorithm.genome(run.state)
    assert checkpoint.steps(tmp_path / "a" / "checkpoints") == [1, 2, 3]


def test_nothing_is_written_or_printed_unless_asked(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    run = train(random_walk(), steps=2, stop_after=1e-9)
    assert (len(run.metrics), run.run_dir) == (1, None)
    algorithm = random_walk()
    noting = algorithm._replace(step=lambda state, monitor, **_: (monitor({"note": "a"}), algorithm.step(state))[1])
    train(noting, steps=1)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"max_frames": 30}, 3),
        ({"steps": 2, "max_frames": 1e6}, 2),
        ({"max_timesteps": 13}, 3),
        ({"max_timesteps": 1e6, "max_frames": 25}, 3),
        ({"stop_after": 1e-9}, 1),
        ({"steps": 9, "on_step": lambda run: np.float32(run.metrics[-1]["frames"]) > 30}, 4),
        ({"steps": 3, "on_step": lambda run: "yes"}, 3),
    ],
)
def test_a_budget_ends_the_run(options, steps):
    assert len(train(random_walk(), **options).metrics) == steps


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"steps": 2, "resume": True},
        {"steps": 2, "run_dir": ""},
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=r".+"):
        vx.train(random_walk(), **options)
    with pytest.raises(TypeError, match="algorithm"):
        vx.train(vx.GA(), steps=1)  # pyright: ignore


def test_a_budget_needs_its_metric():
    algorithm = random_walk()
    without = algorithm._replace(step=lambda state, **_: (algorithm.step(state)[0], {}))
    with pytest.raises(ValueError, match="frames"):
        train(without, max_frames=100)


def test_a_resumed_run_is_the_straight_run_bit_for_bit(evolved, tmp_path):
    """Of evolution, to the second generation; `random_walk` is resumed below."""
    train(evolution(), tmp_path, steps=1)
    resumed = train(evolution(), tmp_path, steps=2, resume=True)
    assert_equal_trees(resumed.variables("last"), evolved.variables("last"))
    assert resumed.algorithm.genome(resumed.state) == evolved.algorithm.genome(evolved.state)
    assert without_times(resumed.metrics) == without_times(evolved.metrics)
    before, row = resumed.metrics
    assert row["seconds"] == pytest.approx(before["seconds"] + row["step_seconds"], abs=1.0)


def test_checkpoints_are_written_as_often_as_asked_and_at_the_end(tmp_path):
    train(random_walk(), tmp_path, steps=7, checkpoint_every=3, keep_checkpoints=2)
    assert checkpoint.steps(tmp_path / "checkpoints") == [6, 7]


def test_a_directory_with_a_run_is_not_overwritten(tmp_path):
    train(random_walk(), tmp_path, steps=1)
    with pytest.raises(FileExistsError, match="already holds a run"):
        train(random_walk(), tmp_path, steps=2)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_a_run_without_a_step_is_begun_anew(tmp_path):
    def fail(step):
        raise RuntimeError("broken environment")

    with pytest.raises(RuntimeError) as error:
        train(random_walk(hook=fail), tmp_path, steps=1)
    assert "0" in error.value.__notes__[0]
    assert len(train(random_walk(size=4), tmp_path, steps=1).metrics) == 1


def test_other_settings_or_another_seed_are_refused_with_their_differences(tmp_path):
    train(random_walk(), tmp_path, steps=1)
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(ValueError, match=r"algorithm\.size: 3 in the run, 4 now"):
        train(random_walk(size=4), tmp_path, steps=2, resume=True)
    with pytest.raises(ValueError, match="seed"):
        train(random_walk(), tmp_path, seed=1, steps=2, resume=True)
    assert (tmp_path / "config.json").read_text() == before


def row_without_checkpoint(path):
    train(random_walk(), path, seed=5, steps=3, resume=True)
    shutil.rmtree(path / "checkpoints" / "00000003")


def old_elite(path):
    (path / "elite.json").write_text("[1, [2, 0.5]]\n")


def damaged_row(path):
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text(f"{lines[0]}\n?\n")


@pytest.mark.parametrize("leave", [row_without_checkpoint, old_elite, damaged_row])
def test_what_a_kill_or_damage_leaves_is_continued(leave, tmp_path, recwarn):
    """Rows of repeated steps are replaced, and the end is that of a straight run."""
    straight = train(random_walk(), seed=5, steps=6)
    train(random_walk(), tmp_path, seed=5, steps=2)
    leave(tmp_path)
    run = train(random_walk(), tmp_path, seed=5, steps=6, resume=True)
    np.testing.assert_array_equal(run.state["x"], straight.state["x"])
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["generation"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert json.loads((tmp_path / "elite.json").read_text()) == run.algorithm.genome(run.state)
    assert bool(recwarn.list) == (leave is damaged_row)


def test_rows_without_any_checkpoint_are_not_dropped_silently(tmp_path):
    train(random_walk(), tmp_path, steps=2)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match="no checkpoint"):
        train(random_walk(), tmp_path, steps=3, resume=True)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_a_full_disk_is_one_error_and_loses_nothing(tmp_path, monkeypatch):
    from volvox.runs import directory

    def full(path, row, append=directory.append_row):
        if row["generation"] == 3:
            with path.open("a") as file:
                file.write("{")  # the part that fitted
            raise OSError(28, "No space left on device")
        append(path, row)

    with monkeypatch.context() as patch:
        patch.setattr(directory, "append_row", full)
        with pytest.raises(OSError, match="No space left on device") as error:
            train(random_walk(), tmp_path, steps=5)
    assert str(tmp_path) in error.value.__notes__[0]
    assert checkpoint.steps(tmp_path / "checkpoints")[-1] == 2  # a row is on disk before the checkpoint of its step
    assert len(train(random_walk(), tmp_path, steps=5, resume=True).metrics) == 5


def test_a_directory_that_cannot_be_written_is_one_error():
    with pytest.raises(OSError, match="/proc/run"):
        train(random_walk(), "/proc/run", steps=1)


def test_one_process_at_a_time_trains_in_a_directory(tmp_path):
    def again(step):
        train(random_walk(), tmp_path, steps=3, resume=True)

    with pytest.raises(BlockingIOError):
        train(random_walk(hook=again), tmp_path, steps=1)


@pytest.mark.parametrize("ends_workers", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_last_step_and_returns_the_run(number, ends_workers, tmp_path):
    before = signal.getsignal(number)

    def hook(step):
        if step == 3:
            os.kill(os.getpid(), number)
            if ends_workers:
                raise RuntimeError("a worker of the environments has ended")

    run = train(random_walk(hook=hook), tmp_path, steps=9)
    assert (run.interrupted, run.exit_code, len(run.metrics)) == (True, 128 + number, 2)
    assert signal.getsignal(number) is before
    assert checkpoint.steps(tmp_path / "checkpoints")[-1] == 2
    assert len(train(random_walk(), tmp_path, steps=4, resume=True).metrics) == 4


def test_an_error_of_the_users_code_after_a_signal_is_raised(tmp_path):
    def fail(run):
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("an error of the user's code")

    with pytest.raises(RuntimeError, match="user"):
        train(random_walk(), tmp_path, steps=9, on_step=fail)


def test_a_second_signal_has_its_usual_effect(tmp_path):
    def twice(step):
        if step == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(random_walk(hook=twice), tmp_path, steps=9)
    assert len(train(random_walk(), tmp_path, steps=3, resume=True).metrics) == 3


def test_signals_are_left_alone_outside_the_main_thread():
    before, runs = signal.getsignal(signal.SIGINT), []
    thread = threading.Thread(target=lambda: runs.append(train(random_walk(), steps=2)))
    thread.start()
    thread.join()
    assert len(runs[0].metrics) == 2
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("place", ["logger", "callback", "step"])
def test_after_an_error_the_last_good_state_is_saved(place, tmp_path):
    def fail(at, completed_steps):
        if (at, completed_steps) == (place, 2):
            raise RuntimeError("an error of the user's code")

    algorithm = random_walk(hook=lambda step: fail("step", step - 1))
    options = {"loggers": (SimpleNamespace(write=lambda step, row: fail("logger", step), close=lambda: None),)}
    options["on_step"] = lambda run: fail("callback", len(run.metrics))
    with pytest.raises(RuntimeError) as error:
        train(algorithm, tmp_path, steps=9, checkpoint_every=100, **options)
    assert str(tmp_path) in "".join(error.value.__notes__)
    assert checkpoint.steps(tmp_path / "checkpoints")[-1] == 2


def test_loggers_receive_each_row_once_and_earlier_ones_at_the_start(tmp_path):
    seen = []

    def opened(run):
        seen.append([row["generation"] for row in run.rows])
        write = lambda step, row: seen.append((step, row["generation"]))  # noqa: E731
        return SimpleNamespace(write=write, close=lambda: seen.append("closed"))

    train(random_walk(), tmp_path, steps=1, loggers=(opened,))
    train(random_walk(), tmp_path, steps=2, loggers=(opened,), resume=True)
    assert seen == [[], (1, 1), "closed", [1], (2, 2), "closed"]


def test_a_csv_file_has_all_rows_and_columns(tmp_path):
    """Also those of a resumed run, without the rows that it repeats, and columns that come later."""
    run = vx.loggers.LoggedRun(tmp_path, "probe", "generation", {}, [{"a": 1}, {"a": 2, "each": [1, 2]}])
    (tmp_path / "metrics.csv").write_text("a\n1\n2\n3\n")
    logger = vx.loggers.csv()(run)
    logger.write(3, {"a": 0.5, "b": "x, y"})
    logger.close()
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines == ["a,each,b", "1,,", '2,"[1, 2]",', '0.5,,"x, y"']


def test_arrays_of_each_step_are_logged_by_a_callback(tmp_path):
    run = train(random_walk(), tmp_path, steps=2, on_step=vx.runs.log_arrays)
    logged = read_log(tmp_path / "log")
    assert list(logged) == [1, 2]
    np.testing.assert_array_equal(logged[2]["x"], run.state["x"])
    with pytest.raises(ValueError, match="run_dir"):
        train(random_walk(), steps=1, on_step=vx.runs.log_arrays)


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    train(random_walk(), tmp_path, steps=1)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    second = random_walk(max_over_processes=lambda number: number)
    run = train(second, tmp_path, steps=3, resume=True, loggers=None)
    assert (len(run.metrics), run.run_dir) == (3, None)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == files
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_processes_fail_together_where_a_run_begins(tmp_path):
    with pytest.raises(RuntimeError, match="another process failed"):
        train(random_walk(max_over_processes=lambda number: 1), tmp_path, steps=1)
    told = []

    def fail(run):
        raise OSError("no network")

    algorithm = random_walk(max_over_processes=lambda number: told.append(number) or number)
    with pytest.raises(OSError, match="network"):
        train(algorithm, tmp_path, steps=1, loggers=(fail,))
    assert told[-1] is True
    train(random_walk(), tmp_path, steps=1, resume=True)
    with pytest.raises(FileExistsError):
        train(algorithm, tmp_path, steps=1)
    assert told[-1] is True


def test_an_algorithm_of_one_process_is_refused_in_several(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="one process"):
        train(random_walk(), steps=1)


def test_compiled_programs_are_kept_unless_jax_already_does(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        train(random_walk(), steps=1)
        assert str(jax.config.jax_compilation_cache_dir).startswith(str(tmp_path))
        jax.config.update("jax_compilation_cache_dir", "elsewhere")
        train(random_walk(), steps=1)
        assert jax.config.jax_compilation_cache_dir == "elsewhere"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
