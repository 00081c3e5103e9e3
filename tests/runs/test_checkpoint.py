"""Checkpoints hold any state, and damaged or foreign ones are never used silently."""

import json
import os
import shutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from volvox.ops.flat import restored
from volvox.runs import checkpoint
from volvox.runs.checkpoint import DamagedCheckpointError

from .conftest import assert_equal_trees


class Nested(NamedTuple):
    params: dict
    count: int


STATE = Nested(
    {
        "w": jnp.arange(6.0).reshape(2, 3),
        "half": jnp.ones(2, jnp.bfloat16),
        "empty": jnp.zeros((0, 4)),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(3), 2),
        "flag": np.array([True, False]),
        "none": None,
        "rate": 0.5,
    },
    7,
)


def save(folder, step, state=None, *, keep=3, settings="mine"):
    checkpoint.save(folder, step, {"x": jnp.full(3, step)} if state is None else state,
                    keep=keep, settings=settings)  # fmt: skip


def restore(folder, *, rows=100, settings="mine"):
    return checkpoint.restore_latest(folder, count_rows=lambda: rows, settings=settings, restore=lambda tree: tree)


def test_a_state_is_restored_bit_for_bit(tmp_path):
    save(tmp_path, 5, STATE)
    step, tree = restore(tmp_path)
    assert step == 5
    read = restored(tree, STATE, owner="state")
    assert_equal_trees(read, STATE)
    assert (type(read.count), type(read.params["rate"])) == (int, float)
    assert read.params["half"].dtype == jnp.bfloat16
    assert read.params["empty"].shape == (0, 4)


def test_the_newest_stay_and_later_ones_are_removed(tmp_path):
    for step in range(6):
        save(tmp_path, step, keep=2)
    assert checkpoint.steps(tmp_path) == [4, 5]
    save(tmp_path, 3, keep=2)  # after a resume from an earlier step
    assert checkpoint.steps(tmp_path) == [3]
    assert restore(tmp_path)[0] == 3


def damage_flip(folder):
    path = max((path for path in (folder / "state").rglob("*") if path.is_file()), key=os.path.getsize)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_step(folder):
    record = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps(record | {"step": 1}))


DAMAGES = {
    "a flipped bit": damage_flip,
    "a missing file": lambda folder: next(p for p in (folder / "state").rglob("*") if p.is_file()).unlink(),
    "no record": lambda folder: (folder / "record.json").unlink(),
    "a record that is not JSON": lambda folder: (folder / "record.json").write_text("{"),
    "a record of another kind": lambda folder: (folder / "record.json").write_text("[]"),
    "the record of another step": damage_step,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_skipped_with_a_warning_and_the_previous_one_used(tmp_path, damage):
    save(tmp_path, 1)
    save(tmp_path, 2)
    damage(tmp_path / "00000002")
    with pytest.warns(UserWarning, match="skipped"):
        step, tree = restore(tmp_path)
    assert step == 1
    np.testing.assert_array_equal(tree["x"], np.full(3, 1))


@pytest.mark.parametrize(("settings", "rows", "reason"), [("another run", 100, "another run"), ("mine", 1, "rows")])
def test_a_checkpoint_of_another_run_or_without_its_rows_is_skipped(settings, rows, reason, tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2, settings=settings)
    with pytest.warns(UserWarning, match=reason):
        assert restore(tmp_path, rows=rows)[0] == 1


def test_an_error_says_that_none_can_be_used(tmp_path):
    assert restore(tmp_path) is None
    save(tmp_path, 1)
    damage_flip(tmp_path / "00000001")
    with pytest.raises(DamagedCheckpointError, match="00000001"):
        restore(tmp_path)


def test_leftovers_of_a_kill_are_no_checkpoints(tmp_path):
    save(tmp_path, 1)
    shutil.copytree(tmp_path / "00000001", tmp_path / ".unfinished")
    assert restore(tmp_path)[0] == 1
    save(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001", "00000002"]


def test_what_cannot_be_written_is_one_error_and_earlier_ones_are_intact(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.rename", full)
        with pytest.raises(OSError, match="No space left on device"):
            save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]
    assert restore(tmp_path)[0] == 1
