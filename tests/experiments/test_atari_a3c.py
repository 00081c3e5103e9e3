"""The actor-critic's script as a user runs it: real Atari, in processes of its own."""

import json
import os
import re
import signal
from pathlib import Path

import jax
import pytest

TINY = [
    *("modern", "--game", "Pong", "--num-envs", "4", "--segment-length", "5", "--updates-per-iteration", "3"),
    *("--checkpoint-every", "1", "--episodic-life"),
]


@pytest.fixture(scope="module")
def a3c(script):
    return script("atari_a3c.py", TINY)


@pytest.mark.slow
def test_a_run_interrupted_and_resumed_ends_whole(tmp_path, a3c, rows, wait_for_rows):
    run_dir = tmp_path / "run"
    flags = ("--run-dir", run_dir, "--no-video")
    interrupted = a3c.start(*flags)
    wait_for_rows(run_dir, 2, interrupted)
    interrupted.send_signal(signal.SIGINT)
    interrupted.communicate(timeout=300)
    assert interrupted.returncode == 130
    done = len(rows(run_dir))

    code, _, err = a3c.run(*flags, "--resume", "--learning-rate", "0.5")
    assert code == 2
    assert "learning_rate" in err

    frames = (done + 1) * 3 * 5 * 4 * 4
    code, out, err = a3c.run("--run-dir", run_dir, "--resume", "--frames", frames, "--score-episodes", "1")
    assert code == 0, err
    assert "policy:" in out
    table = rows(run_dir)
    assert [row["iteration"] for row in table] == list(range(1, done + 2))
    assert [row["update"] for row in table] == [3 * (i + 1) for i in range(done + 1)]
    assert all(row["lag_max"] <= 1 for row in table)
    present = set(os.listdir(run_dir))
    assert {"config.json", "metrics.jsonl", "checkpoints", "learning_curve.png", "score.json"} <= present
    assert any(name.endswith(".mp4") for name in present)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--game", "Pongg"), "did you mean 'Pong'"),
        (("--num-envs", "5"), "num_envs=5"),
        (("--frames", "0"), "frames=0"),
        (("--segment-length", "0"), "segment_length"),
        (("--micro-batch", "7"), "micro_batch=7"),
        (("--first-stride", "2"), "first_stride=2 has no effect with small"),
        (("--lag", "0"), "lag=0"),
    ],
)
def test_bad_settings_are_refused(load, read, flags, message):
    module = load("atari_a3c")
    with pytest.raises(ValueError, match=re.escape(message)):
        module.make_algorithm(read(module, [*TINY, *flags]))


@pytest.fixture
def module(load):
    return load("atari_a3c")


@pytest.mark.slow_except("nature-modern", "lstm-ga3c")
@pytest.mark.parametrize("preset", ["modern", "ga3c"])
@pytest.mark.parametrize("network", ["small", "nature", "lstm", "ga3c", "ga3c-large"])
def test_presets_and_networks_make_an_algorithm(preset, network, module, read):
    algorithm, iterations = module.make_algorithm(read(module, [preset, "--network", network]))
    assert iterations is None  # frames end it
    assert algorithm.config["settings"]["loss_reduction"] == ("sum" if preset == "ga3c" else "mean")
    params = jax.eval_shape(algorithm.policy.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) > 500_000


def test_tuning_changes_flags_wherever_they_are(module, read):
    import launch  # beside the script

    flags = ["modern", "--num-envs", "32", "--segment-length", "10", "--threads", "3"]
    settings = read(module, flags)
    changed = launch.changed(settings, {"groups": 4, "micro_batch": 8})
    assert (changed.env.groups, changed.learner.micro_batch, changed.env.num_envs) == (4, 8, 32)
    assert launch.changed(changed, {"groups": settings.env.groups, "micro_batch": None}) == settings
    tried = launch.choices(settings)
    assert set(tried) == {"groups", "threads", "micro_batch"}
    assert tried["groups"] == (2, 1, 4)
    assert tried["threads"][0] == 3
    assert tried["micro_batch"] == (None, 1, 2, 8, 16)  # by default it is 4
    assert launch.choices(read(module, ["modern", "--segment-length", "2000"]))["micro_batch"] == (None,)
    everything = launch.choices(read(module, [*flags, "--tune", "all"]))
    assert set(everything) == {*tried, "num_envs", "segment_length"}
    assert (everything["num_envs"][0], everything["segment_length"][0]) == (32, 10)


def test_a_resumed_run_keeps_what_tuning_found(tmp_path, module, read, monkeypatch):
    import launch

    monkeypatch.setattr(launch.vx, "tune", lambda *args, **options: pytest.fail("tuned again"))
    flags = [*TINY, "--run-dir", str(tmp_path), "--tune", "machine"]
    tuned = {"groups": 1, "micro_batch": 2}
    given = {"groups": 2, "micro_batch": None}
    key = {"impl": "threefry2x32", "data": [0, 0]}
    found = {"tuned": tuned, "given": given}
    for config in ({"algorithm": {}, "about": found}, {"algorithm": found}):  # the second as written before format 3
        (tmp_path / "config.json").write_text(json.dumps({**config, "key": key}))
        assert launch._tuned(module.make_algorithm, read(module, flags)) == tuned
    assert launch._tuned(module.make_algorithm, read(module, flags)) == tuned
    settings = read(module, [*flags, "--micro-batch", "4"])  # another flag than was given is not overridden
    assert launch._tuned(module.make_algorithm, settings) == {"groups": 1}
    settings = read(module, [*TINY, "--run-dir", str(tmp_path / "other")])
    assert launch._tuned(module.make_algorithm, settings) == {}


@pytest.mark.parametrize(
    ("above", "frames", "minutes"), [(-20, "12.9", "19.2"), (0, "39.8", "58.8"), (18, "48.0", "70.7")]
)
def test_the_committed_run_of_ga3c_is_what_the_results_say(above, frames, minutes):
    root = Path(__file__).parents[2]
    (path,) = (root / "experiments" / "results" / "a3c-ga3c-constants").rglob("metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    after = max(i for i, row in enumerate(rows) if row["training_mean"] <= above) + 1
    assert f"{rows[after]['frames'] / 1e6:.1f}" == frames
    assert f"{rows[after]['seconds'] / 60:.1f}" == minutes
    lines = (root / "docs" / "results.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("|") and f"above {above} " in line.replace("**", " ")]
    assert f"{frames} million" in line
    assert minutes in line
