"""Whatever is given: it is understood, or refused by an error of ours, and nothing else happens.

`VOLVOX_EXAMPLES` sets the number of inputs for each property; with 10 000 they are more than 100 000 in all. Run
directories and command lines take a tenth of a second each, and have a twentieth of that number.
`benchmarks/properties.py` makes such a run and keeps its result (`benchmarks/results/properties_cpu2_epyc.json`).
"""

import contextlib
import dataclasses
import io
import json
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import volvox as vx
from volvox import _record, checkpoint, population
from volvox._checks import integer, number
from volvox.checkpoint import DamagedCheckpointError
from volvox.evolution import parse_cutoff, schedule
from volvox.report import rows
from volvox.sparsity import Cubic, Magnitude

few = settings(
    max_examples=int(os.environ.get("VOLVOX_EXAMPLES", "100")),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
fewer = max(few.max_examples // 20, 5)  # of what takes a tenth of a second each
slow = settings(few, max_examples=fewer, phases=[Phase.generate])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
SEEDS, POWERS = st.integers(0, 2**31 - 1), st.floats(width=32, allow_nan=False, allow_infinity=False)
GENOMES = st.tuples(SEEDS, st.lists(st.tuples(SEEDS, POWERS), max_size=8))


def refused(call, *args, **named):
    """What a call returns, and ""; or None, and why it is refused: by a ValueError, or because of damage."""
    try:
        return call(*args, **named), ""
    except (ValueError, DamagedCheckpointError) as error:
        return None, str(error)


@few
@given(GENOMES)
def test_a_lineage_is_read_as_it_was_written(genome):
    made = population.Genome(genome[0], tuple(genome[1]))
    assert population.lineage.from_json(json.loads(json.dumps(population.lineage.to_json(made)))) == made


@few
@given(JSON)
def test_anything_else_is_a_lineage_or_refused(data):
    try:
        genome = population.lineage.from_json(data)
    except ValueError:
        return
    assert all(np.isfinite(np.float32(power)) for _, power in genome.mutations)


WORDS = st.sampled_from(["linear", "exponential", "constant", "adaptive", "often", "", ":"])
NUMBERS = st.floats() | st.integers() | st.integers(-3, 3) | st.sampled_from(["", "x", "1e400", "nan", "0x1", "1_0"])
TEXTS = st.builds(lambda word, parts: f"{word}:{','.join(map(str, parts))}", WORDS, st.lists(NUMBERS, max_size=5))


@few
@given(TEXTS | NUMBERS | st.text(max_size=12))
def test_a_schedule_is_finite_and_positive_or_refused(value):
    try:
        made = schedule("rate", value)
    except ValueError:
        return
    assert all(np.isfinite(float(made(count))) and float(made(count)) > 0 for count in (0, 1, 2**31 - 1))


@few
@given(TEXTS | NUMBERS | st.text(max_size=12) | JSON, st.integers(1, 2**31 - 1), st.floats(0, 1))
def test_a_cutoff_stays_within_int32_or_is_refused(value, current, fraction):
    try:
        cutoff = parse_cutoff(value)
    except ValueError:
        return
    assert 1 <= cutoff.start <= cutoff.grown(cutoff.start, fraction) <= 2**31 - 1


@few
@given(JSON, st.integers(-5, 5))
def test_a_number_is_in_its_range_or_refused(value, low):
    for check, limit in ((integer, low), (number, float(low))):
        found, why = refused(check, "name", value, low=limit)
        assert "name" in why or found >= low


@few
@given(st.binary(max_size=120) | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_config_is_read_or_named(content):
    path = _scratch() / "config.json"
    path.write_bytes(content)
    read, why = refused(_record.read_config, path.parent)
    assert "config.json" in why or isinstance(read["algorithm"], dict)


@few
@given(st.lists(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()), max_size=4))
def test_rows_are_read_or_the_line_is_named(lines):
    path = _scratch() / "metrics.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    found, damage = rows.read_until_damage(path)
    assert all(isinstance(row, dict) and rows.numbers(row) is not None for row in found)
    assert not damage or "metrics.jsonl, line" in damage
    rows.rewrite(path, found)
    assert rows.read_metrics(path) == found


NAMES = st.sampled_from(["00000001", "1", "00000002", "x", ".unfinished-00000003", "00000003", "000000010", "\u0661"])
KINDS = st.sampled_from(["folder", "file", "link", "dangling", "pipe", "manifest", "empty manifest"])


@few
@given(st.dictionaries(NAMES, KINDS, max_size=4))
def test_a_folder_of_anything_holds_a_checkpoint_or_none_or_damage(entries):
    folder = _scratch() / "checkpoints"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, kind in entries.items():
        _put(folder / name, kind)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        try:
            assert checkpoint.restore_latest(folder) is None
        except DamagedCheckpointError:
            assert checkpoint.steps(folder)
    assert checkpoint.about_latest(folder) == {}


def _put(path, kind):
    if kind == "file":
        path.write_text("x")
    elif kind in ("link", "dangling"):
        path.symlink_to(path.parent if kind == "link" else path.with_name("nowhere"))
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
        if "manifest" in kind:
            (path / "manifest.json").write_text("{}" if kind == "manifest" else "")


@few
@given(
    st.sampled_from([vx.GA, vx.ES, vx.A3C, vx.PPO, vx.TD3]),
    st.lists(st.tuples(st.integers(0, 30), JSON.filter(lambda value: not isinstance(value, dict | list))), max_size=3),
)
def test_settings_are_made_or_refused_naming_a_field(kind, changes):
    names = [field.name for field in dataclasses.fields(kind) if field.name != "objective"]
    given = {names[i % len(names)]: value for i, value in changes}
    made, why = refused(kind, **given)
    assert any(name in why for name in given) if why else isinstance(made, kind)


CHANGES = st.tuples(
    st.integers(0, 99), st.sampled_from(["flip", "cut", "delete", "double", "swap"]), st.integers(0, 10**6)
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, make, quietly):
    """The directory of a run of two steps, and the run."""
    folder = tmp_path_factory.mktemp("properties") / "run"
    return folder, quietly(make("hill"), steps=2, run_dir=folder)


@slow
@given(changes=st.lists(CHANGES, min_size=1, max_size=3))
def test_a_changed_run_directory_is_gone_on_with_rightly_or_refused(finished, make, quietly, changes):
    original, wanted = finished
    run_dir = _scratch() / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    shutil.copytree(original, run_dir)
    for index, kind, place in changes:
        files = sorted(path for path in run_dir.rglob("*") if path.is_file())
        _change(files[index % len(files)], files[place % len(files)], kind, place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it goes back to
        run, why = refused(quietly, make("hill"), steps=2, run_dir=run_dir, resume=True)
    if not why:
        np.testing.assert_array_equal(run.state["x"], wanted.state["x"])
        assert [row["training_best"] for row in run.metrics] == [row["training_best"] for row in wanted.metrics]


def _change(path, other, kind, place):
    data = bytearray(path.read_bytes())
    if kind == "flip" and data:
        data[place % len(data)] ^= 1 << place % 8
    elif kind == "cut":
        data = data[: place % (len(data) + 1)]
    elif kind == "double":
        data = data + data
    elif kind == "swap":
        data = other.read_bytes()
    if kind == "delete":
        path.unlink()
    else:
        path.write_bytes(data)


FLAGS = [
    "--population-size",
    "--num-parents",
    "--game",
    "--minutes",
    "--frames",
    "--seed",
    "--noise",
    "--workers",
    "--",
]
FLAGS += ["--max-episode-steps", "--generations", "--no-video", "--resume", "--preset", "quick", "-h", "--mutation-std"]
VALUES = st.sampled_from(
    ["1", "0", "-1", "1e400", "nan", "None", "Pong", "", "adaptive:1,2,3,4", "10" * 30, "nodes", "[]"]
)


@slow
@given(words=st.lists(st.sampled_from(FLAGS) | VALUES | st.text(max_size=6), max_size=5))
def test_words_of_a_command_line_are_settings_or_refused(script, words):
    module, made, why, code = script("atari_ga"), None, "", None
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            made, why = refused(sys.modules["launch"].read, module.PRESETS, module.__doc__, ["quick", *words])
        except SystemExit as end:
            code = end.code
    assert why or code in (0, 2) or isinstance(made, module.Settings)  # 0: help


ODD = (None, True, 0, -1, 2**31, 10**400, 0.5, 1e300, float("nan"), float("inf"), "x", "", "linear:1,2,3", "linear:x")


def test_no_single_setting_is_answered_by_an_error_of_another_kind():
    found = []
    for kind in (vx.GA, vx.ES, vx.A3C, vx.PPO, vx.TD3):
        for name in (field.name for field in dataclasses.fields(kind) if field.name != "objective"):
            for value in ODD:
                try:
                    kind(**{name: value})
                except ValueError:
                    continue
                except Exception as error:  # all of them at once
                    found.append(f"{kind.__name__}({name}={str(value)[:9]}): {type(error).__name__}: {error}")
    assert not found, "\n".join(found)


PRUNED = jax.jit(Magnitude(schedule=Cubic(final_sparsity=0.5, begin=0, end=1), group=2).update)
WEIGHTS = st.lists(st.floats(-1e3, 1e3, width=32), min_size=24, max_size=24)


@few
@given(WEIGHTS, WEIGHTS, st.integers(0, 2**12 - 1), st.floats(0, 1, width=32))
def test_as_many_groups_die_as_the_schedule_says(weights, gradient, living, sparsity):
    """Of 12 groups, ties included; one lives at least."""
    kernel, slope = (jnp.asarray(x, jnp.float32).reshape(4, 2, 3) for x in (weights, gradient))
    mask = np.array([living >> i & 1 for i in range(12)], bool).reshape(4, 1, 3)
    new = np.asarray(PRUNED(jax.random.key(0), mask, kernel, slope, jnp.int32(1), jnp.float32(sparsity)))
    assert new.shape == mask.shape
    assert 12 - new.sum() == min(np.round(np.float32(sparsity) * np.float32(12)), 11)
    assert not ((mask & ~new).any() and (new & ~mask).any())  # none dies while another begins to live


def _scratch():
    path = Path(tempfile.gettempdir()) / f"volvox-properties-{os.getpid()}"
    path.mkdir(exist_ok=True)
    return path
