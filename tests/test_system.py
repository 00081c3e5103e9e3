"""The machine and its files."""

import os

import jax
import pytest

from volvox import _system


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a"
    _system.write_file(path, "one")
    _system.write_file(path, b"two")

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        _system.write_file(path, "three")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a"]


def test_versions_and_processors():
    assert _system.versions().keys() == {"volvox", "jax", "envpool"}
    assert _system.versions()["jax"] == jax.__version__
    assert _system.processor()
    assert _system.num_cpus() >= 1
