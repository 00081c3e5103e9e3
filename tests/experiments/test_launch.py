"""Runs and series of seeds as scripts begin, stop and continue them."""

import dataclasses
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import volvox as vx
from volvox.report.files import read_config, read_metrics
from volvox.runs.profile import Tuned

sys.path.append(str(Path(__file__).parents[2]))

from tests.runs.conftest import random_walk


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    run: Any
    size: int = 3


@pytest.fixture
def launched(load, tmp_path):
    """Launches three steps of a random walk with flags; the result is the exit code."""
    launch, flags = load("launch"), load("flags")

    def run(*, steps=3, hook=lambda step: None, run_dir=tmp_path / "a", **given):
        settings = Settings(run=flags.Run(run_dir=str(run_dir), video=False, **given))
        return launch._launch(lambda settings: (random_walk(size=settings.size, hook=hook), steps), settings, False)

    return run


def metrics(run_dir):
    rows = read_metrics(run_dir / "metrics.jsonl")
    return [{name: value for name, value in row.items() if "second" not in name} for row in rows]


def test_each_seed_is_the_run_that_it_is_alone(launched, tmp_path):
    assert launched(seed=3, seeds=2) == 0
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["seed-3", "seed-4"]
    assert launched(seed=4, run_dir=tmp_path / "alone") == 0
    assert metrics(tmp_path / "a" / "seed-4") == metrics(tmp_path / "alone") != metrics(tmp_path / "a" / "seed-3")
    assert read_config(tmp_path / "a" / "seed-4")["key"] == read_config(tmp_path / "alone")["key"]


def test_a_signal_stops_the_series_and_resume_continues_it(launched, tmp_path):
    steps = []

    def interrupt(step):
        steps.append(step)
        if len(steps) == 5:  # the second step of the second seed
            signal.raise_signal(signal.SIGINT)

    assert launched(seeds=3, hook=interrupt) == 130
    assert [len(metrics(tmp_path / "a" / f"seed-{i}")) for i in range(3)] == [3, 1, 0]
    with pytest.raises(FileExistsError):
        launched(seeds=3)
    assert launched(seeds=3, resume=True) == 0
    assert [len(metrics(tmp_path / "a" / f"seed-{i}")) for i in range(3)] == [3, 3, 3]


def test_a_seed_that_diverges_is_marked_and_not_trained_again(launched, tmp_path, capsys):
    calls = []

    def diverge(step):
        calls.append(step)
        if len(calls) == 2:
            raise FloatingPointError("the loss is not finite")

    assert launched(seeds=2, hook=diverge) == 1
    assert "not finite" in (tmp_path / "a" / "seed-0" / "diverged").read_text()
    assert len(metrics(tmp_path / "a" / "seed-1")) == 3
    assert launched(seeds=2, resume=True) == 1
    assert len(metrics(tmp_path / "a" / "seed-0")) == 1


def test_a_series_and_a_single_run_are_told_apart(launched, tmp_path):
    launched()
    with pytest.raises(ValueError, match="single run"):
        launched(seeds=2)
    launched(seeds=1, run_dir=tmp_path / "b")
    with pytest.raises(ValueError, match="series"):
        launched(run_dir=tmp_path / "b")


def test_minutes_are_those_of_the_run(launched, tmp_path, capsys):
    assert launched(minutes=1e-9, frames=1_000) == 0
    assert "1,000 frames take" in capsys.readouterr().err
    assert len(metrics(tmp_path / "a")) == 1
    assert launched(minutes=1e-9, resume=True) == 0
    assert len(metrics(tmp_path / "a")) == 1
    assert launched(minutes=10, frames=20, resume=True) == 0
    assert len(metrics(tmp_path / "a")) == 2


def test_all_seeds_and_resumed_runs_have_what_was_tuned_for_the_first(launched, tmp_path, monkeypatch, load):
    calls = []

    def tune(make, choices):
        calls.append(choices)
        return Tuned({"size": 5}, 1.0, [])

    monkeypatch.setattr(vx, "tune", tune)
    monkeypatch.setattr(sys.modules["launch"], "choices", lambda settings: {"size": (3, 5)})
    assert launched(seeds=2, tune="machine") == 0
    for seed in range(2):
        assert read_config(tmp_path / "a" / f"seed-{seed}")["algorithm"]["size"] == 5
    assert json.loads((tmp_path / "a" / "seed-0" / "tuned.json").read_text()) == {"size": 5}
    assert launched(seeds=2, tune="machine", resume=True, steps=4) == 0
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [(ValueError("bad settings"), 2), (OSError(28, "full"), 1), (FloatingPointError("not finite"), 1)],
)
def test_errors_are_one_line_and_an_exit_code(error, code, load, capsys):
    def main():
        raise error

    assert load("launch").exit_code(main) == code
    assert capsys.readouterr().err.count("\n") == 1
    error.add_note("inside a step")
    if code == 2:
        with pytest.raises(ValueError, match="bad"):
            load("launch").exit_code(main)
