"""Pictures of a population, from a log of known members."""

import numpy as np
import pytest

from volvox.report import files, population

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
    figure = population.cloud(run_dir, run_dir / "cloud.png", panels=2, background=population.maze_walls)
    assert (run_dir / "cloud.png").stat().st_size > 5_000
    first, last = (axes for axes in figure.axes if axes.get_title().startswith("generation"))
    assert [first.get_title(), last.get_title()] == ["generation 1", "generation 3"]
    points, selected, elite = first.collections[1:4]
    behaviors = files.read_log(run_dir / "log")[1]["behavior"]
    np.testing.assert_allclose(points.get_offsets(), behaviors)
    np.testing.assert_allclose(selected.get_offsets(), behaviors[[1, 2]])
    np.testing.assert_allclose(elite.get_offsets(), behaviors[[2]])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["member", "became a parent", "elite"]
    assert figure.get_supxlabel() == "behaviour, first number"


def test_many_dimensions_are_projected_on_the_widest(tmp_path):
    arrays = logged(1, parents=[0] * N, seeds=range(N), bases=[(0, 0, 1, True)], size=5)
    arrays["behavior"] = np.outer(np.arange(N), np.eye(5)[3]) * 100 + arrays["behavior"]
    files.write_log(tmp_path / "log", 1, arrays)
    figure = population.cloud(tmp_path)
    assert figure.get_supylabel() == "behaviour, second principal direction"
    across = np.asarray(figure.axes[0].collections[0].get_offsets())[:, 0]
    assert abs(np.corrcoef(across, np.arange(N))[0, 1]) > 0.999


def test_runs_without_behaviours_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        population.cloud(tmp_path)
    arrays = logged(1, parents=[0] * N, seeds=range(N), bases=[(0, 0, 1, True)], size=0)
    files.write_log(tmp_path / "log", 1, {name: x for name, x in arrays.items() if not name.startswith("base")})
    with pytest.raises(ValueError, match=tmp_path.name):
        population.cloud(tmp_path)
