"""The script of novelty search as a user runs it, on real Atari."""

import numpy as np
import pytest

TINY = [
    *("--game", "Pong", "--population-size", "6", "--num-envs", "4", "--num-validation-episodes", "2"),
    *("--max-episode-steps", "12", "--num-neighbors", "3", "--archive-size", "20"),
    *("--every", "5", "--length", "3", "--network", "small"),
]


@pytest.mark.slow
def test_a_run_ends_whole(tmp_path, script, rows):
    run_dir = tmp_path / "run"
    options = ("--run-dir", run_dir, "--generations", 2, "--no-video", "--log")
    script("atari_novelty.py", "nsr-es", *TINY, *options)
    table = rows(run_dir)
    assert [row["generation"] for row in table] == [1, 2]
    # The meta-population is archived first, then the member that moved.
    assert [row["archive_size"] for row in table] == [3, 4]
    with np.load(sorted((run_dir / "log").iterdir())[-1]) as log:
        assert log["behavior"].shape == (6, 3 * 128)


@pytest.mark.parametrize("preset", ["ns-es", "nsr-es", "nsra-es", "ga"])
def test_paper_presets_see_the_whole_episode(module, read, preset):
    settings = read(module, [f"{preset}-paper"])
    behavior = settings.strategy.objective.behavior
    assert behavior.every * behavior.length == int(settings.population.max_episode_steps) == 5_000
    assert settings.env.preprocessing == "uber"
