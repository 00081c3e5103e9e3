"""The learning benchmark: its statistics and pictures of given curves, and one tiny run without the reference."""

import dataclasses
import json

import numpy as np
import pytest

import volvox as vx


@pytest.fixture
def row(module):
    return module.Row(name="A3C, CartPole", task="CartPole-v1", learner=vx.A3C(), num_envs=8, timesteps=400)


def made_up(levels, *, seconds=1.0):
    """Runs whose curves rise linearly to `levels`."""
    timesteps = np.linspace(10, 410, 21)
    about = {"seconds": seconds, "commit": "", "hardware": "", "date": "", "timesteps": timesteps.tolist()}
    return [
        {"returns": (level * timesteps / 400).tolist(), "settings": {"seed": seed}, **about}
        for seed, level in enumerate(levels)
    ]


@pytest.mark.parametrize(
    ("ours", "verdict"), [((10, 11, 12), "yes"), ((1, 2, 3), "no"), ((30, 31, 32), "better"), ((11, 11, 11), "yes")]
)
def test_verdict_is_by_welchs_test(module, row, ours, verdict):
    found = module.compare(row, {"volvox": made_up(ours), "reference": made_up((10.0, 11.0, 12.0))})
    assert found["as_reference"] == verdict
    assert found["volvox"]["final"][0] == pytest.approx(np.mean(ours) * (380 + 400) / 2 / 400)
    assert found["volvox"]["area"][0] == pytest.approx(np.mean(ours) * (20 + 400) / 2 / 400)


def test_statistics_have_the_values_of_the_formulas(load):
    module = load("scores")
    mean, low, high = module.interval(np.array([1.0, 2.0, 3.0]))
    assert (mean, low, high) == pytest.approx((2, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))
    assert module.interval(np.full(3, 500.0)) == [500, 500, 500]
    assert module.p_value(np.full(3, 500.0), np.full(3, 500.0)) == 1
    assert module.p_value(np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.0])) == pytest.approx(0.287864, abs=1e-6)


def test_results_are_drawn(module, row, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(module.ROWS, "small", lambda: (row, dataclasses.replace(row, name="not run")))
    ten = [30 + seed for seed in range(11)]
    for side, levels, seconds in (("volvox", ten, 2.0), ("reference", (10, 11, 12), None)):
        for seed, run in enumerate(made_up(levels, seconds=seconds)):
            path = module.run_path_of(tmp_path, row, side, seed)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(run))
    assert module.draw(module.Draw(run_dir=str(tmp_path), out=tmp_path / "out")) == 0
    written = json.loads((tmp_path / "out" / "small.json").read_text())
    assert list(written["rows"]) == ["A3C, CartPole"]
    ours = written["rows"]["A3C, CartPole"]["volvox"]
    assert ours["seconds"] == [2] * 11
    assert ours["seeds"] == list(range(11))  # not 0, 1, 10, 2, ...
    assert [returns[-1] for returns in ours["returns"]] == ten
    assert (tmp_path / "out" / "small.png").stat().st_size > 1_000
    page, shown = (tmp_path / "out" / "small.md").read_text(), capsys.readouterr().out
    assert page.endswith(shown)
    assert "| **better** | 2 | not measured |" in shown
    assert module.draw(module.Draw(run_dir=str(tmp_path / "other"), out=tmp_path / "out")) == 0  # keeps what it has
    assert json.loads((tmp_path / "out" / "small.json").read_text()) == written


@pytest.mark.parametrize("size", ["small", "full"])
def test_the_reference_has_the_settings_of_volvox(module, size):
    rows = module.ROWS[size]()
    assert len({module.run_path_of("", row, "volvox", 0) for row in rows}) == len(rows)
    for row in rows:
        if row.learner is None:
            continue
        job = json.loads(json.dumps(module.reference_job(row, 3)))
        learner, settings = row.learner, job["settings"]
        if row.other_defaults:
            assert (settings, job["num_envs"]) == ({}, 1)
            continue
        assert (job["timesteps"], job["num_envs"], job["seed"]) == (row.timesteps, row.num_envs, 3 * 1_000_003)
        assert settings["gamma"] == learner.discount
        assert getattr(learner, "value_clip", None) is None  # Stable-Baselines3 clips values in another way
        if isinstance(learner, vx.PPO):
            minibatch = settings["batch_size"] * learner.num_minibatches
            assert minibatch == settings["n_steps"] * row.num_envs == learner.segment_length * row.num_envs
            assert learner.anneal_timesteps in (None, row.timesteps)
            assert job["anneal"] == (learner.anneal_timesteps is not None)


@pytest.mark.slow
def test_a_tiny_run_is_made_once(module, row, monkeypatch, tmp_path, capsys):
    learner = vx.A3C(updates_per_iteration=1)  # many rows have no evaluation
    row = dataclasses.replace(row, learner=learner, timesteps=1_200)
    novelty = dataclasses.replace(row, name="novelty", learner=None, num_envs=50, timesteps=200_000)
    monkeypatch.setitem(module.ROWS, "small", lambda: (row, novelty))
    options = module.Run(run_dir=str(tmp_path), seeds=1, sides=("volvox",), measure_time=False)
    assert module.run(options) == 0
    assert module.run(options) == 0
    assert module.run(dataclasses.replace(options, sides=("reference",), only=("novelty",))) == 0  # random search
    assert capsys.readouterr().out.count(", volvox, seed 0: ") == 2
    found = json.loads(module.run_path_of(tmp_path, row, "volvox", 0).read_text())
    assert found["timesteps"][-1] >= row.timesteps
    assert len(found["timesteps"]) == len(found["returns"])
    assert len(found["timesteps"]) <= module.NUM_POINTS + 1
    assert found["seconds"] is None
    least = json.loads(module.run_path_of(tmp_path, novelty, "volvox", 0).read_text())["returns"]
    assert len(least) == 2
    assert least[0] <= least[1]
    monkeypatch.setitem(module.ROWS, "small", lambda: (dataclasses.replace(row, timesteps=800),))
    with pytest.raises(ValueError, match="other settings"):
        module.run(options)
