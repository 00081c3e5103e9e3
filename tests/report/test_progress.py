import io
import time

import pytest

from volvox.report.progress import Progress, figures

METRICS = {
    "generation": 1,
    "training_best": 12345.5,
    "training_mean": 100.0,
    "elite_score": 9000.0,
    "frames_per_second": 3600.4,
    "occupancy": 0.973,
    "frames": 10,
    "note": "text",
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_figures_are_in_order():
    assert figures(METRICS, skip=["generation"]) == (
        "elite score 9,000, training best 12,345.5, training mean 100, frames/s 3,600, occupancy 0.973"
    )
    scattered = {"x_per_second": 2.0, "elite_standard_error": 1.0, "a_loss": 0.5, "test_score": 3, "evaluation_mean": 4}
    assert figures(scattered) == "test score 3, evaluation mean 4, x/s 2, a loss 0.5, elite standard error 1"


def test_any_number_is_a_figure_and_nothing_else():
    assert figures({"loss": 0.5, "flag": True, "text": "x", "list": [1], "none": None, "b": 2}) == "loss 0.5, b 2"
    assert figures({"training_best": None}) == ""
    assert figures({"frames": 1, "seconds": 2, "step_seconds": 3, "new_figure": 4}) == "new figure 4"


def test_a_line_holds_as_many_figures_as_there_is_room_for():
    many = {f"figure_{i}": i for i in range(100)} | {"elite_score": 1.0}
    line = figures(many, width=40)
    assert line == "elite score 1, figure 0 0, figure 1 1"
    assert figures({"a_long_name": 1}, width=3) == "a long name 1"


def test_plain_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    shown = Progress(3, done=1, stream=stream)
    shown.inside({"phase": "training", "done": 1, "total": 10})
    shown.step(2, METRICS)
    shown.step(3, METRICS)
    shown.note("a note")
    shown.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("generation 2/3  elite score 9,000, training best 12,345.5")
    assert "left" in lines[0]
    assert "left" not in lines[1]
    assert lines[2] == "a note"


def test_silence_but_for_notes():
    stream = Terminal()
    shown = Progress(3, enabled=False, stream=stream)
    shown.inside({"phase": "training"})
    shown.step(1, METRICS)
    shown.note("a note")
    shown.close()
    assert stream.getvalue() == "a note\n"


def test_a_bar_in_a_terminal():
    stream = Terminal()
    shown = Progress(3, done=1, step_name="round", stream=stream)
    shown.inside({"phase": "compiling"})
    shown.inside({"phase": "training", "done": 5, "total": 10, "stepped": 50, "frames_per_second": 3600.0})
    shown.inside({"phase": "training", "done": 10, "total": 10})
    shown.inside({"phase": "validation", "done": 1, "total": 4})
    shown.step(2, METRICS)
    shown.note("a note")
    shown.step(3, METRICS)
    shown.close()
    text = stream.getvalue()
    for part in ("round:", "compiling", "training:", "5/10", "3,600", "validation", "1/4", "2/3", "3/3", "a note\n"):
        assert part in text, part
    assert "stepped" not in text


@pytest.mark.parametrize("total", [1, 2])
def test_a_run_that_ends_early_leaves_the_bar(total):
    stream = Terminal()
    shown = Progress(total, stream=stream)
    shown.inside({})
    shown.close()
    assert f"0/{total}" in stream.getvalue()


def test_time_left_is_no_more_than_the_time_allowed():
    stream = io.StringIO()
    shown = Progress(1_000_000, stop_after=0.5, stream=stream)
    time.sleep(0.01)
    shown.step(1, {"elite_score": 1.0})
    assert " 00:00 left" in stream.getvalue()
