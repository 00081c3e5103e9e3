import sys

import numpy as np
import pytest

from volvox.report.plots import learning_curve


def _rows(count):
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
            **({"test_score": 900.0 + 240 * i, "test_standard_error": 20.0} if i == count - 1 else {}),
        }
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 10, 2000])
def test_a_small_png_of_any_number_of_rows(tmp_path, count):
    path = tmp_path / "curve.png"
    learning_curve(_rows(count), path, title="Frostbite")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) < 300_000
    assert [p.name for p in tmp_path.iterdir()] == ["curve.png"]


def test_what_is_shown():
    figure = learning_curve(_rows(10))
    by_frames, by_time = figure.axes
    assert by_frames.get_xlabel() == "emulator frames"
    assert by_time.get_xlabel() == "wall-clock time (hours)"
    assert len(by_frames.lines) == len(by_time.lines) == 4
    assert list(by_time.lines[0].get_xdata())[:2] == [6000 / 3600, 12000 / 3600]
    labels = [line.get_label() for line in by_frames.lines]
    assert labels == [
        "training best",
        "training mean (± std. deviation)",
        "validation mean (± std. error)",
        "test score (± std. error)",
    ]


def test_random_play_is_a_line_and_bands_end_at_the_least_score():
    rows = [{"frames": i, "training_mean": 10.0 * i, "training_std": 15.0} for i in range(3)]
    by_frames, by_time = learning_curve(rows, random=65.2, least=-1.0).axes
    for axes in (by_frames, by_time):
        (line,) = [line for line in axes.lines if line.get_label() == "random play (published)"]
        assert set(line.get_ydata()) == {65.2}
    (band,) = by_frames.collections
    assert sorted(set(band.get_paths()[0].vertices[:, 1])) == [-1.0, 5.0, 15.0, 25.0, 35.0]
    (free,) = learning_curve(rows).axes[0].collections
    assert free.get_paths()[0].vertices[:, 1].min() == -15.0


def test_what_is_measured_now_and_then_is_connected():
    rows = [{"frames": i, "training_mean": i} | ({"evaluation_mean": 2.0 * i} if i % 3 == 0 else {}) for i in range(40)]
    by_frames, _ = learning_curve(rows).axes
    lines = {line.get_label(): line.get_xdata() for line in by_frames.get_lines()}
    np.testing.assert_array_equal(lines["evaluation mean"], range(0, 40, 3))
    np.testing.assert_array_equal(lines["training mean"], range(40))


def test_a_value_without_neighbours_has_a_marker():
    rows = [
        {"frames": i, "training_mean": i} | ({"elite_score": 2.0 * i} if i in (3, 8, 20, 21) else {}) for i in range(40)
    ]
    lines = {line.get_label(): line for line in learning_curve(rows).axes[0].get_lines()}
    np.testing.assert_array_equal(np.flatnonzero(lines["elite score"].get_markevery()), [3, 8])
    assert not any(lines["training mean"].get_markevery())


@pytest.mark.parametrize("rows", [[{"loss": 1.0}], [{"return_mean": 1.0, "seconds": 1.0}, {"return_mean": None}]])
def test_rows_of_other_algorithms(rows, tmp_path):
    figure = learning_curve(rows, tmp_path / "curve.png")
    assert figure.axes[0].get_xlabel() == "steps"
    assert len(figure.axes[0].lines) == (1 if "return_mean" in rows[0] else 0)


def test_every_other_number_has_a_panel():
    rows = [
        {"round": i + 1, "seconds": 1.0 * i, "elite_score": 1.0, "novel_metric": 0.1 * i, "loss": 2.0, "loss_std": 0.5}
        | {"flag": True, "text": "x", "list": [1, 2], "never": None, "step_seconds": 0.1, "training_num_nan": 0}
        for i in range(4)
    ]
    by_frames, by_time, *panels = learning_curve(rows).axes
    assert [axes.get_title() for axes in panels] == ["novel metric", "loss", "training num nan"]
    assert len(by_frames.lines) == len(by_time.lines) == 1
    np.testing.assert_allclose(panels[0].lines[0].get_xydata(), [(i + 1, 0.1 * i) for i in range(4)])
    (band,) = panels[1].collections
    assert band.get_datalim(panels[1].transData).y0 == 1.5


def test_many_panels_are_still_a_small_picture(tmp_path):
    rows = [{f"metric_{i}": float(j) ** 2 for i in range(25)} | {"training_mean": j} for j in range(500)]
    learning_curve(rows, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size < 500_000


def test_pyplot_is_left_alone():
    before = "matplotlib.pyplot" in sys.modules
    learning_curve(_rows(2))
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_a_notebook_can_show_the_figure():
    assert learning_curve(_rows(2))._repr_png_().startswith(b"\x89PNG")


def test_a_metric_may_have_the_name_of_anothers_spread_or_count():
    rows = [{"frames": i, "seconds": i, "reward": 2.0 * i, "reward_mean": float(i), "reward_std": 0.5} for i in (1, 2)]
    figure = learning_curve([row | {"training_mean": float(row["frames"]), "number": row["frames"]} for row in rows])
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert labels == ["reward", "reward mean (± std. deviation)", "training mean"]  # although that is 1, 2
    assert not figure.axes[2:]  # `number` counts steps


def test_the_folder_of_a_picture_is_made_and_other_formats_are_refused(tmp_path):
    learning_curve(_rows(2), tmp_path / "new" / "curve.png")
    assert (tmp_path / "new" / "curve.png").stat().st_size
    with pytest.raises(ValueError, match=r"curve\.svg: pictures are PNG files, whose names must end in \.png"):
        learning_curve(_rows(2), tmp_path / "curve.svg")
