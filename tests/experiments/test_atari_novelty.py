"""The script of novelty search as a user runs it: real Atari, in processes of its own."""

import re

import numpy as np
import pytest

TINY = [
    *("--game", "Pong", "--population-size", "6", "--num-envs", "4", "--num-validation-episodes", "2"),
    *("--max-episode-steps", "12", "--num-parents", "2", "--num-elite-candidates", "2", "--num-neighbors", "3"),
    *("--archive-size", "20", "--behavior-every", "5", "--behavior-length", "3", "--network", "small"),
]


@pytest.fixture(scope="module")
def novelty(script):
    return script("atari_novelty.py", TINY)


def test_a_run_ends_whole(tmp_path, novelty, rows):
    run_dir = tmp_path / "run"
    code, _, err = novelty.run("--run-dir", run_dir, "--generations", 2, "--no-video", "--log")
    assert code == 0, err
    table = rows(run_dir)
    assert [row["generation"] for row in table] == [1, 2]
    # The meta-population is archived first, then the member that moved.
    assert [row["archive_size"] for row in table] == [3, 4]
    with np.load(sorted((run_dir / "log").iterdir())[-1]) as log:
        assert log["behavior"].shape == (6, 3 * 128)


def test_each_strategy_and_behaviour_is_what_it_says(load):
    module = load("atari_novelty")
    for kind in ("ns_es", "nsr_es", "nsra_es", "ga"):
        settings = module.read_settings([*TINY, "--strategy", kind, "--behavior", "final_ram"])
        config = module.make_strategy(settings).config
        assert config["kind"] == {"ga": "novelty_ga"}.get(kind, kind)
        assert config["behavior"] == {"kind": "last", "extra": "ram", "size": 128}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--archive-size", "2"), "archive_size=2 is smaller than num_neighbors=3"),
        (("--strategy", "ga", "--num-neighbors", "6"), "num_neighbors=6"),
        (("--behavior-every", "0"), "every must be an integer of at least 1, got 0"),
        (("--population-size", "5"), "population_size=5 is odd"),
    ],
)
def test_bad_settings_are_refused(load, flags, message):
    module = load("atari_novelty")
    with pytest.raises(ValueError, match=re.escape(message)):
        module.make_algorithm(module.read_settings([*TINY, *flags]))
