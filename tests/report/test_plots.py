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


N = 6


def logged(number, *, parents, seeds, bases, size=2):
    """A generation of members `seeds` from `parents`; bases are (parent, seed, scale, initial), the elite last."""
    random = np.random.RandomState(number)
    arrays = {
        "parent": np.array(parents),
        "seed": np.array(seeds),
        "initial": np.full(N, number == 1),
        "fitness": 10.0 * number + np.arange(N),
        "behavior": random.rand(N, size).astype(np.float32),
    }
    names = ("base_parent", "base_seed", "base_scale", "base_initial")
    return arrays | {name: np.array(column) for name, column in zip(names, zip(*bases, strict=True), strict=True)}


@pytest.fixture
def run_dir(tmp_path):
    generations = {
        # Bases 0 and 1 are parents, base 2 the elite: the members of seeds 11 and 12, and 12 again.
        1: {
            "parents": [0] * N,
            "seeds": range(10, 16),
            "bases": [(0, 11, 1, True), (0, 12, 1, True), (0, 12, 1, True)],
        },
        # The elite is carried over: scale 0.
        2: {
            "parents": [0, 1, 1, 0, 1, 0],
            "seeds": range(20, 26),
            "bases": [(1, 22, 0.1, False), (0, 25, 0.1, False), (2, 0, 0, False)],
        },
        3: {
            "parents": [0, 0, 1, 1, 0, 1],
            "seeds": range(30, 36),
            "bases": [(0, 34, 0.1, False), (2, 0, 0, False), (0, 34, 0.1, False)],
        },
    }
    for number, arrays in generations.items():
        files.write_log(tmp_path / "log", number, logged(number, **arrays))
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
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["member", "became a parent", "elite"]
    assert figure.get_supxlabel() == "behaviour, first number"


def test_runs_without_behaviours_of_two_numbers_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        cloud(tmp_path)
    arrays = logged(1, parents=[0] * N, seeds=range(N), bases=[(0, 0, 1, True)], size=1)
    files.write_log(tmp_path / "log", 1, {name: x for name, x in arrays.items() if not name.startswith("base")})
    with pytest.raises(ValueError, match=tmp_path.name):
        cloud(tmp_path)
