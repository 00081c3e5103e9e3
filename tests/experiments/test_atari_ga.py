"""The script of the genetic algorithm as a user runs it, on real Atari."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = [
    *("desktop", "--game", "Assault", "--network", "small", "--population-size", "8", "--num-parents", "2"),
    *("--num-envs", "4", "--num-elite-candidates", "2", "--num-validation-episodes", "1", "--max-episode-steps", "15"),
]


def documented():
    """Flags of every call of the script that README and Makefile show."""
    lines = (ROOT / "README.md").read_text().splitlines()
    calls = [line.split("atari_ga.py", 1)[1].split() for line in lines if "experiments/atari_ga.py " in line]
    makefile = (ROOT / "Makefile").read_text()
    return [*calls, re.search(r"^TRAIN \?= (.*)$", makefile, re.MULTILINE).group(1).split()]


@pytest.fixture
def module(load):
    return load("atari_ga")


@pytest.mark.parametrize("flags", documented(), ids=" ".join)
def test_documented_commands_are_understood(flags, module, read):
    settings = read(module, flags)
    assert settings.strategy.population_size > 0
    values = {"--game": settings.env.game, "--run-dir": settings.run.run_dir}
    for flag, value in values.items():
        if flag in flags:
            assert value == flags[flags.index(flag) + 1]


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
def test_a_run_interrupted_and_resumed_ends_whole(tmp_path, script, start, rows, wait_for_rows):
    run_dir = tmp_path / "run"
    interrupted = start("atari_ga.py", *TINY, "--run-dir", run_dir, "--generations", "1000", "--no-video")
    wait_for_rows(run_dir, 1, interrupted)
    interrupted.send_signal(signal.SIGINT)
    interrupted.communicate(timeout=300)
    assert interrupted.returncode == 130
    done = len(rows(run_dir))
    command = json.loads((run_dir / "config.json").read_text())["provenance"]["command"]
    assert f"atari_ga.py {' '.join(TINY)} --run-dir" in command

    options = ("--run-dir", run_dir, "--generations", done + 1, "--resume", "--score-episodes", 2)
    code, out, err = script("atari_ga.py", *TINY, *options)
    assert code == 0, err
    assert "elite:" in out
    assert "random:" in out
    table = rows(run_dir)
    assert [row["generation"] for row in table] == list(range(1, done + 2))
    for name in ("frames", "episodes", "seconds"):
        values = [row[name] for row in table]
        assert values == sorted(values)
        assert len(set(values)) == len(values)
    assert table[0]["frames"] == (8 + 2) * 15 * 4  # with validation
    assert table[0]["episodes"] == 8 + 2
    present = set(os.listdir(run_dir))
    assert {"config.json", "metrics.jsonl", "checkpoints", "elite.json", "learning_curve.png", "score.json"} <= present
    assert any(name.endswith(".mp4") for name in present)
