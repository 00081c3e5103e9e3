"""PPO's script for Atari as a user runs it: real emulators, in processes of its own."""

import re

import jax
import pytest

TINY = [
    *("cleanrl", "--game", "Pong", "--num-envs", "4", "--segment-length", "8", "--num-minibatches", "2"),
    *("--num-epochs", "2", "--network", "small", "--rounds-per-iteration", "2", "--checkpoint-every", "1"),
]


@pytest.mark.slow
def test_a_run_goes_on_to_its_frames(tmp_path, script, rows):
    ppo, run_dir = script("atari_ppo.py", TINY), tmp_path / "run"
    per_iteration = 2 * 8 * 4 * 4
    for iterations in (1, 2):
        frames = (iterations - 1) * 2 * per_iteration + 100  # the first has one round more
        code, _, err = ppo.run("--run-dir", run_dir, "--no-video", "--frames", frames, "--resume")
        assert code == 0, err
        assert [row["update"] for row in rows(run_dir)] == [8 * (i + 1) for i in range(iterations)]


@pytest.mark.parametrize("network", ["nature", "small", "lstm"])
def test_networks_make_an_algorithm(network, load, read):
    module = load("atari_ppo")
    algorithm, iterations = module.make_algorithm(read(module, ["cleanrl", "--network", network]))
    assert iterations is None  # frames end it
    params = jax.eval_shape(algorithm.policy.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) > 500_000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--frames", "80_000_000"), "give --anneal-timesteps 20000000, or None"),
        (("--network", "lstm", "--num-minibatches", "4"), "4 do not divide the 2 environments"),
        (("--micro-batch", "5"), "micro_batch=5 does not divide the 8 rows"),
    ],
)
def test_bad_settings_are_refused(load, read, flags, message):
    module = load("atari_ppo")
    with pytest.raises(ValueError, match=re.escape(message)):
        module.make_algorithm(read(module, [*TINY, *flags]))


def test_tuning_tries_parts_of_a_minibatch(load, read):
    module = load("atari_ppo")
    import launch  # beside the script

    tried = launch.choices(read(module, ["cleanrl"]))["micro_batch"]
    assert tried == (None, 32, 64, 128)
