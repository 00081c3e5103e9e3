"""Rows of metrics, and files that are whole or not there."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from volvox.report import files


def test_rows_are_json_and_survive(tmp_path):
    row = {"a": np.float32(0.5), "b": jnp.arange(2), "c": float("nan"), "d": [np.inf, "x"], "e": {"f": np.bool_(True)}}
    made = files.to_json_row(row)
    assert made == {"a": 0.5, "b": [0, 1], "c": None, "d": [None, "x"], "e": {"f": True}}
    files.append_row(tmp_path / "rows", made)
    files.append_row(tmp_path / "rows", {"a": 1})
    assert files.read_metrics(tmp_path / "rows") == [made, {"a": 1}]
    files.write_rows(tmp_path / "rows", [made])
    assert files.read_metrics(tmp_path / "rows") == [made]
    assert files.read_metrics(tmp_path / "none") == []


@pytest.mark.parametrize("value", [object(), {1: 2}, {1, 2}, [b"x"]])
def test_values_without_a_json_form_are_refused(value):
    with pytest.raises(TypeError, match="metrics"):
        files.to_json_row(value)


def test_the_end_of_the_last_line_may_be_missing(tmp_path):
    (tmp_path / "rows").write_text('{"a": 1}\n{"a": 2')
    assert files.read_metrics(tmp_path / "rows") == [{"a": 1}]


@pytest.mark.parametrize("line", ["?", "[1]", "3", "", "[" * 100_000])
def test_rows_from_a_damaged_line_on_are_ignored_with_a_warning(line, tmp_path):
    (tmp_path / "rows").write_text(f'{{"a": 1}}\n{line}\n{{"a": 3}}\n')
    with pytest.warns(UserWarning, match="line 2"):
        assert files.read_metrics(tmp_path / "rows") == [{"a": 1}]


def test_numbers_are_finite_and_no_booleans():
    row = {"a": 1, "b": 0.5, "c": None, "d": True, "e": "x", "f": [1], "g": float("nan"), "h": float("inf")}
    assert files.numbers(row) == {"a": 1, "b": 0.5}


def test_a_file_is_replaced_as_a_whole(tmp_path, monkeypatch):
    files.write_file(tmp_path / "a", "old")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="full"):
            files.write_file(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1
    files.write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_text() == "new"


def test_a_directory_of_seeds_names_its_runs(tmp_path):
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "config.json").write_text(json.dumps({"algorithm": {}, "key": {}}))
    with pytest.raises(ValueError, match="seed-0"):
        files.read_config(tmp_path)
