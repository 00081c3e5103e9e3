"""Flags come from the fields of settings; presets, defaults and refusals."""

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import optax
import pytest

import volvox as vx
from volvox.report.files import read_config

SCRIPTS = [
    *("atari_ga", "atari_es", "atari_novelty", "atari_a3c", "atari_ppo", "atari_pqn"),
    *("mujoco_a3c", "mujoco_ppo", "mujoco_td3"),
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_presets_are_read_and_flags_change_them(script, load, read):
    module = load(script)
    for preset, (_, settings) in module.PRESETS.items():
        assert read(module, [preset]) == settings
        changed = read(module, [preset, "--minutes", "7", "--groups", "4"])
        run, env = dataclasses.replace(settings.run, minutes=7), dataclasses.replace(settings.env, groups=4)
        assert changed == dataclasses.replace(settings, run=run, env=env)


@pytest.mark.parametrize(("script", "preset"), [("atari_ga", "desktop"), ("mujoco_td3", "reference")])
def test_flags_alone_change_the_default_preset(script, preset, load, read):
    module = load(script)
    assert read(module, []) == module.PRESETS[preset][1]
    assert read(module, ["--seed", "7"]) == read(module, [preset, "--seed", "7"])


@pytest.mark.parametrize(
    ("script", "flags", "budgets"),
    [
        ("atari_ppo", "cleanrl", (40_000_000, None)),
        ("atari_ppo", "cleanrl --timesteps 500", (None, 500)),
        ("atari_ppo", "cleanrl --timesteps 500 --frames 600", (600, 500)),
        ("mujoco_td3", "reference --frames 600", (600, None)),
        ("mujoco_td3", "reference --timesteps None --minutes 5", (None, None)),
    ],
)
def test_a_budget_in_frames_or_timesteps_replaces_that_of_the_preset(script, flags, budgets, load, read):
    run = read(load(script), flags.split()).run
    assert (run.frames, run.timesteps) == budgets


def test_a_preset_that_does_not_exist_is_refused(load, read, capsys):
    module = load("atari_ga")
    with pytest.raises(SystemExit) as refusal:
        read(module, ["fast"])
    assert refusal.value.code == 2
    printed = capsys.readouterr().err
    assert all(preset in printed for preset in module.PRESETS)


def test_reading_flags_does_not_start_jax():
    """Processes are joined before that."""
    code = """
import importlib, pathlib
import launch
for path in sorted(pathlib.Path(launch.__file__).parent.glob("*.py")):
    script = importlib.import_module(path.stem)
    if isinstance(presets := getattr(script, "PRESETS", None), dict) and hasattr(script, "make_algorithm"):
        launch.read(presets, None, [])
"""
    experiments = str(Path(__file__).parents[2] / "experiments")
    environment = os.environ | {"PYTHONPATH": experiments, "JAX_PLATFORMS": "none"}  # starting JAX would fail
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_flags_may_be_functions(load, read):
    learner = read(load("atari_ppo"), ["cleanrl", "--optimizer", "optax.sgd", "--learning-rate", "0.5"]).learner
    assert (learner.optimizer, learner.learning_rate) == (optax.sgd, 0.5)
    assert load("launch")._shown(functools.partial(optax.adam, eps=0.1)) == ["optax.adam eps=0.1"]


def test_flags_may_be_linear_schedules(load, read):
    epsilon = read(load("atari_pqn"), ["paper", "--epsilon", "linear:1,0.1,1_000"]).learner.epsilon
    assert [float(epsilon(count)) for count in (0, 500, 1_000, 2_000)] == pytest.approx([1, 0.55, 0.1, 0.1])
    assert load("launch")._shown(epsilon) == ["linear:1.0,0.1,1000"]
    for wrong in ("linear:1,0", "linear:1,0,0", "linear:a,0,9"):
        with pytest.raises(ValueError, match="START,END,COUNT"):
            load("launch")._parse((float, Callable), [wrong])


@pytest.mark.parametrize("words", [["--checkpoint-every", "0"], ["--frames", "0"], ["--minutes", "-1"]], ids=" ".join)
def test_settings_that_do_not_fit_are_refused(words, load, read):
    with pytest.raises(ValueError, match=r".+"):
        read(load("atari_ga"), words)


def test_workers_are_settings_of_ray(load):
    flags = load("flags")
    assert flags.ray_workers("1") is None
    workers = flags.ray_workers("3", "10.0.0.1:6379")
    assert (workers.num_actors, workers.address) == (3, "10.0.0.1:6379")
    with pytest.raises(ValueError, match="workers"):
        flags.Population(ray_address="10.0.0.1:6379")


def test_ranges_of_a_sweep_are_read(load):
    flags, space = load("flags"), vx.space
    words = ("learning-rate=log:1e-5:1e-3", "num-epochs=integers:1:8", "network=choice:small:nature:None:2")
    expected = {"learning_rate": space.log(1e-5, 1e-3), "num_epochs": space.integers(1, 8)}
    expected["network"] = space.choice("small", "nature", None, 2)
    assert flags.Sweep(space=words, trials=3).ranges() == expected
    for wrong in ("learning-rate=log:1:0", "learning-rate=log:1", "learning-rate", "a=system:ls"):
        with pytest.raises(ValueError, match="--space"):
            flags.Sweep(space=(wrong,), trials=3).ranges()
    with pytest.raises(ValueError, match="one range"):
        flags.Sweep(space=("discount=uniform:0:1", "discount=log:0.1:1"), trials=3).ranges()


@pytest.mark.parametrize("words", [("--score-episodes", "3"), ("--no-video",), ("--tune=machine",), ("--minutes", "5")])
def test_flags_that_a_sweep_does_not_use_are_refused(words, load):
    script, launch = load("mujoco_ppo"), load("launch")
    words = ["--space", "discount=uniform:0.9:0.99", "--trials", "2", *words]
    with pytest.raises(ValueError, match="is for runs"):
        launch.sweep(script.make_algorithm, script.PRESETS, None, words)


def test_a_script_searches_for_its_settings(load, tmp_path):
    script, launch = load("mujoco_ppo"), load("launch")
    words = ["--trials", "2", "--timesteps", "64", "--segment-length", "16", "--run-dir", str(tmp_path / "sweep")]
    with pytest.raises(ValueError, match="no setting 'learning_rat'"):
        launch.sweep(script.make_algorithm, script.PRESETS, None, ["--space", "learning-rat=log:1:2", *words])
    words = ["--space", "learning-rate=log:1e-4:1e-2", *words, "--metric", "value_loss", "--num-minibatches", "1"]
    assert launch.sweep(script.make_algorithm, script.PRESETS, None, words) == 0
    trials = vx.Sweep(tmp_path / "sweep").trials
    assert [trial["state"] for trial in trials] == ["complete"] * 2
    for trial in trials:
        rate = trial["settings"]["learning_rate"]
        assert read_config(trial["run"])["algorithm"]["settings"]["learning_rate"] == rate
