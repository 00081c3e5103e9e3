import io
import os
import re
import sys
import types

import pytest

from volvox.report import progress
from volvox.report.progress import Progress, clock, figures, in_notebook, short

METRICS = {
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


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def fileno(self):
        return 7


class Clock:
    """Time that a test sets."""

    def __init__(self, monkeypatch):
        self.now = 1_000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def at(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def columns(monkeypatch):
    """Sets the width that terminals say they have."""

    def set_(number):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(number))
        monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((number, 24)))

    return set_


def screen(text):
    """What a terminal shows after a text with carriage returns and erased lines."""
    lines = [""]
    for part in re.split(r"(\r\x1b\[2K|\n)", text):
        if part == "\n":
            lines.append("")
        elif part == "\r\x1b[2K":
            lines[-1] = ""
        else:
            lines[-1] += part
    return lines


def test_figures_are_in_order():
    assert figures(METRICS, skip=["generation"], frame_skip=4) == (
        "elite 9000, best 12.35k, mean 100, 900 timesteps/s, occupancy 0.973"
    )
    scattered = {"x": 2.0, "elite_standard_error": 1.0, "a_loss": 0.5, "test_score": 3, "evaluation_mean": 4}
    assert figures(scattered) == "test 3, evaluation 4, a loss 0.5, x 2, elite standard error 1"


def test_a_new_elite_is_called_so():
    """Its score is not known before it is validated again; what chose it is biased, and is not its score."""
    kept = {"elite_score": 200.0, "validation_mean": 190.0, "elite_is_new": False}
    new = {"elite_score": None, "validation_mean": 240.0, "elite_is_new": True, "training_mean": 100.0}
    assert figures(kept) == "elite 200"
    assert figures(new) == "new elite 240, mean 100"
    assert figures({"validation_mean": 3.0}) == "validation 3"


def test_any_number_is_a_figure_and_nothing_else():
    assert figures({"loss": 0.5, "flag": True, "text": "x", "list": [1], "none": None, "b": 2}) == "loss 0.5, b 2"
    assert figures({"training_best": None}) == ""
    assert figures({"frames": 1, "seconds": 2, "step_seconds": 3, "new_figure": 4}) == "new figure 4"


def test_a_line_holds_as_many_figures_as_there_is_room_for():
    many = {f"figure_{i}": i for i in range(100)} | {"elite_score": 1.0}
    assert figures(many, width=40) == "elite 1, figure 0 0, figure 1 1"
    assert figures({"a_long_name": 1}, width=3) == "a long name 1"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0, "0"), (0.12345, "0.1235"), (-21, "-21"), (133.3333, "133.3"), (9_999, "9999"), (9_999.6, "10k")],
        *[(12_345, "12.35k"), (999_960, "1M"), (1.5e6, "1.5M"), (6e9, "6G"), (1e18, "1e+18")],
    ],
)
def test_numbers_have_at_most_four_digits(value, text):
    assert short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *[(0, "0:00"), (7.4, "0:07"), (59.6, "1:00"), (3_723, "1:02:03"), (172_799, "47:59:59"), (1e6, "11 d 13 h")],
        *[(3e6, "34 d"), (5e7, "1.58 years"), (1e11, "3170 years"), (1e15, "31.7M years")],
    ],
)
def test_durations(seconds, text):
    assert clock(seconds) == text


def test_plain_lines_where_there_is_no_terminal(at):
    stream = io.StringIO()
    shown = Progress(3, done=1, frame_skip=4, stream=stream)
    shown.inside({"phase": "training", "done": 1, "total": 10})
    at.now += 61
    shown.step(2, METRICS)
    at.now += 61
    shown.step(3, METRICS)
    shown.note("a note")
    shown.close()
    assert stream.getvalue().splitlines() == [
        "generation 2/3  elite 9000, best 12.35k, mean 100  1:01, 1:01 left",  # no room for more
        "generation 3/3  elite 9000, best 12.35k, mean 100, 900 timesteps/s  2:02",
        "a note",
    ]


def test_a_line_fits_eighty_columns():
    stream = io.StringIO()
    Progress(1_000_000, stop_after=1e5, stream=stream).step(999_999, {f"figure_{i}": 1e5 / 3 for i in range(50)})
    (line,) = stream.getvalue().splitlines()
    assert 60 < len(line) < 80


def test_before_the_first_row_is_said_what_is_waited_for(at):
    stream = io.StringIO()
    shown = Progress(3, stream=stream)
    shown.inside({"phase": "compiling"})
    assert stream.getvalue() == "generation 1: compiling first, which takes some 5 to 30 seconds\n"
    for steps in (0, 1_000, 2_000, 3_000, 4_000):
        shown.inside({"phase": "training", "done": 0, "total": 8, "stepped": steps} | share(steps, 20_000))
        at.now += 1
    assert stream.getvalue().splitlines()[1:] == ["generation 1: takes about 0:20 at 1000 timesteps/s"]
    shown.step(1, METRICS)
    shown.inside({"phase": "compiling"})
    shown.inside({"phase": "training"} | share(4_000, 20_000))
    assert len(stream.getvalue().splitlines()) == 3


@pytest.mark.parametrize(
    ("limits", "years"),
    [
        ({"max_frames": 10**15}, "7920 years"),
        ({"total": 10**9}, "634 years"),
        ({"total": 10**9, "stop_after": 300.0}, None),
        ({"total": 10**5}, None),  # 23 days
    ],
    ids=str,
)
def test_a_run_that_would_take_centuries_is_told_before_its_first_row(at, limits, years):
    stream = io.StringIO()
    shown = Progress(**{"total": None} | limits, frame_skip=4, stream=stream)
    for steps in (0, 1_000, 2_000, 3_000):
        shown.inside({"phase": "training", "stepped": steps} | share(steps, 20_000))
        at.now += 1
    shown.step(1, {"frames": 80_000})
    told = [line for line in stream.getvalue().splitlines() if "what is left takes" in line]
    expected = [f"at this rate what is left takes {years}: ask for less, or set a limit of minutes"]
    assert told == (expected if years else [])


def test_the_time_before_anything_is_played_is_not_measured(at):
    stream = io.StringIO()
    shown = Progress(3, stream=stream)
    for steps in (*[0] * 60, 1_000, 2_000, 3_000, 4_000):
        shown.inside({"phase": "training", "done": 0, "total": 8, "stepped": steps} | share(steps, 20_000))
        at.now += 1
    assert stream.getvalue() == "generation 1: takes about 0:20 at 1000 timesteps/s\n"


def share(done, total):
    return {"step_done": done, "step_total": total}


def test_silence_but_for_notes(columns):
    columns(80)
    stream = Terminal()
    shown = Progress(3, enabled=False, stream=stream)
    shown.inside({"phase": "compiling"})
    shown.step(1, METRICS)
    shown.note("a note")
    shown.close()
    assert stream.getvalue() == "a note\n"


def test_a_terminal_keeps_a_line_a_step_and_redraws_the_last(at, columns):
    columns(60)
    stream = Terminal()
    shown = Progress(4, done=1, step_name="round", frame_skip=4, stream=stream)
    at.now += 10
    within = {"phase": "training", "done": 5, "total": 10, "stepped": 50, "frames_per_second": 3600.0}
    shown.inside(within | share(1, 2))
    assert screen(stream.getvalue()) == ["[########............]  38%  round 2: training 5/10, 900 ti"]
    shown.step(2, METRICS)
    shown.note("a note")
    line, note, status = screen(stream.getvalue())
    assert line.startswith("round 2/4  elite 9000, ")
    assert note == "a note"
    assert status.startswith("[########")
    shown.close()
    assert screen(stream.getvalue()) == [line, note, ""]


def test_the_last_line_counts_actors(columns):
    columns(100)
    stream = Terminal()
    shown = Progress(4, stream=stream)
    shown.inside({"phase": "training", "done": 5, "total": 10, "actors": 3})
    assert "training 5/10, 3 actors" in screen(stream.getvalue())[-1]


def test_a_terminal_of_unknown_width_has_plain_lines(columns):
    columns(0)
    stream = Terminal()
    shown = Progress(3, stream=stream)
    shown.inside({"phase": "training", "done": 1, "total": 2})
    shown.step(1, METRICS)
    shown.close()
    assert "\r" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    ("limits", "bar", "left"),
    [
        ({"stop_after": 300.0}, "[######..............]  30%", "3:30 left"),
        ({"max_frames": 1_000}, "[########............]  40%", "2:15 left"),
        ({"stop_after": 300.0, "max_frames": 1_000}, "[########............]  40%", "2:15 left"),
        ({"stop_after": 180.0, "max_frames": 1_000}, "[##########..........]  50%", "1:30 left"),
        ({}, "[....................]   0%", "11 d 13 h left"),
    ],
)
def test_the_budget_that_ends_first_drives_bar_and_time_left(limits, bar, left, at, columns):
    columns(80)
    stream = Terminal()
    shown = Progress(11_111, frames=0, stream=stream, **limits)
    at.now += 90
    shown.step(1, {"frames": 400})
    shown.inside({"phase": "training"})
    line, status = screen(stream.getvalue())
    assert status.startswith(bar)
    assert status.endswith(left)
    assert line.endswith(f"1:30, {left}")
    assert line.startswith("generation 1  " if limits else "generation 1/11111  ")


def test_a_notebook_has_one_text_that_stays_readable(monkeypatch):
    outputs = []

    class Output:
        def update(self, data, raw):
            assert raw
            outputs[-1] = data["text/plain"]

    def display(data, raw, display_id):
        assert raw
        assert display_id
        outputs.append(data["text/plain"])
        return Output()

    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    shown = Progress(2)
    shown.inside({"phase": "training", "done": 1, "total": 2})
    assert "generation 1: training 1/2" in outputs[0]
    shown.step(1, {"elite_score": 3.0})
    shown.close()
    (text,) = outputs
    assert re.fullmatch(r"generation 1/2  elite 3  0:00(, 0:00 left)?", text)


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "gone"), ValueError("closed file")])
def test_a_stream_that_is_gone_ends_nothing(error):
    class Gone(io.StringIO):
        def write(self, text):
            written.append(text)
            raise error

    written = []
    display = Progress(3, stream=Gone(), done=0, frames=0, step_name="generation", enabled=True)
    display.note("begins")
    display.inside({"phase": "training", "done": 1, "total": 2})
    display.step(1, {"frames": 10})
    display.close()
    assert written == ["begins"]  # nothing more is tried


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_program_without_a_stream_of_errors_runs(monkeypatch, stream):
    closed = open(os.devnull, "w")  # noqa: SIM115
    closed.close()
    monkeypatch.setattr(sys, "stderr", None if stream is None else closed)
    shown = Progress(3)
    shown.note("a")
    shown.step(1, METRICS)
    shown.close()
    assert shown._now == (1.0, 10.0)  # steps and frames


def test_colabs_shell_is_a_notebook(monkeypatch):
    shell = type("Shell", (type("ZMQInteractiveShell", (), {}),), {})()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook()
