"""Kills, signals and stops at any moment: a run loses at most the step in progress."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from volvox import checkpoint
from volvox._monitor import Monitor

HERE = Path(__file__).parent
SCRIPT = """
import importlib.util, itertools, sys, time
sys.path.insert(0, {experiments!r})
from launch import exit_code
spec = importlib.util.spec_from_file_location("small", {conftest!r})
small = importlib.util.module_from_spec(spec)
spec.loader.exec_module(small)

def main():
    algorithm = small.MAKERS[{name!r}]()
    step, count = algorithm.step, itertools.count(1)

    def said(state, *, monitor=None):
        print("step", flush=True)
        time.sleep({pause} if next(count) > 2 else 0)
        return step(state, monitor=monitor)

    algorithm = algorithm._replace(step=said)
    run = small.train(algorithm, steps=100_000, run_dir={run_dir!r}, resume=True, loggers=())
    return run.exit_code

sys.exit(exit_code(main))
"""


def start(name, run_dir, *, pause=0.0):
    """Trains in a process that prints `step` whenever one begins; from the third on each first sleeps for `pause`."""
    code = textwrap.dedent(SCRIPT).format(
        experiments=str(HERE.parents[1] / "experiments"),
        conftest=str(HERE / "conftest.py"),
        name=name,
        pause=pause,
        run_dir=str(run_dir),
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], **pipes, start_new_session=True)


def wait_for_steps(process, number):
    for _ in range(number):
        assert process.stdout.readline() == "step\n", process.communicate()[1]


@pytest.mark.stopwatch
@pytest.mark.slow_except("ga-1")
@pytest.mark.parametrize(
    ("name", "kills"),
    [*((name, 1) for name in ("ga", "es", "novelty", "a3c", "ppo", "primal-dual")), ("ga", 4), ("td3", 4)],
)
def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_been(tmp_path, make, quietly, name, kills):
    """Moments are drawn anew for each algorithm; test_training.py kills a small one many times."""
    draw, run_dir, saved = random.Random(f"{name}{kills}"), tmp_path / "a", 0
    for _ in range(kills):
        process = start(name, run_dir)
        wait_for_steps(process, 3)
        time.sleep(draw.uniform(0.0, 0.3))
        process.kill()
        begun = saved + 3 + process.communicate()[0].count("step")
        saved = checkpoint.steps(run_dir / "checkpoints")[-1]
        assert begun - 1 <= saved <= begun
    run = quietly(make(name), steps=saved + 1, run_dir=run_dir, resume=True)
    straight = quietly(make(name), steps=saved + 1)
    times = ("second", "share_", "speed_over_turns")
    rows = [
        [{k: v for k, v in row.items() if not any(word in k for word in times)} for row in one.metrics]
        for one in (run, straight)
    ]
    assert rows[0] == rows[1]


@pytest.mark.slow_except("SIGSTOP-SIGCONT-SIGTERM-143")
@pytest.mark.parametrize(
    ("signals", "code"),
    [([signal.SIGTERM], 143), ([signal.SIGINT], 130), ([signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM], 143)],
    ids=lambda value: "-".join(one.name for one in value) if isinstance(value, list) else None,
)
def test_signals_end_a_run_without_a_traceback_and_it_goes_on(tmp_path, make, quietly, signals, code):
    process = start("hill", tmp_path / "a")
    wait_for_steps(process, 3)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.01)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert "interrupted after generation" in errors
    saved = checkpoint.steps(tmp_path / "a" / "checkpoints")[-1]
    run = quietly(make("hill"), steps=saved + 2, run_dir=tmp_path / "a", resume=True)
    assert (run.state["x"] == quietly(make("hill"), steps=saved + 2).state["x"]).all()


@pytest.mark.slow
def test_a_second_press_ends_a_run_within_a_step_and_it_goes_on(tmp_path, make, quietly):
    process = start("hill", tmp_path / "a", pause=600.0)
    wait_for_steps(process, 3)
    process.send_signal(signal.SIGINT)
    time.sleep(1.5)  # two that come together are one press
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "stopped at once" in errors
    assert "Traceback" not in errors
    assert checkpoint.steps(tmp_path / "a" / "checkpoints")[-1] == 2
    run = quietly(make("hill"), steps=4, run_dir=tmp_path / "a", resume=True)
    assert (run.state["x"] == quietly(make("hill"), steps=4).state["x"]).all()


def test_a_second_press_whose_interrupt_is_dropped_comes_again(monkeypatch):
    """Python prints and drops what callbacks of its garbage collector raise; jaxlib has one, which compiling calls."""

    def _xla_gc_callback():
        monitor._note(signal.SIGINT, sys._getframe())

    monkeypatch.setattr("volvox._monitor._AGAIN", 0.1)
    with contextlib.ExitStack() as stack:
        monitor = Monitor(None, stack)
        signal.raise_signal(signal.SIGINT)
        monitor._since -= 10.0
        _xla_gc_callback()  # raises nothing
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10.0)
        _xla_gc_callback()
    time.sleep(0.3)  # nothing comes after the run


def test_a_clock_that_is_set_back_changes_nothing(tmp_path, make, quietly, monkeypatch):
    times = iter(range(10**6, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(times)))
    run = quietly(make("hill"), steps=3, run_dir=tmp_path / "a", loggers=None)
    monkeypatch.undo()
    seconds = [row["seconds"] for row in run.metrics]
    assert seconds == sorted(seconds)
    assert all(row["step_seconds"] >= 0 for row in run.metrics)
    assert len(quietly(make("hill"), steps=4, run_dir=tmp_path / "a", resume=True).metrics) == 4


def test_a_signal_while_the_disk_is_slow_does_not_cut_a_checkpoint(tmp_path, make, quietly, monkeypatch):
    calls = []

    def slow(descriptor, sync=os.fsync):
        calls.append(descriptor)
        if len(calls) == 40:
            signal.raise_signal(signal.SIGTERM)
        time.sleep(0.001)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    run = quietly(make("hill"), steps=1000, run_dir=tmp_path / "a")
    assert (run.interrupted, run.exit_code) == (True, 143)
    monkeypatch.undo()
    steps = len(run.metrics) + 1
    again = quietly(make("hill"), steps=steps, run_dir=tmp_path / "a", resume=True)
    assert (again.state["x"] == quietly(make("hill"), steps=steps).state["x"]).all()


TUNING = """
import os, time
from volvox import tuning

def forever():
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    tuning._in_a_process(forever)
"""


@pytest.mark.slow
def test_a_trial_of_tuning_ends_with_the_process_that_started_it(tmp_path):
    path = tmp_path / "tuning_script.py"
    path.write_text(TUNING)
    process = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)
    trial = int(process.stdout.readline())
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{trial}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{trial}").exists()


@pytest.fixture
def make_train(tmp_path):
    """Starts `make train` with a Python that is a line of shell."""

    def start(line):
        (tmp_path / ".installed").touch()
        (tmp_path / "python").write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "python").chmod(0o755)
        command = ["make", "--no-print-directory", "-C", str(HERE.parents[1]), "train"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # A shell's background job ignores SIGINT, and so would what it starts.
        code = "import os, signal as s, sys; s.signal(s.SIGINT, s.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
        command = [sys.executable, "-c", code, *command, f"VENV={tmp_path}", f"BIN={tmp_path}"]
        return subprocess.Popen(command, start_new_session=True, **pipes)

    return start


@pytest.mark.parametrize(("code", "seen"), [(0, 0), (130, 0), (1, 2), (2, 2), (143, 2)])
def test_make_is_quiet_about_an_interrupt_and_about_nothing_else(make_train, code, seen):
    process = make_train(f"exit {code}")
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (seen, "")
    assert ("Error" in errors) == bool(seen)


def test_make_waits_for_a_run_to_be_saved_after_ctrl_c(make_train):
    line = "trap 'sleep 1; echo saved; exit 130' INT\necho begun\nwhile true; do sleep 0.05; done"
    process = make_train(line)
    assert process.stdout.readline() == "begun\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, errors = process.communicate(timeout=60)
    assert out == "saved\n"
    assert "Error" not in errors
