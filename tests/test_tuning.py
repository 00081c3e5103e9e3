"""Tuning: trials in processes of their own, a change only where the gain is real, results kept."""

import math
import multiprocessing
import os
import re
import time
from types import SimpleNamespace

import probes
import pytest

import volvox as vx
from volvox import tuning
from volvox.tuning import _is_faster, measure_speed
from volvox.types import Algorithm, Interrupted, Policy


def make(*, speed=1, fail=None):
    """An algorithm that counts so many steps every hundredth of a second."""
    if fail == "value":
        raise ValueError("this does not fit")
    if fail == "crash":
        os._exit(3)

    def step(state, *, monitor=None):
        for i in range(1, 10_000):
            time.sleep(0.01)
            if monitor({"phase": "training", "stepped": i * speed}):
                raise Interrupted("enough")
        return state, {}

    def nothing(*args):
        return None

    policy = Policy(*[nothing] * 5, config={})
    return Algorithm(nothing, step, nothing, policy, probes.constant(), {}, nothing)


def tune(choices, tmp_path, **options):
    return tuning.tune(make, choices, seconds=0.2, cache=tmp_path / "cache", **options)


@pytest.mark.slow
def test_the_fastest_is_found_and_kept(tmp_path, capsys):
    tuned = tune({"speed": (2, 8)}, tmp_path)
    assert tuned.settings == {"speed": 8}
    tried = [trial["settings"]["speed"] for trial in tuned.trials]
    assert tried == [2, *(2, 8), *(8, 2), *(2, 8)]  # pairs in alternating order
    assert tuned.timesteps_per_second > 0
    assert capsys.readouterr().out.count("timesteps/s") == 7
    again = tune({"speed": (2, 8)}, tmp_path)
    assert again == tuned
    assert capsys.readouterr().out == ""  # nothing was run
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_text("{}")
    with pytest.raises(ValueError, match="remove it"):
        tune({"speed": (2, 8)}, tmp_path)


@pytest.mark.slow
def test_values_that_cannot_be_run_are_passed_over(tmp_path):
    tuned = tune({"fail": (None, "value", "crash")}, tmp_path)
    assert tuned.settings == {"fail": None}
    errors = [trial["error"] for trial in tuned.trials if "error" in trial]
    assert errors == ["ValueError: this does not fit", "the process ended with exit code 3"]


def with_workers():
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    return {"exit code": process.exitcode}


@pytest.mark.slow
def test_trials_may_have_processes_of_their_own():
    """As environments of Gymnasium have with workers."""
    assert tuning._in_a_process(with_workers) == {"exit code": 0}


@pytest.mark.slow
def test_where_the_search_begins_must_run(tmp_path):
    with pytest.raises(ValueError, match="this does not fit"):
        tune({"fail": ("value", None)}, tmp_path)


@pytest.mark.parametrize("choices", [{}, {"speed": ()}])
def test_choices_are_needed(choices, tmp_path):
    with pytest.raises(ValueError, match="choices"):
        tune(choices, tmp_path)


@pytest.mark.parametrize(("options", "message"), [({"min_gain": -0.1}, "min_gain"), ({"seconds": 0}, "seconds")])
def test_bad_numbers_raise(options, message):
    with pytest.raises(ValueError, match=message):
        tuning.tune(make, {"speed": (1, 2)}, cache=None, **options)


@pytest.mark.parametrize(
    ("gains", "faster"),
    [
        ([0.05, 0.06, 0.05], True),
        ([-0.01], False),
        ([0.01, 0.015, 0.01], False),  # real, but not worth a change
        ([0.20, -0.10, 0.05], False),  # noise
    ],
)
def test_a_change_needs_a_real_gain(gains, faster):
    best, candidate = {"speed": 1}, {"speed": 2}
    calls = []

    def measure(settings):
        pair = len(calls) // 2
        calls.append(settings)
        return math.exp(gains[pair]) * 100 if settings is candidate else 100.0

    assert _is_faster(measure, best, candidate, 0.02) is faster
    assert len(calls) == 2 * len(gains)


def test_what_is_compiled_is_not_measured(monkeypatch):
    """Two steps compile, for 100 seconds; others make 50 timesteps in 5, told in one call or in five."""
    clock = [0.0]
    monkeypatch.setattr(tuning, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    for calls in (1, 5):
        watch = tuning._Stopwatch(1e9)
        for step in range(4):
            watch.begin_step()
            if step < 2:
                watch({"phase": "compiling"})
                clock[0] += 100
            for number in range(calls):
                clock[0] += 5 / calls
                watch({"phase": "training", "stepped": 50 * (number + 1) // calls})
        assert watch.stepped / watch.spent == 10
        assert watch.stepped >= 100  # of the last two steps at least


@pytest.mark.slow_except("many calls a step")
@pytest.mark.parametrize("chunk_seconds", [0.01, 1.0], ids=["many calls a step", "one call a step"])
def test_a_real_algorithm_is_measured(chunk_seconds):
    net = vx.networks.ActorCritic(2, vx.networks.MLP(4, hidden=(4,)))
    env = probes.corridor(num_envs=8, groups=2)
    settings = vx.A3C(segment_length=5, updates_per_iteration=3)
    algorithm = vx.learn(settings, net, env, chunk_seconds=chunk_seconds)
    assert measure_speed(algorithm, 0.05) > 0
    algorithm.close()


def test_an_algorithm_that_tells_nothing_is_given_up():
    silent = make()._replace(step=lambda state, *, monitor=None: (state, {}))
    with pytest.raises(RuntimeError, match="no timesteps in ten steps"):
        measure_speed(silent, 0.1)


def test_the_processor_has_a_name():
    assert re.search("[a-z]{3}", tuning.processor(), re.IGNORECASE)


def test_a_result_that_cannot_be_kept_is_returned(tmp_path, monkeypatch):
    def refused(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tuning, "write_file", refused)
    monkeypatch.setattr(tuning, "_in_a_process", lambda function, *args: {"timesteps_per_second": 5.0})
    with pytest.warns(UserWarning, match="the result of tuning is not kept for the next time: .*No space left"):
        tuned = tuning.tune(make, {"speed": (2,)}, seconds=0.2, cache=tmp_path / "cache", progress=False)
    assert (tuned.settings, tuned.timesteps_per_second) == ({"speed": 2}, 5.0)
