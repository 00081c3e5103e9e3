"""Learning curves of made-up rows, and pictures of a population from a log of known members."""

import numpy as np
import pytest

from volvox.report import cloud, files, learning_curve
from volvox.report.plots import maze_walls


def rows_of(count):
    return [
        {
            "generation": i + 1,
            "frames": 24_000_000 * (i + 1),
            "seconds": 6_000.0 * (i + 1),
            "training_best": 1000.0 + 300 * i,
            "training_mean": 200.0 + 100 * i,
            "training_std": 80.0 + 5 * i,
            "validation_mean": None if i == 1 else 800.0 + 250 * i,
            "validation_standard_error": 60.0,
        }
        for i in range(count)
    ]


def titles(figure):
    return [axes.get_title() for axes in figure.axes[2:]]


@pytest.mark.parametrize("count", [0, 1, 2, 2000])
def test_a_png_of_any_number_of_rows(tmp_path, count):
    learning_curve(rows_of(count), tmp_path / "new" / "curve.png", title="Frostbite")
    assert (tmp_path / "new" / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_scores_are_drawn_against_frames_and_time_with_bands():
    by_frames, by_time = learning_curve(rows_of(10), random=65.2).axes
    labels = ["training best", "training mean (± std. deviation)", "validation mean (± std. error)"]
    assert [line.get_label() for line in by_frames.lines] == [*labels, "random play (published)"]
    np.testing.assert_array_equal(by_frames.lines[1].get_xdata(), 24e6 * np.arange(1, 11))
    np.testing.assert_array_equal(by_frames.lines[1].get_ydata(), 200 + 100 * np.arange(10))
    np.testing.assert_allclose(by_time.lines[0].get_xdata(), 6000 * np.arange(1, 11) / 3600)
    assert by_time.get_xlabel() == "wall-clock time (hours)"
    assert len(by_frames.lines[2].get_xdata()) == 9  # one value is missing
    assert set(by_frames.lines[3].get_ydata()) == {65.2}
    assert by_frames.collections[0].get_paths()[0].vertices[:, 1].min() == 120.0


def test_what_varies_has_a_panel_and_there_are_at_most_nine():
    rows = [
        {
            "iteration": i,
            "update": 5 * i,
            "training_timesteps": i,
            "lag": 1.0,
            "loss": 0.1 * i,
            "loss_std": 0.5,
            "x": "a",
        }
        for i in range(5)
    ]
    assert titles(learning_curve(rows)) == ["loss"]
    many = [{f"metric_{n}": float(i * n) for n in range(1, 20)} | {"test_score": i} for i in range(3)]
    figure = learning_curve(many)
    assert len(figure.axes) == 9
    assert [line.get_label() for line in figure.axes[0].lines] == ["test score"]


def test_rows_without_frames_are_drawn_against_steps():
    axes = learning_curve([{"return_mean": 1.0}, {"return_mean": None}, {"return_mean": 2.0}]).axes[0]
    assert axes.get_xlabel() == "steps"
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [(1, 1), (3, 2)])


def test_notebooks_show_the_figure():
    assert learning_curve(rows_of(2))._repr_png_().startswith(b"\x89PNG")


def logged(number, elite, size=2):
    """A generation of six: members 1 and 2 become parents; the elite is member 2, or of an earlier generation."""
    random, seeds = np.random.RandomState(number), 10 * number + np.arange(6)
    return {
        "seed": seeds,
        "fitness": seeds + 0.5,
        "behavior": random.rand(6, size).astype(np.float32),
        "base_seed": np.array([*seeds[[1, 2]], elite]),
        "base_scale": np.array([0.1, 0.1, 0.0]),
        "base_initial": np.full(3, number == 1),
    }


@pytest.fixture
def run_dir(tmp_path):
    for number, elite in ((1, 12), (2, 0), (3, 0)):
        files.write_log(tmp_path / "log", number, logged(number, elite))
    return tmp_path


def test_cloud_shows_the_generations_and_marks_the_selected(run_dir):
    figure = cloud(run_dir, run_dir / "cloud.png", panels=2, background=maze_walls)
    assert (run_dir / "cloud.png").stat().st_size > 5_000
    first, last = (axes for axes in figure.axes if axes.get_title().startswith("generation"))
    assert [first.get_title(), last.get_title()] == ["generation 1", "generation 3"]
    points, selected, elite = first.collections
    behaviors = files.read_log(run_dir / "log")[1]["behavior"]
    np.testing.assert_allclose(points.get_offsets(), behaviors)
    np.testing.assert_allclose(selected.get_offsets(), behaviors[[1, 2]])
    np.testing.assert_allclose(elite.get_offsets(), behaviors[[2]])
    assert len(last.collections[-1].get_offsets()) == 0  # the elite is older
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["member", "became a parent", "elite"]
    assert figure.get_supxlabel() == "behaviour, first number"


def test_runs_without_behaviours_of_two_numbers_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        cloud(tmp_path)
    files.write_log(tmp_path / "log", 1, logged(1, 12, size=1))
    with pytest.raises(ValueError, match=tmp_path.name):
        cloud(tmp_path)
