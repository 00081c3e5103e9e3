"""The script of the genetic algorithm as a user runs it, on real Atari."""

import os

import pytest

from volvox.cli import main

TINY = [
    *("desktop", "--game", "Assault", "--network", "small", "--population-size", "8", "--num-parents", "2"),
    *("--num-envs", "4", "--num-elite-candidates", "2", "--num-validation-episodes", "1", "--max-episode-steps", "15"),
]


@pytest.mark.parametrize(
    ("preset", "network", "parents"), [("paper", "large", 20), ("random-search-paper", "small", 0)]
)
def test_paper_presets_are_the_published_protocol(module, read, preset, network, parents):
    settings = read(module, [preset])
    strategy, validation, population = settings.strategy, settings.validation, settings.population
    assert (strategy.population_size, strategy.num_parents) == (1_000, parents)
    assert not parents or strategy.mutation_std == 0.002
    assert (validation.num_elite_candidates, validation.num_validation_episodes) == (10, 30)
    assert (validation.num_test_episodes, population.test_max_episode_steps) == (200, 100_000)
    assert (population.network, population.noise, population.max_episode_steps) == (network, "published", "5000")
    assert (settings.env.preprocessing, settings.run.frames, settings.run.minutes) == ("uber", 6_000_000_000, None)


@pytest.mark.slow
def test_a_resumed_run_ends_whole_and_is_watched(tmp_path, script, rows, monkeypatch):
    monkeypatch.setattr("volvox.envs.envpool_tasks._seeds_of_starts", lambda noop_max: [0, 1])  # two exact starts of 30
    run_dir = tmp_path / "run"
    script("atari_ga.py", *TINY, "--run-dir", run_dir, "--generations", 1, "--no-video")
    options = ("--run-dir", run_dir, "--generations", 2, "--resume", "--score-episodes", 2)
    out, _ = script("atari_ga.py", *TINY, *options)
    assert "elite:" in out
    assert "random:" in out
    table = rows(run_dir)
    assert [row["generation"] for row in table] == [1, 2]
    assert all(table[1][name] > table[0][name] for name in ("frames", "episodes", "seconds"))
    assert table[0]["frames"] == (8 + 2) * 15 * 4  # with validation
    assert table[0]["episodes"] == 8 + 2
    present = set(os.listdir(run_dir))
    assert {"config.json", "metrics.jsonl", "checkpoints", "elite.json", "learning_curve.png", "score.json"} <= present
    assert any(name.endswith(".mp4") for name in present)

    assert main(["watch", str(run_dir), "--out", str(tmp_path / "new.mp4")]) == 0
    assert (tmp_path / "new.mp4").stat().st_size > 0
