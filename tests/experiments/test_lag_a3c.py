"""The study of lag: what it refuses, one small run, and that the committed table is that of the committed runs."""

import json
from pathlib import Path

import numpy as np
import pytest

RESULTS = Path(__file__).parents[2] / "experiments" / "results" / "lag_a3c"
SMALL = {"task": "InvertedPendulum", "num_envs": 2, "segment_length": 5, "iterations": 2}


@pytest.fixture
def module(load):
    return load("lag_a3c")


def test_too_few_frames_are_refused(module):
    with pytest.raises(ValueError, match=r"frames=100 are too few for episodes to end"):
        module.make_algorithm(module.Settings(**SMALL, frames=100), 1, False)


@pytest.mark.slow
def test_a_run_is_learned_once_and_drawn(module, tmp_path):
    settings = module.Settings(**SMALL, frames=8_000, lags=(2,), ways=("plain returns",), seeds=1)
    resumed = module.dataclasses.replace(settings, resume=True)
    first, again = (
        module.learned(module.make_algorithm(how, 2, False), how, tmp_path, 0) for how in (settings, resumed)
    )
    assert first == again  # the second call finds the finished run
    assert first["lag_max"] == 2
    assert first["return"] == first["training_mean"][-1]
    assert len(first["frames"]) == 2
    assert first["frames"][-1] == pytest.approx(8_000, rel=0.1)  # timesteps that begin an episode are not counted
    figure = module.draw(settings, {"plain returns": {"2": [first, {"return": None}]}})
    assert [axes.get_title() for axes in figure.axes][1] == "plain returns: mean over seeds"


def test_a_seed_that_diverged_is_not_trained_again(module, tmp_path, monkeypatch):
    def train(*args, run_dir, resume, **options):
        run_dir.mkdir(parents=True)
        raise FloatingPointError("loss is nan")

    monkeypatch.setattr(module.vx, "train", train)
    settings = module.Settings(**SMALL, frames=8_000)
    algorithm = module.make_algorithm(settings, 2, False)
    assert module.learned(algorithm, settings, tmp_path, 0) == {"return": None}
    assert (tmp_path / "seed-0" / "diverged").read_text() == "loss is nan\n"
    monkeypatch.undo()
    settings = module.dataclasses.replace(settings, resume=True)
    assert module.learned(algorithm, settings, tmp_path, 0) == {"return": None}
    assert not (tmp_path / "seed-0" / "config.json").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"iterations": 0}, "iterations must be an integer of at least 1, got 0"),
        ({"seeds": 0}, "seeds must be an integer of at least 1, got 0"),
        ({"lags": ()}, r"lags=\(\), .*give at least one of each"),
    ],
)
def test_bad_settings_are_refused(module, given, message):
    with pytest.raises(ValueError, match=message):
        module.Settings(**given)


def committed():
    return json.loads((RESULTS / "lag.json").read_text())


def test_the_lag_of_every_committed_run_is_exact():
    number = committed()["settings"]["seeds"]
    for by_lag in committed()["runs"].values():
        for lag, seeds in by_lag.items():
            assert [seed["lag_max"] for seed in seeds] == [int(lag)] * number


def test_the_committed_table_is_that_of_the_committed_runs():
    runs, page = committed()["runs"], (RESULTS / "README.md").read_text()
    for lag in committed()["settings"]["lags"]:
        cells = []
        for way in ("plain returns", "V-trace"):
            returns = np.array([seed["return"] for seed in runs[way].get(str(lag), [])])
            cells.append(f"{returns.mean():.0f} [{returns.min():.0f}, {returns.max():.0f}]" if returns.size else "")
        assert f"| {lag} | {cells[0]} | {cells[1]} |" in page.replace("|  |", "| |").replace("| |", "|  |")
