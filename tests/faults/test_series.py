"""Several seeds in turn: interrupted, resumed, refused, and each like a run of its own."""

import dataclasses
import json
import signal
import sys
import time
from typing import Any

import pytest

from volvox.report import read_metrics
from volvox.training import read_config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    run: Any


@pytest.fixture
def launched(script, make, tmp_path):
    """Runs the launcher with flags and an algorithm of three steps; the result is the exit code."""
    script("launch")
    flags = script("flags")

    def run(*, steps=3, watch=lambda number: None, run_dir=tmp_path / "a", **given):
        settings = Settings(run=flags.Run(run_dir=str(run_dir), video=False, **given))
        algorithm = make("hill", watch=watch)

        def step(state, *, monitor=None):
            state, row = algorithm.step(state, monitor=monitor)
            return state, row | {"frames": 10 * state["step"]}

        return sys.modules["launch"]._launch(lambda settings: (algorithm._replace(step=step), steps), settings, False)

    return run


def lasting(run_dir):
    return [{k: v for k, v in row.items() if "second" not in k} for row in read_metrics(run_dir / "metrics.jsonl")]


def test_each_seed_is_the_run_that_it_is_alone(launched, tmp_path, capsys):
    assert launched(seed=3, seeds=2) == 0
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["seed-3", "seed-4"]
    assert "\na       2 " in capsys.readouterr().out  # both are compared
    assert launched(seed=4, run_dir=tmp_path / "alone") == 0
    assert lasting(tmp_path / "a" / "seed-4") == lasting(tmp_path / "alone") != lasting(tmp_path / "a" / "seed-3")
    assert read_config(tmp_path / "a" / "seed-4")["key"] == read_config(tmp_path / "alone")["key"]


def test_a_signal_stops_the_series_and_resume_goes_on_with_it(launched, tmp_path, capsys):
    steps = []

    def interrupted(number):
        steps.append(number)
        if len(steps) == 5:  # the second step of the second seed
            signal.raise_signal(signal.SIGINT)

    assert launched(seeds=3, watch=interrupted) == 130
    assert "a/seed-1; with --resume it goes on there" in capsys.readouterr().err
    assert [len(lasting(tmp_path / "a" / f"seed-{i}")) for i in range(3)] == [3, 1, 0]
    again = []
    assert launched(seeds=3, resume=True, watch=again.append) == 0
    assert again == [2, 3, 1, 2, 3]  # what was complete is not done again
    assert launched(seeds=3, run_dir=tmp_path / "straight") == 0
    for i in range(3):
        assert lasting(tmp_path / "a" / f"seed-{i}") == lasting(tmp_path / "straight" / f"seed-{i}")


def test_a_seed_that_diverges_is_named_and_others_go_on(launched, tmp_path, capsys):
    steps = []

    def diverge(number):
        steps.append(number)
        if len(steps) == 2:
            raise FloatingPointError("no longer finite")

    assert launched(seeds=2, watch=diverge) == 1
    assert "error: no longer finite" in capsys.readouterr().err
    assert [len(lasting(tmp_path / "a" / f"seed-{i}")) for i in range(2)] == [1, 3]


def test_a_run_that_diverged_is_not_trained_again(launched, tmp_path):
    def diverge(number):
        if number == 2:
            raise FloatingPointError("no longer finite")

    with pytest.raises(FloatingPointError, match="no longer finite"):
        launched(watch=diverge)
    marker, again = tmp_path / "a" / "diverged", []
    with (
        pytest.raises(FileExistsError, match="already holds a run"),
        sys.modules["launch"].once(marker.parent, resume=False),
    ):
        pass
    with pytest.raises(FloatingPointError, match=f"diverged, and is not trained again .*; remove {marker} .*finite"):
        launched(resume=True, watch=again.append)
    assert again == []
    marker.unlink()
    assert launched(resume=True, watch=again.append) == 0
    assert again == [2, 3]


def test_a_terminal_that_is_gone_ends_no_series(launched, tmp_path, monkeypatch):
    class Gone:
        def write(self, text):
            raise OSError(5, "Input/output error")

        def flush(self):
            self.write("")

        def isatty(self):
            return False

    monkeypatch.setattr(sys, "stderr", Gone())
    assert launched(seeds=2) == 0
    assert [len(lasting(tmp_path / "a" / f"seed-{i}")) for i in range(2)] == [3, 3]


def test_minutes_are_counted_up_to_the_newest_checkpoint(launched, tmp_path):
    """Rows after it are dropped by a resume, and so is the time in which they were made."""
    assert launched(steps=2, checkpoint_every=1) == 0
    path = tmp_path / "a" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(path.read_text() + json.dumps(rows[-1] | {"step": 3, "seconds": 1e6}) + "\n")
    assert launched(steps=4, minutes=60, resume=True) == 0
    assert len(read_metrics(path)) == 4


def test_what_cannot_be_a_series_is_refused_before_its_first_seed(launched, tmp_path, script):
    assert launched(seed=1, run_dir=tmp_path / "a" / "seed-1") == 0
    with pytest.raises(FileExistsError, match="seed-1 already holds a run"):
        launched(seeds=2)
    assert not (tmp_path / "a" / "seed-0").exists()
    with pytest.raises(ValueError, match=r"a holds a series of seeds \(seed-1\): give --seeds"):
        launched(resume=True)
    with pytest.raises(ValueError, match="seed-1 holds a single run: leave --seeds out"):
        launched(seeds=2, resume=True, run_dir=tmp_path / "a" / "seed-1")
    with pytest.raises(ValueError, match=r"^seeds=0: give the number of seeds"):
        launched(seeds=0)


def test_minutes_are_those_of_the_run_and_not_of_the_call(launched, tmp_path, capsys):
    def slow(number):
        time.sleep(0.02)

    how = {"seeds": 2, "steps": None, "watch": slow}
    assert launched(minutes=0.01 / 60, **how) == 0
    assert [len(lasting(tmp_path / "a" / f"seed-{i}")) for i in range(2)] == [1, 1]
    capsys.readouterr()
    assert launched(minutes=0.01 / 60, resume=True, **how) == 0
    assert [len(lasting(tmp_path / "a" / f"seed-{i}")) for i in range(2)] == [1, 1]
    assert capsys.readouterr().err.count("minutes are over; with more --minutes and --resume it goes on") == 2
    assert launched(minutes=1, resume=True, **{**how, "steps": 2}) == 0
    assert [len(lasting(tmp_path / "a" / f"seed-{i}")) for i in range(2)] == [2, 2]


def test_a_run_is_scored_once(launched, tmp_path, monkeypatch, script):
    scores, scored = sys.modules[script("launch").keep_score.__module__], []

    def scores_of(run, episodes, *, seed, sampled):
        scored.append((seed, len(run.metrics)))
        return {}

    monkeypatch.setattr(scores, "scores_of", scores_of)
    assert launched(seeds=2, score_episodes=5) == 0
    assert launched(seeds=2, score_episodes=5, resume=True) == 0
    assert scored == [(0, 3), (1, 3)]
    assert launched(seeds=2, score_episodes=6, resume=True) == 0
    assert launched(seeds=2, score_episodes=6, steps=4, resume=True) == 0
    assert scored[2:] == [(0, 3), (1, 3), (0, 4), (1, 4)]
    path = tmp_path / "a" / "seed-1" / "score.json"  # of another network with as many steps
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"of": kept["of"] | {"network": "0"}}))
    assert launched(seeds=2, score_episodes=6, steps=4, resume=True) == 0
    assert scored[6:] == [(1, 4)]
    assert json.loads(path.read_text()) == kept


def test_all_seeds_have_what_was_tuned_for_the_first(script, tmp_path, monkeypatch):
    ga, launch = script("atari_ga"), script("launch")
    monkeypatch.setattr(launch.vx, "tune", lambda *args, **options: pytest.fail("tuned again"))
    saved = {"tuned": {"groups": 4}, "given": {"groups": 2}}
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "config.json").write_text(
        json.dumps({"algorithm": saved, "key": {"impl": "threefry2x32", "data": [0, 0]}})
    )
    flags = ["quick", "--tune", "machine", "--seeds", "2", "--run-dir", str(tmp_path / "seed-1")]
    assert launch._tuned(ga.make_algorithm, launch.read(ga.PRESETS, None, flags)) == {"groups": 4}
