"""Comparisons of made-up run directories."""

import json
from pathlib import Path

import numpy as np
import pytest

import volvox as vx
from volvox.report import interquartile_mean, probability_of_improvement
from volvox.report.comparison import find_runs, parse_methods

PONG, BREAKOUT = ({"type": "volvox.envs.atari", "game": game, "num_envs": 8} for game in ("Pong", "Breakout"))
LAMP, DOOR = (
    {"type": "volvox.envs.gymnasium", "make_env": make}
    for make in ({"function": "__main__.Lamp"}, {"partial": {"function": "__main__.Door"}, "arguments": []})
)


@pytest.fixture
def write(tmp_path):
    """Writes a run directory with rows from columns."""

    def run(name, *, env=PONG, kind="volvox.learn", settings=None, pbt=None, **columns):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        algorithm = {"type": kind, "env": env, "settings": settings or {}, "pbt": pbt}
        config = {"algorithm": algorithm, "key": {"impl": "threefry2x32", "data": [0, 0]}}
        (folder / "config.json").write_text(json.dumps(config))
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    return run


@pytest.fixture
def series(write, tmp_path):
    """Writes `seed-0`, `seed-1`, ... that end with given scores after 100, 200 and 300 frames."""

    def runs(name, finals, **options):
        for i, final in enumerate(finals):
            columns = {"frames": [100, 200, 300], "seconds": [60.0, 120.0, 180.0]}
            write(f"{name}/seed-{i}", **columns, training_mean=[0.0, final / 2, final], **options)
        return tmp_path / name

    return runs


def test_methods_are_compared_over_their_runs_and_sorted_by_score(series):
    es, ga = [1.5, 0.5, 3.0, 1.0], [5.0, 1.0, 2.0, 9.0]
    methods = {"es": series("es", es), "ga": series("ga", ga)}
    found = vx.compare(methods, pairs=True)
    assert (found.metric, found.x, found.budget, found.tasks) == ("training_mean", "frames", 300.0, ("Pong",))
    assert [row["method"] for row in found.rows] == ["ga", "es"]
    for row, scores in zip(found.rows, (ga, es), strict=True):
        assert (row["score"], row["low"], row["high"]) == pytest.approx(tuple(interquartile_mean(scores)))
        assert (row["runs"], row["seconds"]) == (4, 180.0)
    (pair,) = found.pairs
    expected = probability_of_improvement([ga], [es])
    assert (pair["method"], pair["other"]) == ("ga", "es")
    assert (pair["probability"], pair["low"], pair["high"]) == pytest.approx(tuple(expected))
    np.testing.assert_array_equal(found.points, [100, 200, 300])
    np.testing.assert_allclose(found.curves["ga"].value, [0.0, 1.75, 3.5])
    assert found.notes == ()
    assert vx.compare(methods).pairs == ()


def test_runs_of_different_lengths_are_compared_where_the_shortest_ends(write):
    long = write("long", frames=[10, 30, 50], training_mean=[1.0, 3.0, 100.0])
    short = write("short", frames=[20, 40], training_mean=[2.0, 4.0])
    found = vx.compare({"long": long, "short": [short]})
    assert found.budget == 40.0
    np.testing.assert_array_equal(found.points, [20, 30, 40])
    np.testing.assert_array_equal(found.curves["long"].value, [1, 3, 3])  # not 100, which was not known there
    np.testing.assert_array_equal(found.curves["short"].value, [2, 2, 4])
    assert found.curves["long"].low is None
    assert found.rows[0]["seconds"] is None  # it was not recorded


def test_runs_that_end_a_few_timesteps_apart_are_compared_by_their_last_rows(write):
    a = write("a", frames=[10_000, 20_248], seconds=[1.0, 2.0], evaluation_mean=[None, 150.0])
    b = write("b", frames=[10_000, 20_246], seconds=[1.0, 3.0], evaluation_mean=[None, 140.0])
    found = vx.compare({"a": a, "b": b})
    assert (found.metric, found.budget) == ("evaluation_mean", 20_246)
    assert [(row["score"], row["seconds"]) for row in found.rows] == [(150.0, 2.0), (140.0, 3.0)]
    assert found.notes == ()


def test_a_row_much_later_than_the_budget_is_not_compared(write):
    further = write("further", frames=[10_000, 14_000, 22_000], training_mean=[1.0, 2.0, 3.0])
    equal = write("equal", frames=[20_000], training_mean=[2.0])
    assert [row["score"] for row in vx.compare({"further": further, "equal": equal}).rows] == [2.0, 2.0]


def test_the_nearest_row_is_one_that_has_the_metric(write):
    equal = write("equal", frames=[20_000], evaluation_mean=[2.0])
    scores = [1.0, None, None, 3.0, 4.0]
    sparse = write("sparse", frames=[10_000, 19_900, 20_050, 20_150, 30_000], evaluation_mean=scores)
    found = vx.compare({"sparse": sparse, "equal": equal})
    assert [(row["method"], row["score"]) for row in found.rows] == [("sparse", 3.0), ("equal", 2.0)]


def test_rows_without_the_metric_keep_the_value_before(write):
    a = write("a", frames=[10, 20, 30], evaluation_mean=[1.0, None, None])
    found = vx.compare({"a": a})
    assert (found.metric, found.budget, found.rows[0]["score"]) == ("evaluation_mean", 30.0, 1.0)


def test_the_first_metric_that_all_runs_have_is_compared(write):
    a = write("a", frames=[1], elite_score=[5.0], training_mean=[1.0])
    b = write("b", frames=[1], training_mean=[2.0], loss=[0.5])
    assert vx.compare({"a": a}).metric == "elite_score"
    assert vx.compare({"a": a, "b": b}).metric == "training_mean"
    assert vx.compare({"a": a}, x="step").budget == 1.0
    for options in ({"metric": "elite_score"}, {"x": "seconds"}):
        with pytest.raises(ValueError, match=r"frames.*training_mean"):
            vx.compare({"a": a, "b": b}, **options)


def test_a_new_elite_where_the_shortest_run_ends_has_no_score(write):
    """The longer run has its score later, which is not known there."""
    scores = {"elite_score": [135.0, None, 150.0], "elite_is_new": [False, True, False], "validation_mean": [1, 2, 3]}
    short = {name: values[:1] * 2 for name, values in scores.items()}
    longer = write("a", frames=[1, 2, 3], **scores)
    assert vx.compare({"a": longer, "b": write("b", frames=[1, 2], **short)}).metric == "validation_mean"
    assert vx.compare({"a": longer, "b": write("c", frames=[1, 3], **short)}).metric == "elite_score"


def test_several_games_are_normalised_and_resampled_within_each(series):
    methods = {
        name: [series(f"{name}/pong", [-20.7 + x * 35.3 for x in scores]), series(f"{name}/b", other, env=BREAKOUT)]
        for name, scores, other in (("ga", (0.0, 0.5, 1.0), (1.7, 30.5, 1.7)), ("es", (0.1, 0.1, 0.1), (1.7,) * 3))
    }
    found = vx.compare(methods, pairs=True)
    assert (found.tasks, found.normalized) == (("Breakout", "Pong"), True)
    assert found.rows[0]["score"] == pytest.approx(np.mean([0.0, 0.0, 0.5, 1.0]), abs=0.01)
    assert found.rows[0]["runs"] == 6
    by_task = [([0, 1, 0], [0, 0, 0]), ([0, 0.5, 1], [0.1, 0.1, 0.1])]
    expected = probability_of_improvement(*zip(*by_task, strict=True))
    assert found.pairs[0]["probability"] == pytest.approx(expected.value)
    given = vx.compare(methods, normalize={"Pong": (0.0, 1.0), "Breakout": (0.0, 1.0)})
    assert given.rows[1]["score"] == pytest.approx(np.mean([-17.17, -17.17, 1.7, 1.7]), abs=0.01)


def test_runs_with_other_settings_are_other_methods(write):
    def run(name, rates):
        settings = [{"rate": rate} for rate in rates]
        return write(name, settings=settings, frames=[1], training_mean=[1.0], training_mean_each=[list(rates)])

    found = vx.compare({"a": [run("x", (1.0, 2.0)), run("y", (2.0, 3.0))]})
    rows = {row["settings"]["rate"]: (row["score"], row["runs"]) for row in found.rows}
    assert rows == {"1.0": (1.0, 1), "2.0": (2.0, 2), "3.0": (3.0, 1)}


def test_learners_of_pbt_are_one_run(write):
    run = write("x", pbt={"every": 1}, frames=[1], training_mean=[1.5], training_mean_each=[[1.0, 2.0]])
    (row,) = vx.compare({"a": run}).rows
    assert (row["score"], row["runs"]) == (1.5, 1)


def test_settings_in_which_methods_differ_are_columns_if_their_runs_agree(write):
    def run(name, **settings):
        return write(name, settings=settings, frames=[1], training_mean=[1.0])

    a, b = [run("a", rate=1, size=1), run("b", rate=2, size=1)], run("c", rate=3, size=2)
    assert {row["method"]: row["settings"] for row in vx.compare({"a": a, "b": b}).rows} == {
        "a": {"size": "1"},
        "b": {"size": "2"},
    }


def test_only_games_of_atari_have_known_scores(series):
    tasks = ("Pong", "Breakout-MinAtar")
    minatar = [series(task, [1.0], env={"type": "volvox.envs.gymnax", "task": task}) for task in tasks]
    with pytest.raises(ValueError, match="normalize"):
        vx.compare({"ga": minatar})


def test_a_metric_with_two_meanings_is_noted(write):
    columns = {"frames": [1], "training_mean": [1.0], "evaluation_mean": [1.0]}
    methods = {kind: write(kind, **columns, kind=f"volvox.{kind}") for kind in ("evolve", "learn")}
    assert "population" in vx.compare(methods, metric="training_mean").notes[0]
    assert vx.compare(methods).notes == ()


def test_runs_that_diverged_are_named_and_left_out(series, tmp_path):
    methods = {"ga": series("ga", [1.0, 2.0, 3.0]), "es": series("es", [0.0, 1.0, 2.0])}
    found = vx.compare(methods)
    lost = tmp_path / "ga" / "seed-3"  # it has no config.json
    lost.mkdir()
    (lost / "diverged").write_text("returns are infinite\n")
    again = vx.compare(methods)
    assert again.rows == found.rows
    assert str(lost) in again.notes[0]
    assert [row["method"] for row in vx.compare({"ga": lost, "es": methods["es"]}).rows] == ["es"]
    with pytest.raises(ValueError, match="seed-3"):
        vx.compare({"ga": lost})


def test_a_short_run_is_named_because_it_ends_the_comparison(write):
    columns = {name: {"frames": range(100, last + 1, 100)} for name, last in (("short", 300), ("long", 1_000))}
    runs = {name: write(name, **x, training_mean=[1.0] * len(x["frames"])) for name, x in columns.items()}
    comparison = vx.compare(runs)
    assert comparison.budget == 300
    assert f"frames 300, where {runs['short']} ends; the longest has 1,000" in comparison.notes[0]


def test_wrong_arguments_are_refused(series, write, tmp_path):
    ga, breakout = series("ga", [1.0]), series("breakout", [1.0], env=BREAKOUT)
    falls = write("falls", frames=[2, 1], training_mean=[1.0, 2.0])
    late = write("late", frames=[1000], training_mean=[1.0])
    for methods, message in (
        ({}, "runs of each method"),
        ({"ga": ga, "es": []}, "runs of each method"),
        ({"ga": tmp_path / "none"}, "none"),
        ({"ga": ga, "es": ga / "seed-0"}, "twice"),
        ({"ga": ga, "es": write("begun", frames=[])}, "frames"),
        ({"falls": falls}, "falls"),
        ({"ga": ga, "late": late}, r"shortest.*late begins at frames 1000"),
        ({"ga": ga, "es": breakout}, "same tasks"),
        ({"lamp": series("lamp", [1.0], env=LAMP), "door": series("door", [1.0], env=DOOR)}, "same tasks"),
    ):
        with pytest.raises(ValueError, match=message):
            vx.compare(methods)


def test_the_picture(series, tmp_path):
    methods = {"ga": series("ga", [1.0, 2.0, 3.0]), "es": series("es", [1.0, 2.0])}
    (curves,) = vx.compare(methods).plot(tmp_path / "comparison.png").axes
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert [line.get_label() for line in curves.lines] == ["ga", "es"]
    np.testing.assert_array_equal(curves.lines[1].get_xydata(), [(100, 0), (200, 0.75), (300, 1.5)])
    assert len(curves.collections) == 1  # a band for three runs, and none for two


def test_seeds_are_in_numeric_order(series, tmp_path):
    series("ga", [float(i) for i in range(11)])
    (tmp_path / "ga" / "seed-x").mkdir()
    assert [path.name for path in find_runs(tmp_path / "ga")] == [f"seed-{i}" for i in range(11)]


def test_methods_of_a_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("lr=0.1").mkdir()
    words = ["ga=runs/a", "ga=runs/b", "runs/c", "lr=0.1", "a=lr=0.1"]
    assert parse_methods(words) == {
        "ga": ["runs/a", "runs/b"],
        "runs/c": ["runs/c"],
        "lr=0.1": ["lr=0.1"],
        "a": ["lr=0.1"],
    }
