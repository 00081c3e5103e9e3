import io
import os
import sys

import pytest

from volvox.runs import progress
from volvox.runs.progress import Progress, summarize

ROW = {
    "generation": 1,
    "training_best": 12345.5,
    "training_mean": 100.0,
    "elite_score": 9000.0,
    "validation_mean": 9100.0,
    "frames_per_second": 3600.4,
    "training_steps_per_second": 700.0,
    "occupancy": 0.973,
    "frames": 10,
    "note": "text",
}


@pytest.fixture
def clock(monkeypatch):
    """Time that a test sets."""

    class Clock:
        now = 1_000.0

    monkeypatch.setattr(progress.time, "monotonic", lambda: Clock.now)
    return Clock


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_summary_begins_with_the_most_important_metrics():
    text = summarize(ROW, step_name="generation", frame_skip=4)
    assert text == "elite 9,000, best 12,346, mean 100, 900 timesteps/s, occupancy 0.973"
    assert summarize(ROW, width=22) == "elite 9,000"
    assert (
        summarize({"loss_std": 1.0, "x": 2.0, "a_loss": 0.5, "flag": True, "none": None})
        == "a loss 0.5, x 2, loss std 1"
    )


def test_a_new_elite_is_named():
    """Its score is not known before it is validated again."""
    assert summarize({"elite_score": None, "validation_mean": 240.0, "elite_is_new": True}) == "new elite 240"
    assert summarize({"validation_mean": 3.0}) == "validation mean 3"


def test_a_log_has_a_line_for_each_step(clock):
    stream = io.StringIO()
    shown = Progress(3, done=1, frame_skip=4, stream=stream)
    shown.inside({"phase": "compiling"})
    shown.inside({"phase": "training", "done": 1, "total": 10, "note": "a note"})
    clock.now += 61
    shown.step(2, ROW)
    shown.close()
    compiling, note, line = stream.getvalue().splitlines()
    assert "compiling" in compiling
    assert note == "a note"
    assert line == "generation 2/3  elite 9,000, best 12,346, mean 100  1:01, 1:01 left"


def test_a_terminal_has_a_bar_below_the_lines(clock):
    stream = Terminal()
    shown = Progress(4, done=1, stream=stream)
    clock.now += 10
    shown.inside({"phase": "training", "done": 5, "total": 10, "step_done": 1, "step_total": 2, "actors": 3})
    bar = stream.getvalue().split("\r")[-1]
    assert bar.startswith(" 38%|")  # 1.5 of 4 steps
    assert "generation 2: training 5/10, 3 actors, 0:50 left" in bar
    shown.step(2, ROW)
    shown.close()
    assert "generation 2/4  elite 9,000" in stream.getvalue()


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"stop_after": 300.0}, "3:30 left"),
        ({"max_frames": 1_000}, "2:15 left"),
        ({"stop_after": 180.0, "max_frames": 1_000}, "1:30 left"),
        ({"total": 11}, "15:00 left"),
    ],
)
def test_the_time_left_is_that_of_the_limit_that_ends_the_run_first(limits, left, clock):
    stream = io.StringIO()
    shown = Progress(**{"total": None, "stream": stream, **limits})
    clock.now += 90
    shown.step(1, {"frames": 400})
    assert stream.getvalue().strip().endswith(f"1:30, {left}")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_disabled_display_prints_nothing(stream, capsys):
    shown = Progress(3, enabled=False, stream=(written := stream()))
    shown.inside({"phase": "compiling", "note": "a note"})
    shown.step(1, ROW)
    shown.note("a note")
    shown.close()
    assert written.getvalue() == ""
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("stream", ["broken", "closed", None])
def test_a_stream_that_is_gone_ends_nothing(stream, monkeypatch):
    class Broken(Terminal):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    with open(os.devnull, "w") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", {"broken": Broken(), "closed": closed, None: None}[stream])
    shown = Progress(3)
    shown.note("begins")
    shown.inside({"phase": "training", "done": 1, "total": 2})
    shown.step(1, ROW)
    shown.close()
