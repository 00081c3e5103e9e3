"""Speed is measured without compilation, and tuning takes what is measurably faster."""

import sys
import time

import pytest

import volvox as vx
from volvox.runs.profile import measure_speed

from .conftest import random_walk

CHOICES = {"groups": [1, 2, 4], "num_envs": [8, 16]}


def slow_walk(pause=0.01, **changes):
    def hook(step):
        time.sleep(0.5 if step <= 2 else pause)  # as if compiling

    return random_walk(hook=hook, **changes)


def test_a_profile_is_a_table_of_the_parts():
    times = (2e-3, 1e-3, 5e-4)
    profile = vx.profile(slow_walk(profile=lambda state, seconds: times), seconds=0.3)
    assert (profile.emulators, profile.inference, profile.work) == times
    assert profile.bound == "emulators"
    assert 500 < profile.timesteps_per_second < 1001  # 10 frames of one timestep each a step of 10 ms
    assert all(word in str(profile) for word in ("emulators", "inference", "decoding", "overlapped"))
    with pytest.raises(ValueError, match="profiled"):
        vx.profile(slow_walk())


def test_the_time_of_evaluations_does_not_count():
    walk = slow_walk(pause=0.2)

    def step(state, **options):
        state, metrics = walk.step(state, **options)
        return state, metrics | {"evaluation_seconds": 0.15, "evaluation_frames": 10_000}

    _, rate = measure_speed(walk._replace(step=step), 0.1)
    assert 100 < rate < 201


def test_random_actions_before_the_first_update_are_not_measured():
    walk = random_walk(hook=lambda step: time.sleep(1e-4 if step <= 5 else 0.05))

    def step(state, **options):
        state, metrics = walk.step(state, **options)
        return state, metrics | {"update": max(state["step"] - 5, 0)}

    assert measure_speed(walk._replace(step=step), 0.1)[1] < 201  # 10 frames in 50 ms


@pytest.fixture
def measure(monkeypatch):
    """Replaces trials by a table of rates."""

    def use(rate):
        def trial(make, settings, seconds):
            value = rate(**settings)
            return {"error": "refused"} if value is None else {"timesteps_per_second": value}

        monkeypatch.setattr(sys.modules["volvox.runs.profile"], "_in_a_process", trial)
        return lambda choices=CHOICES, **options: vx.tune(random_walk, choices, progress=False, **options)

    return use


def test_the_fastest_settings_are_found_one_after_the_other(measure):
    tuned = measure(lambda groups, num_envs: 100.0 * groups * num_envs)()
    assert tuned.settings == {"groups": 4, "num_envs": 16}
    assert tuned.timesteps_per_second == 6400
    assert {"settings": {"groups": 1, "num_envs": 8}, "timesteps_per_second": 800.0} in tuned.trials


def test_small_gains_and_values_that_cannot_be_run_are_passed_over(measure):
    tuned = measure(lambda groups, num_envs: None if groups == 2 else 100.0 + groups)()
    assert tuned.settings == {"groups": 1, "num_envs": 8}
    assert any("error" in trial for trial in tuned.trials)
    assert measure(lambda groups, num_envs: 100.0 + groups)(min_gain=0.001).settings["groups"] == 4


def test_wrong_choices_are_refused(measure):
    for choices in ({}, {"groups": []}):
        with pytest.raises(ValueError, match="choices"):
            measure(lambda **settings: 1.0)(choices)
    with pytest.raises(ValueError, match="refused"):
        measure(lambda **settings: None)()


def paused_walk(pause):
    if pause < 0:
        raise ValueError("a negative pause")
    return slow_walk(pause)


@pytest.mark.slow
def test_trials_run_in_processes_of_their_own():
    tuned = vx.tune(paused_walk, {"pause": [0.001, -1.0]}, seconds=0.5, progress=False)
    assert tuned.settings == {"pause": 0.001}
    assert sum("negative" in trial.get("error", "") for trial in tuned.trials) == 1
