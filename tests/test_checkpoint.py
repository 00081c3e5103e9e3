import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple

import chex
import flax.struct
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from volvox import checkpoint
from volvox.checkpoint import DamagedCheckpointError


def _tree():
    return {
        "int64": np.arange(5, dtype=np.int64),
        "large": np.array([2**63 + 1], np.uint64),
        "bf16": np.array([1.5, np.nan, np.inf], ml_dtypes.bfloat16),
        "half": np.ones((2, 3), np.float16),
        "complex": np.array([1 + 2j], np.complex64),
        "zero-d": np.array(True),
        "numpy scalar": np.float32(0.1),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "device": jnp.arange(4),
        "empty": np.zeros((0, 3), np.int8),
        "empty bf16": np.zeros((2, 0), ml_dtypes.bfloat16),
        "none": None,
        "values": [True, 3, -0.0, 1e300, float("inf"), float("nan"), "text \N{SNOWMAN}", 2**80],
        "nothing": [{}, [], ()],
        "a/b.c": ({"x": (np.ones(1), [np.zeros(1)])},),
    }


def _assert_same(a, b):
    """Tuples are read as lists, and what is an array or a number of numpy as an array."""
    if isinstance(a, dict):
        assert sorted(a) == sorted(b)
        for key in a:
            _assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert type(b) is list or a == b == ()
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            _assert_same(x, y)
    elif hasattr(a, "dtype"):
        a = np.asarray(a)
        assert isinstance(b, np.ndarray)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()
    else:
        assert type(a) is type(b)
        assert repr(a) == repr(b)


def test_round_trip(tmp_path):
    folder = checkpoint.save(tmp_path / "c", 12, _tree())
    assert folder == tmp_path / "c" / "00000012"
    step, tree = checkpoint.restore_latest(tmp_path / "c")
    assert step == 12
    _assert_same(_tree(), tree)


@pytest.mark.parametrize("tree", [{}, [], None, 3, "s", np.zeros(0), np.ones(2)], ids=repr)
def test_round_trip_of_bare_leaves_and_empty_trees(tmp_path, tree):
    checkpoint.save(tmp_path, 0, tree)
    _assert_same(tree, checkpoint.restore(tmp_path, 0))


def test_a_relative_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint.save("c", 1, {"a": np.ones(2)})
    assert checkpoint.restore_latest("c")[0] == 1


def test_inside_an_event_loop(tmp_path):  # as in a notebook
    import asyncio

    async def cell():
        checkpoint.save(tmp_path, 1, _tree())
        return checkpoint.restore_latest(tmp_path)

    _assert_same(_tree(), asyncio.run(cell())[1])


def test_rotation_keeps_the_newest(tmp_path):
    for step in range(5):
        checkpoint.save(tmp_path, step, {"step": step}, keep=2)
    assert checkpoint.steps(tmp_path) == [3, 4]
    assert sorted(os.listdir(tmp_path)) == ["00000003", "00000004"]


def test_saving_an_earlier_step_drops_later_ones(tmp_path):
    for step in (1, 2, 5, 6):
        checkpoint.save(tmp_path, step, step)
    checkpoint.save(tmp_path, 3, 3, keep=2)
    assert checkpoint.steps(tmp_path) == [2, 3]


def test_saving_a_step_again_replaces_it(tmp_path):
    checkpoint.save(tmp_path, 1, {"a": np.zeros(3)})
    checkpoint.save(tmp_path, 1, {"a": np.ones(2)})
    _assert_same({"a": np.ones(2)}, checkpoint.restore(tmp_path, 1))


def test_no_checkpoints(tmp_path):
    assert checkpoint.restore_latest(tmp_path / "missing") is None
    assert checkpoint.steps(tmp_path / "missing") == []
    (tmp_path / ".unfinished-00000003").mkdir()
    (tmp_path / "notes").mkdir()
    with pytest.warns(UserWarning, match="left alone: notes"):
        assert checkpoint.restore_latest(tmp_path) is None
    with pytest.raises(FileNotFoundError, match="no checkpoint of step 4"):
        checkpoint.restore(tmp_path, 4)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [object()]}, r"tree\['a'\]\[0\]: a checkpoint cannot hold a builtins.object"),
        ({"c": 1j}, r"tree\['c'\]: a checkpoint cannot hold a builtins.complex"),
        ({"m": np.ma.array([1, 2], mask=[True, False])}, "cannot hold a numpy.ma.*MaskedArray"),
        ({1: 2}, "dict keys are strings, got the key 1"),
        ({"a": np.array(["x"])}, "no array of dtype <U1"),
        ({"a": np.array([None])}, "no array of dtype object"),
        ({"a": np.zeros(2, ">f4")}, "no array of dtype >f4"),
        ({"a": np.zeros(2, np.longdouble)}, "no array of dtype float128"),
        ({"a": {1, 2}}, "cannot hold a builtins.set"),
        ({"a": b"x"}, "cannot hold a builtins.bytes"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_written(tmp_path, tree, message):
    with pytest.raises(TypeError, match=message):
        checkpoint.save(tmp_path / "c", 1, tree)
    assert not (tmp_path / "c").exists()


def test_keys_with_dots_are_kept_apart_or_refused(tmp_path):
    tree = {"a": {"b/c": 1}, "a/b": {"c": 2}, "d.e": 3}
    checkpoint.save(tmp_path, 1, tree)
    assert checkpoint.restore(tmp_path, 1) == checkpoint.restore(tmp_path, 1, tree) == tree
    with pytest.raises(ValueError, match=r"two leaves are then 'a\.b'"):
        checkpoint.save(tmp_path, 2, {"a": {"b": 1}, "a.b": 2})


class Counters(NamedTuple):
    frames: Any
    nothing: None = None


@flax.struct.dataclass
class Module:
    params: Any


def _state():
    optimizer = optax.chain(optax.clip(1.0), optax.adam(1e-3))
    params = {"dense.0": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3, jnp.bfloat16)}}
    return Counters(
        frames={
            "key": jax.random.key(3),
            "keys": jax.random.split(jax.random.key(4, impl="rbg"), 2),
            "network": Module((params, optimizer.init(params))),
            "behaviors": jnp.zeros((0, 2)),
            "total": np.array([2**40]),
            "step": 7,
            "elapsed": 0.5,
            "list": [np.float32(1.5), ()],
        }
    )


def test_like_gives_back_namedtuples_and_keys(tmp_path):
    state = _state()
    checkpoint.save(tmp_path, 1, state)
    # 64-bit arrays of numpy are no part of what jax traces: their shape is given as it is.
    for like in (state, jax.eval_shape(_state)):
        step, read = checkpoint.restore_latest(tmp_path, like)
        assert step == 1
        assert jax.tree.structure(read) == jax.tree.structure(state)
        chex.assert_trees_all_equal(read, state)
        chex.assert_trees_all_equal_dtypes(
            jax.tree.map(np.asarray, (read.frames["network"], read.frames["total"])),
            jax.tree.map(np.asarray, (state.frames["network"], state.frames["total"])),
        )
        for name in ("key", "keys"):
            assert read.frames[name].dtype == state.frames[name].dtype
        assert type(read.frames["step"]) is int
        assert isinstance(read.frames["network"].params[0]["dense.0"]["kernel"], jax.Array)
        jax.random.normal(read.frames["key"])


def test_without_like_fields_are_names(tmp_path):
    checkpoint.save(tmp_path, 1, _state())
    read = checkpoint.restore(tmp_path, 1)["frames"]
    assert read["key"].dtype == jax.random.key(3).dtype
    assert read["network"]["params"][1][1][0]["mu"]["dense.0"]["kernel"].shape == (2, 3)
    assert read["behaviors"].shape == (0, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": jnp.zeros(2)}, r"at 'frames/step' it holds \(\) int32, and this one \(2,\) float32"),
        ({"total": np.array([1.5])}, r"at 'frames/total' it holds \(1,\) int32, and this one \(1,\) float32"),
        ({"key": jnp.zeros(2, jnp.uint32)}, r"at 'frames/key' it holds \(\) key<fry>, and this one \(2,\) uint32"),
        ({"key": jax.random.key(0, impl="rbg")}, r"at .frames/key. it holds \(\) key<fry>, and this one \(\) key<rbg>"),
        ({"more": 1}, r"at 'frames/more' it holds nothing, and this one \(\) int32"),
    ],
)
def test_another_structure_is_refused_naming_the_first_difference(tmp_path, change, message):
    state = _state()
    checkpoint.save(tmp_path, 1, state)
    with pytest.raises(ValueError, match="the checkpoint is of another state: " + message):
        checkpoint.restore(tmp_path, 1, Counters(state.frames | change))
    fewer = {name: leaf for name, leaf in state.frames.items() if name != "step"}
    with pytest.raises(ValueError, match=r"at 'frames/step' it holds \(\) int32, and this one nothing"):
        checkpoint.restore_latest(tmp_path, Counters(fewer))


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="step must be an integer of at least 0"):
        checkpoint.save(tmp_path, -1, {})
    with pytest.raises(ValueError, match="keep must be an integer of at least 1"):
        checkpoint.save(tmp_path, 1, {}, keep=0)


def _files(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


def _largest(folder):
    return max(_files(folder), key=lambda p: p.stat().st_size)


def _truncate(folder):
    os.truncate(_largest(folder), _largest(folder).stat().st_size // 2)


def _flip_a_bit(folder):
    data = bytearray(_largest(folder).read_bytes())
    data[len(data) // 2] ^= 1
    _largest(folder).write_bytes(data)


def _overwrite_manifest(folder):
    (folder / "manifest.json").write_bytes(b"\0\xff garbage")


DAMAGES = {
    "truncated": _truncate,
    "flipped bit": _flip_a_bit,
    "missing file": lambda folder: _largest(folder).unlink(),
    "missing tree": lambda folder: shutil.rmtree(folder / "tree"),
    "missing manifest": lambda folder: (folder / "manifest.json").unlink(),
    "garbage manifest": _overwrite_manifest,
    "empty manifest": lambda folder: (folder / "manifest.json").write_text(""),
    "empty folder": lambda folder: [p.unlink() for p in _files(folder)],
    "changed structure": lambda folder: (folder / "tree" / "_METADATA").write_text("{}"),
    "superfluous file": lambda folder: (folder / "tree" / "d" / "more").write_bytes(b"x"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_falls_back_and_says_so(tmp_path, damage):
    for step in (1, 2):
        checkpoint.save(tmp_path, step, {"a": np.full(1000, step)})
    damage(tmp_path / "00000002")
    with pytest.warns(UserWarning, match=r"00000002 is damaged.*going back to step 1"):
        step, tree = checkpoint.restore_latest(tmp_path)
    assert step == 1
    np.testing.assert_array_equal(tree["a"], np.full(1000, 1))
    # and the way forward replaces the damaged one, however few are kept
    checkpoint.save(tmp_path, 2, {"a": np.full(1000, 2)}, keep=1)
    assert checkpoint.restore_latest(tmp_path)[0] == 2


def test_every_single_file_is_watched(tmp_path):
    folder = checkpoint.save(tmp_path, 1, {"a": np.arange(100.0), "b": [1]})
    for path in _files(folder):
        data = path.read_bytes()
        path.write_bytes(data[:-1] if data else b"x")
        with pytest.raises(DamagedCheckpointError):
            checkpoint.restore(tmp_path, 1)
        path.write_bytes(data)
    checkpoint.restore(tmp_path, 1)


def test_all_damaged_is_an_error_naming_the_folder(tmp_path):
    for step in (1, 2):
        _truncate(checkpoint.save(tmp_path, step, {"a": np.full(1000, step)}))
    with pytest.raises(DamagedCheckpointError, match=f"every checkpoint in {tmp_path} is damaged"):
        checkpoint.restore_latest(tmp_path)


def test_nothing_is_pickled(tmp_path):
    folder = checkpoint.save(tmp_path, 1, _tree())
    for path in _files(folder):
        assert not path.read_bytes().startswith(b"\x80"), path
    assert "tree_metadata" in json.loads((folder / "tree" / "_METADATA").read_text())


_SAVING = """
import sys
import numpy as np
import orbax.checkpoint  # which the first save would import, for longer than some processes live
from volvox import checkpoint
latest = checkpoint.restore_latest(sys.argv[1])
step = 0 if latest is None else latest[0]
print(step, flush=True)
while True:
    step += 1
    checkpoint.save(sys.argv[1], step, {"step": step, "a": np.full(50_000, step)}, keep=2)
    print(step, flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_loses_at_most_the_save_in_progress(tmp_path):
    rng = np.random.default_rng(0)
    saved = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _SAVING, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        process.stdout.readline()
        time.sleep(rng.uniform(0.05, 0.6))
        process.send_signal(signal.SIGKILL)
        printed = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        saved = int(printed[-1]) if printed else saved
        latest = checkpoint.restore_latest(tmp_path)  # a warning, and so a failure, if it were damaged
        step, tree = latest if latest is not None else (0, None)
        assert saved <= step <= saved + 1
        if tree is not None:
            assert tree["step"] == step
            assert (tree["a"] == step).all()
    assert saved > 2


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a"
    checkpoint.write_file(path, "one")
    checkpoint.write_file(path, b"two")

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        checkpoint.write_file(path, "three")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a"]


def test_what_is_still_read_elsewhere_is_removed_later(tmp_path, monkeypatch):
    """As on a network's disk, where a folder is not empty while one of its files is open."""
    removed, busy = shutil.rmtree, [True]

    def rmtree(path, **options):
        if busy[0]:
            raise OSError(39, "Directory not empty", str(path))
        removed(path, **options)

    monkeypatch.setattr(checkpoint.shutil, "rmtree", rmtree)
    for step in range(4):
        checkpoint.save(tmp_path, step, {"x": jnp.ones(2)}, keep=1)
        assert checkpoint.steps(tmp_path) == [step]
    assert len(list(tmp_path.iterdir())) == 4
    busy[0] = False
    checkpoint.save(tmp_path, 4, {"x": jnp.ones(2)}, keep=1)
    assert len(list(tmp_path.iterdir())) == 1
