import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox import _monitor, _record, _resources, checkpoint
from volvox.report import rows
from volvox.training import read_config, train
from volvox.types import Algorithm, Env, EnvSpec, Interrupted, Policy

SPEC = EnvSpec("hill", (1,), np.float32, 2, None, None, None, 10, 1)
ENV = Env(SPEC, 1, 1, lambda seed, **_: (), {})


POLICY = Policy(
    init=lambda key: jnp.zeros(4),
    initial_state=lambda batch_size: (),
    apply=lambda x, observation, state: (observation * x[0], state),
    sample=lambda key, output: output,
    mode=lambda output: output,
    config={},
)


class Hill(NamedTuple):
    """The state is saved as it is: typed keys, NamedTuples and Python numbers."""

    key: jax.Array
    x: jax.Array
    step: int


def hill(*, size=4, chunk_seconds=0.0, chunks=1, interrupt=None, calls=None, extra=None):
    """Climbs -|x|² from a random start; each step draws from a key folded with the step's number."""

    def init(key):
        return Hill(key, jax.random.normal(key, (size,)), 0)

    def step(state, *, monitor=None):
        if calls is not None:
            calls.append("step")
        number = state.step + 1
        for chunk in range(chunks):
            time.sleep(chunk_seconds)
            if interrupt is not None:
                interrupt(number, chunk)
            figures = {"phase": "training", "done": chunk + 1, "total": chunks, "frames_per_second": 60.0}
            if monitor is not None and monitor(figures):
                raise Interrupted(f"step {number}")
        candidate = state.x + 0.1 * jax.random.normal(jax.random.fold_in(state.key, number), (size,))
        x = jnp.where(jnp.sum(candidate**2) < jnp.sum(state.x**2), candidate, state.x)
        row = {"generation": number, "frames": 40 * number, "training_best": -float(jnp.sum(x**2)), **(extra or {})}
        return Hill(state.key, x, number), row

    return Algorithm(
        init=init,
        step=step,
        variables=lambda state: state.x,
        policy=POLICY,
        env=ENV,
        config={"algorithm": "hill", "size": size},
        close=lambda: None,
    )


def with_save(algorithm):
    """The same algorithm, which saves a part of its state."""

    def restore(tree):
        return Hill(jax.random.wrap_key_data(jnp.asarray(tree["bits"])), jnp.asarray(tree["x"]), tree["step"])

    return algorithm._replace(
        save=lambda state: {"bits": jax.random.key_data(state.key), "x": state.x, "step": state.step}, restore=restore
    )


def quietly(algorithm, **kwargs):
    return train(algorithm, **{"progress": False, "loggers": (), **kwargs})


def lasting(rows):
    """Rows without their times, which no two runs share."""
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


def numbers(run_dir):
    return [row["generation"] for row in rows.read_metrics(run_dir / "metrics.jsonl")]


def assert_same_run(a, b):
    assert lasting(a.metrics) == lasting(b.metrics)
    chex.assert_trees_all_equal(a.state, b.state)
    assert type(a.state) is type(b.state) is Hill


def test_a_run_and_its_directory(tmp_path):
    run_dir = tmp_path / "runs" / "a"
    run = train(hill(), steps=3, run_dir=run_dir, keep_checkpoints=2, progress=False)
    assert [row["generation"] for row in run.metrics] == [1, 2, 3]
    assert not run.interrupted
    assert run.exit_code == 0
    assert sorted(p.name for p in run_dir.iterdir() if not p.name.startswith(".")) == [
        "checkpoints",
        "config.json",
        "fingerprint.json",
        "learning_curve.png",
        "metrics.jsonl",
        "tensorboard",
    ]
    assert rows.read_metrics(run_dir / "metrics.jsonl") == run.metrics
    assert checkpoint.steps(run_dir / "checkpoints") == [2, 3]
    config = json.loads((run_dir / "config.json").read_text())
    assert config["algorithm"] == {"algorithm": "hill", "size": 4}
    assert config["key"] == {"impl": "threefry2x32", "data": [0, 0]}
    assert config["versions"].keys() == {"python", "volvox", "jax", "envpool", "optax"}
    assert config["versions"]["jax"] == jax.__version__
    seconds = [row["seconds"] for row in run.metrics]
    assert seconds == sorted(seconds)
    assert all(row["step_seconds"] >= 0 for row in run.metrics)


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = quietly(hill(), steps=2)
    assert len(run.metrics) == 2
    assert run.run_dir is None
    assert os.listdir(tmp_path) == []
    assert run.plot() is not None
    with pytest.raises(ValueError, match="say where to write the video"):
        run.watch()


@pytest.mark.parametrize(
    "seed", [3, np.int64(3), jax.random.key(3), jax.random.key(3, impl="rbg"), jax.random.PRNGKey(3)], ids=repr
)
def test_all_kinds_of_seeds_are_recorded(tmp_path, seed):
    run = quietly(hill(), seed=seed, steps=1, run_dir=tmp_path / "a")
    assert jnp.issubdtype(run.state.key.dtype, jax.dtypes.prng_key)
    quietly(hill(), seed=seed, steps=2, run_dir=tmp_path / "a", resume=True)
    with pytest.raises(ValueError, match=r"key\.(data|impl)"):
        quietly(hill(), seed=4, steps=2, run_dir=tmp_path / "a", resume=True)


def test_an_integer_is_the_key_of_that_seed():
    assert_same_run(quietly(hill(), seed=3, steps=2), quietly(hill(), seed=jax.random.key(3), steps=2))
    assert_same_run(quietly(hill(), steps=2), quietly(hill(), seed=jax.random.PRNGKey(0), steps=2))


def test_an_algorithm_may_save_less_than_its_state(tmp_path):
    quietly(with_save(hill()), steps=2, run_dir=tmp_path / "a")
    assert checkpoint.restore(tmp_path / "a" / "checkpoints", 2).keys() == {"bits", "x", "step"}
    run = quietly(with_save(hill()), steps=5, run_dir=tmp_path / "a", resume=True)
    assert_same_run(run, quietly(hill(), steps=5))


def test_a_state_of_another_structure_is_refused(tmp_path):
    quietly(hill(), steps=1, run_dir=tmp_path / "a")
    other = hill()._replace(init=lambda key: hill(size=5).init(key))
    with pytest.raises(ValueError, match=r"another state: at 'x' it holds \(4,\) float32, and this one \(5,\) float32"):
        quietly(other, steps=2, run_dir=tmp_path / "a", resume=True)


# ---- the elite ----


def elite_of(run_dir):
    return json.loads((run_dir / "elite.json").read_text())


def lineages():
    return hill()._replace(genome=lambda state: {"generation": state.step, "x": state.x.tolist()})


def test_the_elite_is_of_the_newest_checkpoint(tmp_path):
    run_dir = tmp_path / "a"
    run = quietly(lineages(), steps=5, run_dir=run_dir, checkpoint_every=3)
    assert elite_of(run_dir) == {"generation": 5, "x": run.state.x.tolist()}


def test_there_is_no_elite_before_the_first_step(tmp_path):
    quietly(lineages()._replace(step=hill(interrupt=raise_signal_at(1, 0)).step), steps=5, run_dir=tmp_path / "a")
    assert not (tmp_path / "a" / "elite.json").exists()


def test_resume_with_nothing_left_to_do_writes_elite_plot_and_fingerprint_again(tmp_path):
    run_dir = tmp_path / "a"
    run = quietly(lineages(), steps=3, run_dir=run_dir)
    # As a kill leaves it between a checkpoint and its elite, or an older version that reported another one.
    (run_dir / "elite.json").write_text('{"generation": 2}')
    (run_dir / "learning_curve.png").unlink()
    before = (run_dir / "fingerprint.json").read_text()
    (run_dir / "fingerprint.json").unlink()
    quietly(lineages(), steps=3, run_dir=run_dir, resume=True)
    assert (run_dir / "fingerprint.json").read_text() == before
    assert elite_of(run_dir) == {"generation": 3, "x": run.state.x.tolist()}
    assert (run_dir / "learning_curve.png").exists()


def test_the_elite_goes_back_with_the_state(tmp_path):
    run_dir = tmp_path / "a"
    quietly(lineages(), steps=3, run_dir=run_dir)
    (run_dir / "checkpoints" / "00000003" / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="going back to step 2"):
        quietly(lineages(), steps=2, run_dir=run_dir, resume=True)
    assert elite_of(run_dir)["generation"] == 2


@pytest.mark.parametrize("checkpoint_every", [1, 3])
def test_resumed_equals_straight(tmp_path, checkpoint_every):
    straight = quietly(hill(), steps=7)
    for steps in (2, 5, 7):
        run = quietly(hill(), steps=steps, run_dir=tmp_path / "a", resume=True, checkpoint_every=checkpoint_every)
        assert numbers(tmp_path / "a") == list(range(1, steps + 1))
    assert_same_run(run, straight)
    assert [row["seconds"] for row in run.metrics] == sorted(row["seconds"] for row in run.metrics)


def test_resuming_a_finished_run_does_nothing(tmp_path):
    first = quietly(hill(), steps=3, run_dir=tmp_path / "a")
    calls = []
    again = quietly(hill(calls=calls), steps=3, run_dir=tmp_path / "a", resume=True)
    assert calls == []
    assert again.metrics == first.metrics
    assert again.exit_code == 0


def test_resuming_where_nothing_is_begins_and_says_so(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        quietly(hill(), steps=1, run_dir=tmp_path / name, resume=True)
        assert f"{name}: no run there yet, begins now" in capsys.readouterr().err
        quietly(hill(), steps=2, run_dir=tmp_path / name, resume=True)
        assert f"{name}: going on after generation 1" in capsys.readouterr().err


def test_an_existing_run_is_never_overwritten(tmp_path):
    quietly(hill(), steps=1, run_dir=tmp_path / "a")
    before = (tmp_path / "a" / "metrics.jsonl").read_bytes()
    calls = []
    with pytest.raises(FileExistsError, match=rf"{tmp_path}/a already holds a run \(config.json.*resume=True"):
        quietly(hill(calls=calls), steps=1, run_dir=tmp_path / "a")
    assert calls == []
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == before


def test_a_run_without_a_step_is_begun_anew(tmp_path):
    def fails(state, *, monitor=None):
        raise ZeroDivisionError

    for size in (0, 1):
        with pytest.raises(ZeroDivisionError):
            quietly(hill()._replace(step=fails, config={"size": size}), steps=1, run_dir=tmp_path / "a", seed=1)
    with pytest.raises(ZeroDivisionError):  # before anything of the new run is written
        quietly(hill()._replace(init=lambda key: 1 // 0), steps=1, run_dir=tmp_path / "a")
    assert checkpoint.steps(tmp_path / "a" / "checkpoints") == [0]
    mended = hill()._replace(config={"size": 2})
    run = quietly(mended, steps=2, run_dir=tmp_path / "a", seed=2)
    assert read_config(tmp_path / "a")["algorithm"] == {"size": 2}
    chex.assert_trees_all_equal(run.state, quietly(mended, steps=2, seed=2).state)
    again = quietly(mended, steps=3, run_dir=tmp_path / "a", seed=2, resume=True)
    assert [row["generation"] for row in again.metrics] == [1, 2, 3]
    with pytest.raises(FileExistsError):
        quietly(mended, steps=2, run_dir=tmp_path / "a", seed=2)


def test_whenever_another_process_ends_what_was_done_is_saved(tmp_path):
    """Processes agree several times in a step; each of these times is the last one once."""

    def largest_until(last):
        def largest(number):
            calls.append(number)
            if len(calls) > last:
                raise ConnectionError("the other process ended")
            return number

        return largest

    calls = []
    quietly(hill()._replace(largest=largest_until(10**6)), steps=1, run_dir=tmp_path / "whole")
    assert len(calls) >= 2
    for last in range(len(calls), 3 * len(calls)):
        calls, run_dir = [], tmp_path / str(last)
        with pytest.raises(ConnectionError):
            quietly(hill()._replace(largest=largest_until(last)), steps=50, run_dir=run_dir, checkpoint_every=100)
        assert checkpoint.steps(run_dir / "checkpoints")[-1] == len(rows.read_metrics(run_dir / "metrics.jsonl")) > 0


@pytest.mark.parametrize("left", ["config.json", "metrics.jsonl", "checkpoints"])
def test_any_part_of_a_run_counts_as_one(tmp_path, left):
    quietly(hill(), steps=1, run_dir=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / left).rename(tmp_path / "b" / left)
    with pytest.raises(FileExistsError, match=left):
        quietly(hill(), steps=1, run_dir=tmp_path / "b")
    if left != "config.json":
        with pytest.raises(ValueError, match=r"holds no run: there is no .*config\.json"):
            quietly(hill(), steps=1, run_dir=tmp_path / "b", resume=True)


def test_other_settings_are_refused_naming_each(tmp_path):
    def configured(**config):
        return hill(calls=calls)._replace(config=config)

    calls = []
    first = configured(size=4, env={"game": "a", "skip": 4}, rule=(1, 2), old=None)
    quietly(first, steps=1, run_dir=tmp_path / "a")
    calls.clear()
    other = configured(size=5, env={"game": "b", "skip": 4}, rule=(1, 2), new=True)
    with pytest.raises(ValueError, match="other settings") as error:
        quietly(other, seed=9, steps=2, run_dir=tmp_path / "a", resume=True)
    assert str(error.value).splitlines()[1:] == [
        "  algorithm.size: saved 4, now 5",
        '  algorithm.env.game: saved "a", now "b"',
        "  key.data (seed): saved [0, 0], now [0, 9]",
        "  algorithm.new: saved null, now true",  # a setting that is not there is None
    ]
    assert calls == []
    # the budget and the versions may differ
    path = tmp_path / "a" / "config.json"
    path.write_text(path.read_text().replace(jax.__version__, "0.0.1"))
    quietly(first, steps=2, run_dir=tmp_path / "a", resume=True, checkpoint_every=2, stop_after=100)


def test_settings_that_are_no_json_are_refused():
    with pytest.raises(TypeError, match=r"algorithm\.config and about must hold JSON values only.*numpy\.float32"):
        quietly(hill()._replace(config={"a": np.float32(1)}), steps=1)
    with pytest.raises(TypeError, match=r"algorithm\.config and about must hold JSON values only"):
        quietly(hill()._replace(config={"a": float("nan")}), steps=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"checkpoint_every": 0}, "checkpoint_every must be an integer of at least 1"),
        ({"keep_checkpoints": 0}, "keep_checkpoints must be an integer of at least 1"),
        ({"stop_after": 0}, "stop_after=.*: give a finite number above 0"),
        ({"stop_after": float("nan")}, "stop_after=.*: give a finite number above 0"),
        ({"max_frames": 0}, "max_frames must be an integer of at least 1"),
        ({"resume": True}, "resume=True needs a run_dir"),
    ],
)
def test_bad_arguments(arguments, message):
    calls = []
    with pytest.raises(ValueError, match=message):
        quietly(hill(calls=calls), **{"steps": 1, **arguments})
    assert calls == []


def test_two_writers_are_refused(tmp_path):
    def second(number, chunk):
        with pytest.raises(BlockingIOError, match="another process is training in"):
            quietly(hill(), steps=1, run_dir=tmp_path / "a", resume=True)

    quietly(hill(interrupt=second), steps=1, run_dir=tmp_path / "a")


# ---- rows ----


def test_rows_are_strict_json(tmp_path):
    extra = {"nan": float("nan"), "inf": np.float32("inf"), "array": jnp.array([1.0, jnp.nan]), "n": np.int64(3)}
    run = quietly(hill(extra=extra), steps=1, run_dir=tmp_path / "a")
    text = (tmp_path / "a" / "metrics.jsonl").read_text()

    def refuse(constant):
        raise AssertionError(constant)

    row = json.loads(text, parse_constant=refuse)
    assert (row["nan"], row["inf"], row["array"], row["n"]) == (None, None, [1.0, None], 3)
    assert row == run.metrics[0]


def test_the_steps_name_and_number(tmp_path):
    algorithm = hill()
    unnamed = algorithm._replace(step=lambda state, *, monitor=None: (state, {"seconds": 1e9, "loss": 1}))
    run = quietly(unnamed._replace(step_name="round"), steps=2)
    assert [row["round"] for row in run.metrics] == [1, 2]
    assert run.metrics[-1]["seconds"] < 1e6
    wrong = algorithm._replace(step=lambda state, *, monitor=None: (state, {"generation": 0}))
    with pytest.raises(ValueError, match="calls this generation 0, but by train's count it is 1"):
        quietly(wrong, steps=1)
    with pytest.raises(ValueError, match=r"algorithm\.step_name cannot be 'seconds'"):
        quietly(algorithm._replace(step_name="seconds"), steps=1)


def test_rows_beyond_the_checkpoint_and_a_partial_row_are_dropped(tmp_path):
    run_dir = tmp_path / "a"
    quietly(hill(), steps=3, run_dir=run_dir)
    with (run_dir / "metrics.jsonl").open("a") as file:  # killed after step 4's row, before its checkpoint; again in 5
        file.write('{"generation": 4, "training_best": 99}\n{"generation": 5, "tr')
    run = quietly(hill(), steps=5, run_dir=run_dir, resume=True)
    assert numbers(run_dir) == [1, 2, 3, 4, 5]
    assert rows.read_metrics(run_dir / "metrics.jsonl") == run.metrics
    assert_same_run(run, quietly(hill(), steps=5))


def test_a_row_is_on_disk_before_its_checkpoint(tmp_path, monkeypatch):
    run_dir = tmp_path / "a"
    seen = []

    def save(directory, step, tree, **kwargs):
        seen.append((step, numbers(run_dir)))
        return original(directory, step, tree, **kwargs)

    original = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", save)
    quietly(hill(), steps=2, run_dir=run_dir)
    assert seen == [(0, []), (1, [1]), (2, [1, 2])]


@pytest.mark.parametrize("kept", [[], [2, 3]])
def test_rows_removed_by_hand_are_noticed(tmp_path, kept):
    run_dir = tmp_path / "a"
    run = quietly(hill(), steps=3, run_dir=run_dir)
    rows.rewrite(run_dir / "metrics.jsonl", [run.metrics[number - 1] for number in kept])
    with pytest.raises(checkpoint.DamagedCheckpointError, match="not hold one row for each generation from 1 to 3"):
        quietly(hill(), steps=4, run_dir=run_dir, resume=True)


@pytest.mark.parametrize(("kept", "last"), [([1, 3], 1), ([1, 2], 2)])
def test_where_rows_are_missing_the_checkpoint_before_them_is_taken(tmp_path, kept, last):
    run_dir = tmp_path / "a"
    run = quietly(hill(), steps=3, run_dir=run_dir)
    rows.rewrite(run_dir / "metrics.jsonl", [run.metrics[number - 1] for number in kept])
    with pytest.warns(UserWarning, match=f"one row for each generation from 1 to .*going back to step {last}"):
        again = quietly(hill(), steps=4, run_dir=run_dir, resume=True)
    assert_same_run(again, quietly(hill(), steps=4))


def test_checkpoints_removed_by_hand_are_noticed(tmp_path):
    run_dir = tmp_path / "a"
    quietly(hill(), steps=3, run_dir=run_dir)
    shutil.rmtree(run_dir / "checkpoints")
    with pytest.raises(ValueError, match=r"has 3 rows, but .*checkpoints no checkpoint"):
        quietly(hill(), steps=4, run_dir=run_dir, resume=True)


def test_a_damaged_newest_checkpoint_costs_its_step_only(tmp_path):
    run_dir = tmp_path / "a"
    quietly(hill(), steps=4, run_dir=run_dir)
    (run_dir / "checkpoints" / "00000004" / "tree" / "_METADATA").write_text("garbage")
    # Others read the rows meanwhile, although the damaged checkpoint was saved with those that they replace.
    read = {"on_step": lambda run: len(rows.read_metrics(run_dir / "metrics.jsonl")) < len(run.metrics)}
    with pytest.warns(UserWarning, match="00000004 is damaged.*going back to step 3"):
        run = quietly(hill(), steps=6, run_dir=run_dir, resume=True, checkpoint_every=10, **read)
    assert numbers(run_dir) == [1, 2, 3, 4, 5, 6]
    assert_same_run(run, quietly(hill(), steps=6))


def test_all_checkpoints_damaged_is_an_error_and_changes_nothing(tmp_path):
    run_dir = tmp_path / "a"
    quietly(hill(), steps=2, run_dir=run_dir)
    for folder in (run_dir / "checkpoints").iterdir():
        (folder / "manifest.json").unlink()
    with pytest.raises(checkpoint.DamagedCheckpointError, match="checkpoints is damaged"):
        quietly(hill(), steps=4, run_dir=run_dir, resume=True)
    assert numbers(run_dir) == [1, 2]


def test_tensorboard_files(tmp_path):
    run_dir = tmp_path / "a"
    for steps in (1, 2):
        train(hill(), steps=steps, run_dir=run_dir, resume=True, progress=False)
    files = list((run_dir / "tensorboard").iterdir())
    data = b"".join(path.read_bytes() for path in files)
    assert b"training_best" in data


# ---- stopping ----


def test_max_frames_ends_the_run_and_its_resume(tmp_path):
    run = quietly(hill(), steps=10, run_dir=tmp_path / "a", max_frames=100)  # 40 a step
    assert [row["frames"] for row in run.metrics] == [40, 80, 120]
    again = quietly(hill(), steps=10, run_dir=tmp_path / "a", resume=True, max_frames=120)
    assert_same_run(again, run)
    assert len(quietly(hill(), steps=10, run_dir=tmp_path / "a", resume=True, max_frames=121).metrics) == 4
    with pytest.raises(ValueError, match="max_frames must be an integer of at least 1, got 0"):
        quietly(hill(), steps=1, max_frames=0)


def test_a_budget_in_frames_needs_no_number_of_steps(tmp_path, capsys):
    run = train(hill(), run_dir=tmp_path / "a", max_frames=100, loggers=())
    assert len(run.metrics) == 3
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "stopped after generation 3: 120 frames have been played"
    assert "generation 1" in [line.split("  ")[0] for line in said]  # and not 1/None
    assert len(quietly(hill(), run_dir=tmp_path / "a", resume=True, max_frames=160).metrics) == 4
    assert "stopped after generation 4: 160 frames" in capsys.readouterr().err
    assert len(quietly(hill(), steps=2, run_dir=tmp_path / "a", resume=True).metrics) == 4  # done already
    with pytest.raises(ValueError, match="nothing would end this run: give steps, stop_after"):
        quietly(hill())


def test_a_resume_that_asks_for_no_more_steps_says_so(tmp_path, capsys):
    quietly(hill(), steps=4, run_dir=tmp_path / "a")
    for steps in (2, 4):
        assert len(quietly(hill(), steps=steps, run_dir=tmp_path / "a", resume=True).metrics) == 4
        said = "nothing to do, because generation 4 is done" + (" and steps=2 asks for fewer" if steps == 2 else "")
        assert said in capsys.readouterr().err


def test_a_run_says_how_far_it_came(tmp_path):
    assert repr(quietly(hill(), steps=2)) == "Run('hill', generations=2, interrupted=False)"
    run = quietly(hill(interrupt=raise_signal_at(2, 0)), steps=5, run_dir=tmp_path / "a")
    assert repr(run) == f"Run('hill', generations=1, run_dir='{tmp_path}/a', interrupted=True)"


def test_a_budget_in_frames_that_nothing_counts_is_refused(tmp_path):
    with pytest.raises(ValueError, match="max_frames=100: this algorithm has no metric 'frames'"):
        quietly(hill(extra={"frames": None}), max_frames=100, run_dir=tmp_path / "a", checkpoint_every=10)
    assert checkpoint.steps(tmp_path / "a" / "checkpoints") == [0, 1]  # what was done is saved


def test_stop_after_ends_cleanly(tmp_path):
    algorithm = hill(chunk_seconds=0.05)
    run = quietly(algorithm, steps=1000, run_dir=tmp_path / "a", stop_after=0.01, checkpoint_every=5)
    assert len(run.metrics) == 1
    assert not run.interrupted
    assert checkpoint.steps(tmp_path / "a" / "checkpoints") == [0, 1]
    run = quietly(algorithm, steps=1000, run_dir=tmp_path / "a", resume=True, stop_after=0.01)
    assert len(run.metrics) == 2


def raise_signal_at(number, chunk, which=signal.SIGINT, times=1):
    def interrupt(at, now):
        if (at, now) == (number, chunk):
            for _ in range(times):
                signal.raise_signal(which)

    return interrupt


@pytest.mark.parametrize(("which", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("checkpoint_every", [1, 10])
def test_a_signal_abandons_the_step_and_saves_the_last_one(tmp_path, which, code, checkpoint_every, capsys):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    algorithm = hill(chunks=3, interrupt=raise_signal_at(3, 1, which))
    run_dir = tmp_path / "a"
    run = quietly(algorithm, steps=5, run_dir=run_dir, checkpoint_every=checkpoint_every)
    assert run.interrupted
    assert run.exit_code == code
    assert run.state.step == 2
    assert [row["generation"] for row in run.metrics] == numbers(run_dir) == [1, 2]
    assert checkpoint.steps(run_dir / "checkpoints")[-1] == 2
    shown = capsys.readouterr().err
    assert "stopping" in shown
    assert re.search(r"interrupted after generation 2/5; step \d; train\(\.\.\., run_dir=", shown)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    run = quietly(hill(), steps=5, run_dir=run_dir, resume=True)
    assert_same_run(run, quietly(hill(), steps=5))


def test_a_step_that_cannot_be_abandoned_is_kept(tmp_path):
    deaf = hill(interrupt=raise_signal_at(2, 0))
    step = deaf.step
    run = quietly(deaf._replace(step=lambda state, *, monitor=None: step(state)), steps=5, run_dir=tmp_path / "a")
    assert run.interrupted
    assert numbers(tmp_path / "a") == [1, 2]


def test_an_interrupt_in_the_first_step(tmp_path):
    run = quietly(hill(interrupt=raise_signal_at(1, 0)), steps=5, run_dir=tmp_path / "a")
    assert run.interrupted
    assert run.metrics == []
    run = quietly(hill(), steps=2, run_dir=tmp_path / "a", resume=True)
    assert_same_run(run, quietly(hill(), steps=2))


def test_a_signal_that_comes_twice_at_once_is_one(tmp_path, capsys):
    run = quietly(hill(interrupt=raise_signal_at(2, 0, times=2)), steps=5, run_dir=tmp_path / "a")
    assert (run.interrupted, len(run.metrics)) == (True, 1)
    assert "stopping; once more stops at once" in capsys.readouterr().err


def test_a_second_signal_stops_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(_monitor, "_ONE_PRESS", 0.0)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        quietly(hill(interrupt=raise_signal_at(2, 0, times=2)), steps=5, run_dir=tmp_path / "a")
    assert signal.getsignal(signal.SIGINT) is handler
    run = quietly(hill(), steps=5, run_dir=tmp_path / "a", resume=True)
    assert_same_run(run, quietly(hill(), steps=5))


def test_an_error_in_a_step_passes_and_leaves_a_resumable_run(tmp_path):
    def fail(number, chunk):
        if number == 3:
            raise OSError("emulator lost")

    with pytest.raises(OSError, match="emulator lost"):
        quietly(hill(interrupt=fail), steps=5, run_dir=tmp_path / "a", checkpoint_every=10)
    assert checkpoint.steps(tmp_path / "a" / "checkpoints") == [0, 2]
    run = quietly(hill(), steps=5, run_dir=tmp_path / "a", resume=True)
    assert_same_run(run, quietly(hill(), steps=5))


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        ({"generation": 9}, ValueError, "the algorithm calls this generation 9"),
        ({"best": object()}, TypeError, "best"),
    ],
)
def test_a_row_that_is_refused_leaves_a_resumable_run(tmp_path, row, error, message):
    """Of the step before; the state after it has no row."""

    def refused(state, *, monitor=None):
        new, metrics = hill().step(state, monitor=monitor)
        return new, metrics | (row if new.step == 3 else {})

    with pytest.raises(error, match=message):
        quietly(hill()._replace(step=refused), steps=5, run_dir=tmp_path / "a", checkpoint_every=10)
    assert checkpoint.steps(tmp_path / "a" / "checkpoints") == [0, 2]
    assert_same_run(quietly(hill(), steps=5, run_dir=tmp_path / "a", resume=True), quietly(hill(), steps=5))


def test_a_log_that_fails_leaves_a_resumable_run(tmp_path):
    def log(state):
        if state.step == 3:
            raise KeyError("no such thing")
        return {"x": np.asarray(state.x)}

    options = {"run_dir": tmp_path / "a", "log": True}
    with pytest.raises(KeyError, match="no such thing"):
        quietly(hill()._replace(log=log), steps=5, checkpoint_every=10, **options)
    assert checkpoint.steps(tmp_path / "a" / "checkpoints") == [0, 2]
    assert numbers(tmp_path / "a") == [1, 2]
    again = hill()._replace(log=lambda state: {"x": np.asarray(state.x)})
    assert_same_run(quietly(again, steps=5, resume=True, **options), quietly(hill(), steps=5))


def test_the_working_directory_may_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    run = quietly(hill(), steps=2, run_dir="a", on_step=lambda run: os.chdir(tmp_path / "elsewhere"))
    assert len(run.metrics) == 2
    assert_same_run(run.resume(steps=3, progress=False, loggers=()), quietly(hill(), steps=3))
    assert (tmp_path / "a" / "config.json").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_runs_are_told_apart():
    one, other = (quietly(hill(), steps=1) for _ in range(2))
    assert one == one
    assert one != other
    assert len({one, other}) == 2


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_said_and_used(tmp_path, monkeypatch, number):
    def flock(file, flags):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(_resources.fcntl, "flock", flock)
    with pytest.warns(UserWarning, match="a is on a file system without locks .*: let no other process train there"):
        quietly(hill(), steps=1, run_dir=tmp_path / "a")
    assert numbers(tmp_path / "a") == [1]


def test_the_folder_around_a_run_need_not_be_readable(tmp_path, monkeypatch):
    def sync(path):
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    (tmp_path / "a").mkdir()
    monkeypatch.setattr(_record, "sync", sync)
    quietly(hill(), steps=1, run_dir=tmp_path / "a")
    with pytest.raises(PermissionError):  # a new folder's name has to reach the disk
        quietly(hill(), steps=1, run_dir=tmp_path / "b")


def test_numbers_that_are_not_finite_leave_the_last_good_state_and_a_note(tmp_path):
    def fail(number, chunk):
        if number == 3:
            raise FloatingPointError("no longer finite")

    for run_dir, said in ((None, "nothing was saved"), (tmp_path / "a", f"its checkpoint is in {tmp_path / 'a'}")):
        with pytest.raises(FloatingPointError) as error:
            quietly(hill(interrupt=fail), steps=5, run_dir=run_dir, checkpoint_every=10)
        assert error.value.__notes__ == [f"The last good state is that of generation 2; {said}."]
    assert checkpoint.steps(tmp_path / "a" / "checkpoints") == [0, 2]


def test_without_machines_the_last_state_is_saved(tmp_path):
    def fail(number, chunk):
        if number == 3:
            raise ConnectionError("there has been no actor for 600 seconds")

    with pytest.raises(ConnectionError, match="no actor"):
        quietly(hill(interrupt=fail), steps=5, run_dir=tmp_path / "a", checkpoint_every=10)
    assert checkpoint.steps(tmp_path / "a" / "checkpoints") == [0, 2]


def test_outside_the_main_thread(tmp_path):
    runs = []
    thread = threading.Thread(target=lambda: runs.append(quietly(hill(), steps=2, run_dir=tmp_path / "a")))
    thread.start()
    thread.join()
    assert len(runs[0].metrics) == 2


# ---- other processes ----

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_training import hill, quietly
run = quietly(
    hill(chunk_seconds={chunk_seconds}, chunks={chunks}, interrupt=lambda n, c: print(n, c, flush=True)),
    steps={steps}, run_dir={run_dir!r}, resume=True,
)
sys.exit(run.exit_code)
"""


def start(run_dir, *, steps, chunks, chunk_seconds):
    script = SCRIPT.format(
        tests=os.path.dirname(__file__), run_dir=str(run_dir), steps=steps, chunks=chunks, chunk_seconds=chunk_seconds
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_ctrl_c_in_a_script(tmp_path):
    process = start(tmp_path / "a", steps=5, chunks=100, chunk_seconds=0.01)
    for line in process.stdout:
        if line == "2 3\n":
            break
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert time.monotonic() - began < 5
    assert re.search("interrupted after generation 1/5", errors)
    assert "Traceback" not in errors
    run = quietly(hill(), steps=5, run_dir=tmp_path / "a", resume=True)
    assert_same_run(run, quietly(hill(), steps=5))


@pytest.mark.slow
def test_kills_at_random_moments(tmp_path):
    rng = np.random.default_rng(1)
    run_dir = tmp_path / "a"
    reached = [0]
    for _ in range(3):
        process = start(run_dir, steps=1000, chunks=1, chunk_seconds=0.001)
        begun = [process.stdout.readline().split()[0] for _ in range(2)]  # the first step is compiled and done
        time.sleep(rng.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        begun += [line.split()[0] for line in process.stdout.read().splitlines()]
        process.stderr.close()
        process.stdout.close()
        process.wait()
        step, _ = checkpoint.restore_latest(run_dir / "checkpoints")
        rows = numbers(run_dir)
        assert rows in (list(range(1, step + 1)), list(range(1, step + 2)))  # at most the step in progress is lost
        assert int(begun[-1]) - 1 <= step <= int(begun[-1])
        reached.append(step)
    assert reached == sorted(set(reached))
    steps = reached[-1] + 2
    run = quietly(hill(), steps=steps, run_dir=run_dir, resume=True)
    assert numbers(run_dir) == list(range(1, steps + 1))
    assert_same_run(run, quietly(hill(), steps=steps))
