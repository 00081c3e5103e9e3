"""Methods compared by made-up run directories: figures, what is said of them, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import volvox as vx
from volvox.report import interquartile_mean, probability_of_improvement
from volvox.report.runs import methods_of, run_dirs

PONG = {"environment": "envpool", "task": "Pong-v5", "settings": {"frame_skip": 4}, "num_envs": 8}


@pytest.fixture
def write(tmp_path):
    """Writes a run directory: rows from columns, and what its `config.json` says."""

    def run(name, *, env=PONG, key=0, settings=None, **columns):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        config = {"algorithm": {"env": env, **(settings or {})}, "key": {"impl": "threefry2x32", "data": [0, key]}}
        (folder / "config.json").write_text(json.dumps(config))
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    return run


@pytest.fixture
def series(write, tmp_path):
    """Writes `seed-0`, `seed-1`, ... that end with given scores after 100, 200 and 300 frames."""

    def runs(name, finals, *, env=PONG, **options):
        for i, final in enumerate(finals):
            score = [0.0, final / 2, final]
            columns = {"frames": [100, 200, 300], "seconds": [60.0, 120.0, 180.0], "training_mean": score}
            write(f"{name}/seed-{i}", env=env, key=i, **columns, **options)
        return tmp_path / name

    return runs


def test_methods_are_compared_by_their_runs(series):
    ga, es = [5.0, 1.0, 2.0, 9.0], [1.5, 0.5, 3.0, 1.0]
    found = vx.compare({"ga": series("ga", ga), "es": series("es", es)})
    assert (found.metric, found.x, found.budget, found.tasks) == ("training_mean", "frames", 300.0, ("Pong-v5",))
    for row, scores in zip(found.rows, (ga, es), strict=True):
        assert (row["score"], row["low"], row["high"]) == pytest.approx(tuple(interquartile_mean(scores)))
        assert (row["runs"], row["seconds"]) == (4, 180.0)
    (pair,) = found.pairs
    assert (pair["method"], pair["other"]) == ("ga", "es")
    expected = probability_of_improvement([ga], [es])
    assert (pair["probability"], pair["low"], pair["high"]) == pytest.approx(tuple(expected))
    np.testing.assert_array_equal(found.points, [100, 200, 300])
    np.testing.assert_allclose(found.curves["ga"].value, [0.0, 1.75, 3.5])
    assert found.notes == ()


def test_what_is_printed(series):
    found = vx.compare({"ga": series("ga", [1000.0, 2000.0, 3000.0]), "es": series("es", [1.0, 2.0])})
    lines = str(found).splitlines()
    about = "Pong-v5: training mean at 300 frames, the interquartile mean over runs with its 95% bootstrap interval."
    assert lines[0] == about
    cells = [re.split(r"  +", line) for line in lines]
    assert ["method", "runs", "training mean", "95% interval", "time of a run"] in cells
    assert ["ga", "3", "2,000", "1,000 to 3,000", "3:00"] in cells
    assert ["es", "2", "1.5", "too few runs", "3:00"] in cells
    assert ["ga", "es", "1.00", "too few runs"] in cells
    assert lines[-1] == "Note: an interval needs 3 runs or more, and 'es' has 2."
    text = found.markdown()
    assert "| ga | 3 | 2,000 | 1,000 to 3,000 | 3:00 |" in text
    assert text.count("\n| ---") == 2


def test_runs_of_other_lengths_and_steps_are_compared_where_the_shortest_ends(write):
    long = write("long", frames=[10, 30, 50], training_mean=[1.0, 3.0, 100.0])
    short = write("short", frames=[20, 40], training_mean=[2.0, 4.0], key=1)
    found = vx.compare({"long": long, "short": [short]})
    assert found.budget == 40.0
    np.testing.assert_array_equal(found.points, [20, 30, 40])
    np.testing.assert_array_equal(found.curves["long"].value, [1, 3, 3])  # what was known there, not 100
    np.testing.assert_array_equal(found.curves["short"].value, [2, 2, 4])
    assert found.curves["long"].low is None
    assert any(f"{short} ends at 40; what others did later, up to 50, is not used" in note for note in found.notes)
    assert found.rows[0]["seconds"] is None  # it was not recorded


def test_rows_without_the_metric_keep_the_value_before(write):
    a = write("a", frames=[10, 20, 30], evaluation_mean=[1.0, None, None])
    found = vx.compare({"a": a}, metric="evaluation_mean")
    assert (found.budget, found.rows[0]["score"], found.pairs) == (30.0, 1.0, ())


def test_the_best_metric_that_all_have_is_taken(write):
    a = write("a", frames=[1], elite_score=[5.0], training_mean=[1.0])
    b = write("b", frames=[1], training_mean=[2.0], loss=[0.5], key=1)
    assert vx.compare({"a": a}).metric == "elite_score"
    assert vx.compare({"a": a, "b": b}).metric == "training_mean"
    assert vx.compare({"a": a}, x="step").budget == 1.0
    with pytest.raises(ValueError, match=rf"no metric='elite_score' in {b}; what .* is frames and training_mean$"):
        vx.compare({"a": a, "b": b}, metric="elite_score")
    with pytest.raises(ValueError, match="no row with both training_mean and x='seconds'; what it has is elite_score"):
        vx.compare({"a": a}, metric="training_mean", x="seconds")


def breakout():
    return {**PONG, "task": "Breakout-v5"}


def test_runs_of_several_games_are_normalised_and_stratified(series):
    methods = {
        name: [series(f"{name}/pong", [-20.7 + x * 35.3 for x in scores]), series(f"{name}/b", other, env=breakout())]
        for name, scores, other in (("ga", (0.0, 0.5, 1.0), (1.7, 30.5, 1.7)), ("es", (0.1, 0.1, 0.1), (1.7,) * 3))
    }
    found = vx.compare(methods)
    assert found.tasks == ("Breakout-v5", "Pong-v5")
    assert found.normalized
    assert found.rows[0]["score"] == pytest.approx(np.mean([0.0, 0.0, 0.5, 1.0]), abs=0.01)
    assert found.rows[0]["runs"] == 6
    by_task = [([0, 1, 0], [0, 0, 0]), ([0, 0.5, 1], [0.1, 0.1, 0.1])]
    expected = probability_of_improvement(*zip(*by_task, strict=True))
    assert found.pairs[0]["probability"] == pytest.approx(expected.value)
    given = vx.compare(methods, normalize={"Pong-v5": (0.0, 1.0), "Breakout-v5": (0.0, 1.0)})
    assert given.rows[1]["score"] == pytest.approx(np.mean([-17.17, -17.17, 1.7, 1.7]), abs=0.01)
    with pytest.raises(ValueError, match="normalize has no scores of Breakout-v5; it has some of Pong-v5"):
        vx.compare(methods, normalize={"Pong-v5": (0.0, 1.0)})
    with pytest.raises(ValueError, match=r"normalize\['Pong-v5'\]=\(1, 1\): give two scores that differ"):
        vx.compare(methods, normalize={"Pong-v5": (1, 1), "Breakout-v5": (0, 1)})


def test_games_with_names_of_atari_are_on_scales_of_their_own(series):
    other = {**PONG, "environment": "gymnax"}
    runs = [series("pong", [1.0], env=other), series("b", [1.0], env={**other, "task": "Breakout-MinAtar"})]
    with pytest.raises(ValueError, match="no scores of random play and of a human tester are known for Breakout-MinA"):
        vx.compare({"ga": runs})
    assert vx.compare({"ga": series("mine", [1.0], env=other)}).random is None
    assert vx.compare({"ga": series("theirs", [1.0])}).random == -20.7


def test_unequal_numbers_of_runs_are_noted(series):
    three, one = series("pong", [1.0, 2.0, 3.0]), series("breakout", [1.0], env=breakout())
    notes = vx.compare({"ga": [three, one]}).notes
    assert "'ga' has 1 to 3 runs of a task, and each run counts alike in its interquartile mean" in notes


def test_methods_with_other_tasks_are_refused(series):
    pong, other = series("pong", [1.0]), series("breakout", [1.0], env=breakout())
    maze, tiny = ({"environment": name} for name in ("maze", "tiny"))
    with pytest.raises(ValueError, match="same tasks to be compared, but 'ga' has Pong-v5; 'es' has Breakout-v5"):
        vx.compare({"ga": pong, "es": other})
    both = [series("maze", [1.0], env=maze), series("tiny", [1.0], env=tiny)]
    with pytest.raises(ValueError, match=r"different scales, .* known for maze and tiny: .* normalize=\{'maze'"):
        vx.compare({"ga": both})


def test_nonsense_is_refused(series, write, tmp_path):
    ga = series("ga", [1.0])
    with pytest.raises(ValueError, match="no methods"):
        vx.compare({})
    with pytest.raises(ValueError, match="method 'ga' has no runs"):
        vx.compare({"ga": []})
    with pytest.raises(ValueError, match="none holds no run: there is no"):
        vx.compare({"ga": tmp_path / "none"})
    with pytest.raises(ValueError, match="seed-0 is there twice, as a run of 'ga' and of 'es'"):
        vx.compare({"ga": ga, "es": ga / "seed-0"})
    begun = write("begun", frames=[])
    with pytest.raises(ValueError, match="begun: there are no metrics yet"):
        vx.compare({"ga": ga, "es": begun})
    falls = write("falls", frames=[2, 1], training_mean=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"x='frames' falls in .*falls; take a metric that counts"):
        vx.compare({"falls": falls})
    late = write("late", frames=[1000], training_mean=[1.0])
    with pytest.raises(ValueError, match=r"seed-0 ends after 300 frames, and .*late has its first value after 1,000: "):
        vx.compare({"ga": ga, "late": late})


def test_what_may_mislead_is_said(write):
    sticky = {**PONG, "settings": {"frame_skip": 4, "sticky": 0.25}, "num_envs": 64}
    columns = {"frames": [1], "training_mean": [1.0]}
    runs = [write("a", **columns, settings={"lr": 1}), write("b", **columns, settings={"lr": 2})]
    notes = " ".join(vx.compare({"ours": runs, "theirs": write("c", env=sticky, **columns)}).notes)
    assert "runs play Pong-v5 with other settings than each other: settings.sticky is null or 0.25" in notes
    assert "num_envs" not in notes
    assert "runs of 'ours' have other settings than each other: lr is 1 or 2" in notes
    assert "runs of 'ours' have the same seed" in notes
    assert "'ours' has 2 and 'theirs' has 1" in notes


def test_a_metric_that_means_two_things_is_said(write):
    columns = {"frames": [1], "training_mean": [1.0], "evaluation_mean": [1.0]}
    methods = {kind: write(kind, **columns, settings={"algorithm": kind}) for kind in ("evolve", "learn")}
    twofold = "training_mean of a population is over all its members, mutated and in episodes that may be cut,"
    assert twofold in " ".join(vx.compare(methods, metric="training_mean").notes)
    assert twofold not in " ".join(vx.compare(methods).notes)
    assert twofold not in " ".join(vx.compare({"ga": methods["evolve"]}, metric="training_mean").notes)


def test_the_picture(series, tmp_path):
    found = vx.compare({"ga": series("ga", [1.0, 2.0, 3.0]), "es": series("es", [1.0, 2.0])})
    figure = found.plot(tmp_path / "comparison.png")
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    curves, chances = figure.axes
    *methods, random = curves.lines
    assert [line.get_label() for line in methods] == ["ga (3 runs)", "es (2 runs)"]
    assert (random.get_label(), set(random.get_ydata())) == ("random play (published)", {-20.7})
    np.testing.assert_array_equal(curves.lines[1].get_xydata(), [(100, 0), (200, 0.75), (300, 1.5)])
    assert len(curves.collections) == 1  # a band of the three runs, none of the two
    assert [label.get_text() for label in chances.get_yticklabels()] == ["ga\nover es"]
    assert len(vx.compare({"ga": tmp_path / "ga"}).plot().axes) == 1
    assert len(vx.compare({"ga": tmp_path / "ga"}, metric="seconds").plot().axes[0].lines) == 1


def test_runs_that_diverged_are_named_and_left_out(series, tmp_path):
    """One after its first row, and one before there was a config."""
    series("ga", [1.0, 2.0, 3.0])
    found = vx.compare({"ga": tmp_path / "ga", "es": series("es", [0.0, 1.0, 2.0])})
    write = {"frames": [100], "seconds": [60.0], "training_mean": [900.0]}
    for i in (3, 4):
        (tmp_path / "ga" / f"seed-{i}").mkdir()
        (tmp_path / "ga" / f"seed-{i}" / "diverged").write_text("returns are infinite\n")
    (tmp_path / "ga" / "seed-3" / "metrics.jsonl").write_text(json.dumps({k: v[0] for k, v in write.items()}) + "\n")
    again = vx.compare({"ga": tmp_path / "ga", "es": tmp_path / "es"})
    assert (again.rows, again.pairs, again.budget) == (found.rows, found.pairs, 300.0)
    said = f"{tmp_path}/ga/seed-3 and {tmp_path}/ga/seed-4 diverged, and 'ga' is compared without them"
    assert again.notes == (*found.notes, said)
    (tmp_path / "es" / "diverged").mkdir()  # a folder is no mark
    assert vx.compare({"ga": tmp_path / "ga", "es": tmp_path / "es"}).rows == found.rows
    with pytest.raises(ValueError, match="all runs of method 'ga' diverged"):
        vx.compare({"ga": [tmp_path / "ga" / "seed-3"], "es": tmp_path / "es"})


def test_a_task_of_which_all_runs_diverged_is_named(write, tmp_path):
    row = {"frames": [100], "training_mean": [1.0]}
    both = [write("a", **row), write("b", env=PONG | {"task": "Boxing-v5"}, **row)]
    lost = write("c", env=PONG | {"task": "Boxing-v5"}, **row)
    (lost / "diverged").write_text("returns are infinite\n")
    message = rf"'ga' has Pong-v5; 'es' has Boxing-v5 and Pong-v5; {tmp_path}/c diverged, and 'ga' is compared without"
    with pytest.raises(ValueError, match=message):
        vx.compare({"ga": [write("d", **row), lost], "es": both})


def test_seeds_are_in_the_order_of_their_numbers(series, tmp_path):
    series("ga", [float(i) for i in range(11)])
    (tmp_path / "ga" / "seed-x").mkdir()
    found = run_dirs(tmp_path / "ga")
    assert [path.name for path in found] == [f"seed-{i}" for i in range(11)]


def test_a_new_elite_where_the_shortest_run_ends_has_no_score(write):
    """The longer run has its score later, which is not known there."""
    scores = {
        "elite_score": [135.0, None, 150.0],
        "elite_is_new": [False, True, False],
        "validation_mean": [1.0, 2.0, 3.0],
    }
    short = {name: values[:1] * 2 for name, values in scores.items()}
    longer, shorter = write("a", frames=[1, 2, 3], **scores), write("b", frames=[1, 2], **short)
    assert vx.compare({"a": longer, "b": shorter}).metric == "validation_mean"
    assert vx.compare({"a": longer, "b": write("c", frames=[1, 3], **short)}).metric == "elite_score"


def test_an_environment_may_be_described_by_its_name(write):
    runs = {name: write(name, env="CartPole", frames=[1], training_mean=[1.0]) for name in ("a", "b")}
    assert vx.compare(runs).tasks == ("CartPole",)


def test_a_new_elite_has_no_score_of_the_elite_before(write):
    scores = {"elite_score": [135.0, None], "elite_is_new": [False, True], "validation_mean": [130.0, 170.0]}
    found = vx.compare({"a": write("a", frames=[1, 2], **scores)})
    assert found.metric == "validation_mean"


@pytest.mark.parametrize("word", ["a=lr=0.1", "lr=0.1", "a=b=lr=0.1", "a=nothing"])
def test_paths_may_have_signs_of_equality(tmp_path, monkeypatch, word):
    (tmp_path / "lr=0.1").mkdir()
    monkeypatch.chdir(tmp_path)
    wanted = {
        "a=lr=0.1": {"a": [Path("lr=0.1")]},
        "lr=0.1": {"lr=0.1": [Path("lr=0.1")]},
        "a=b=lr=0.1": {"a=b": [Path("lr=0.1")]},
        "a=nothing": {"a": [Path("nothing")]},
    }
    assert methods_of([word]) == wanted[word]


def test_comparisons_are_told_apart_and_methods_by_their_lines(series, tmp_path):
    found = vx.compare({str(i): series(str(i), [float(i)]) for i in range(8)})
    assert found == found
    assert found != vx.compare({"0": tmp_path / "0"})
    lines = found.plot().axes[0].lines[:8]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 8
