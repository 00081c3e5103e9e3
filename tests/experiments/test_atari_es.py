"""The evolution strategies' script as a user runs it, on real Atari."""

import optax
import pytest

TINY = [
    *("desktop", "--game", "Pong", "--population-size", "4", "--num-envs", "4", "--num-validation-episodes", "2"),
    *("--max-episode-steps", "10", "--network", "small"),
]


@pytest.mark.slow
def test_a_run_ends_whole(tmp_path, script, rows):
    run_dir = tmp_path / "run"
    script("atari_es.py", *TINY, "--run-dir", run_dir, "--generations", 2, "--no-video")
    table = rows(run_dir)
    assert [row["generation"] for row in table] == [1, 2]
    assert [row["frames"] for row in table] == [(4 + 2) * 10 * 4, (8 + 6) * 10 * 4]  # with validation
    assert all(row["gradient_norm"] >= 0 for row in table)
    assert not (run_dir / "elite.json").exists()  # nobody descends from single members


def test_an_optimizer_is_an_import_path(module, read, capsys):
    strategy = read(module, [*TINY, "--optimizer", "optax:sgd", "--learning-rate", "linear:0.1,0.01,9"]).strategy
    assert (strategy.optimizer, strategy.learning_rate) == (optax.sgd, "linear:0.1,0.01,9")
    with pytest.raises(SystemExit) as refusal:
        read(module, [*TINY, "--optimizer", "optax:adamm"])
    assert refusal.value.code == 2
    assert "optax:adamm" in capsys.readouterr().err
