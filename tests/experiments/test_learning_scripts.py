"""The scripts of single learners: a small run of each, and the algorithms of their presets and networks."""

import json

import jax
import pytest

A3C = "--num-envs 4 --segment-length 5 --updates-per-iteration 3"
PPO = "--num-envs 4 --segment-length 8 --num-minibatches 2 --num-epochs 2 --rounds-per-iteration 2"
TD3 = "--num-envs 4 --hidden 8 --batch-size 16 --random-timesteps 40 --replay-size 1000 --timesteps-per-iteration 60"
TINY = {
    "atari_a3c": f"modern --game Assault {A3C} --frames 500",
    "atari_ppo": f"cleanrl --game Assault {PPO} --network small --frames 500",
    "atari_pqn": f"cleanrl --game Pong {PPO} --network small --frames 500",
    "mujoco_a3c": f"mujoco --task InvertedPendulum {A3C} --frames 200",
    "mujoco_ppo": f"cleanrl --task InvertedPendulum {PPO} --hidden 8 --timesteps 128",
    "mujoco_sac": f"reference --task InvertedPendulum {TD3} --timesteps 120",
    "mujoco_td3": f"reference --task InvertedPendulum {TD3} --timesteps 120",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_small_run_is_trained_and_scored(name, tmp_path, script, rows):
    episodes = 0 if name.startswith("atari") else 2  # whole games take long; atari_ga.py is scored
    options = ("--run-dir", tmp_path / "run", "--no-video", "--score-episodes", episodes)
    script(f"{name}.py", *TINY[name].split(), *options)
    assert rows(tmp_path / "run")[-1]["update"] > 0
    if episodes:
        assert len(json.loads((tmp_path / "run" / "score.json").read_text())["policy"]["returns"]) == episodes


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("atari_a3c", "ga3c --network ga3c-large --first-stride 3"),
        ("atari_a3c", "modern --network lstm"),
        ("atari_ppo", "desktop"),
        ("atari_ppo", "cleanrl --network nature"),
        ("atari_pqn", "paper --network lstm"),
        ("atari_pqn", "gpu"),
        ("mujoco_td3", "reference --densely-connected --representation"),
    ],
)
def test_presets_and_networks_make_an_algorithm(name, flags, load, read):
    module = load(name)
    algorithm, _ = module.make_algorithm(read(module, flags.split()))
    assert sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(algorithm.policy.init, jax.random.key(0)))) > 10_000
    algorithm.close()


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("atari_a3c", "modern --first-stride 2"),
        ("atari_ppo", "cleanrl --frames 80_000_000"),
        ("atari_a3c", "modern --frames 2_000_000 --anneal-timesteps 250_000"),
    ],
)
def test_bad_settings_are_refused(name, flags, load, read):
    module = load(name)
    with pytest.raises(ValueError, match=r"first_stride|anneal"):
        module.make_algorithm(read(module, flags.split()))


def test_the_rate_is_annealed_over_the_timesteps_of_each_learner(load, read):
    module, flags = load("mujoco_ppo"), "cleanrl --num-learners 4 --timesteps None --frames"
    module.make_algorithm(read(module, f"{flags} 20_000_000".split()))[0].close()
    with pytest.raises(ValueError, match="the run has 1050000 timesteps"):
        module.make_algorithm(read(module, f"{flags} 21_000_000".split()))
