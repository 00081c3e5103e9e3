import json
import os

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from volvox.report import rows as row_files


def test_rows_round_trip(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"a": 1, "b": 2.5, "c": None, "d": "snow\nman \N{SNOWMAN}", "e": [1, {"f": True}]}, {"a": 2}]
    for row in rows:
        row_files.append_row(path, row)
    assert row_files.read_metrics(path) == rows
    assert path.read_bytes().count(b"\n") == 2


def test_json_form():
    given = {
        "nan": float("nan"),
        "inf": -np.float32("inf"),
        "int": np.int64(2**60),
        "bool": np.bool_(True),
        "half": ml_dtypes.bfloat16(1.5),
        "array": jnp.array([[1.0, jnp.inf]]),
        "tuple": (1, "x"),
    }
    expected = {
        "nan": None,
        "inf": None,
        "int": 2**60,
        "bool": True,
        "half": 1.5,
        "array": [[1.0, None]],
        "tuple": [1, "x"],
    }
    assert row_files.to_json(given) == expected
    json.dumps(row_files.to_json(given), allow_nan=False)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [object()]}, r"metrics\['a'\]\[0\]: JSON has no builtins.object"),
        ({1: 2}, "keys must be strings, got 1"),
        ({"a": np.array([None])}, "JSON has no numpy.ndarray"),
    ],
)
def test_what_json_has_not(value, message):
    with pytest.raises(TypeError, match=message):
        row_files.to_json(value)


def test_nan_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        row_files.append_row(tmp_path / "m", {"a": float("nan")})
    assert row_files.read_metrics(tmp_path / "m") == []


@pytest.mark.parametrize("tail", [b'{"a": 3', b"{", b'{"a": 3}', b"\0\0"])
def test_a_partial_last_row_is_left_out(tmp_path, tail):
    path = tmp_path / "m"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n' + tail)
    assert row_files.read_metrics(path) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("line", [b"garbage", b"[1]", b""])
def test_a_damaged_whole_row_is_an_error(tmp_path, line):
    path = tmp_path / "m"
    path.write_bytes(b'{"a": 1}\n' + line + b'\n{"a": 2}\n')
    with pytest.raises(ValueError, match="line 2, is not"):
        row_files.read_metrics(path)


def test_no_file_no_rows(tmp_path):
    assert row_files.read_metrics(tmp_path / "missing") == []


def test_rewriting_is_atomic(tmp_path, monkeypatch):
    path = tmp_path / "m"
    row_files.rewrite(path, [{"a": 1}])

    def fail(*_):
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no space"):
            row_files.rewrite(path, [{"a": 2}])
    assert row_files.read_metrics(path) == [{"a": 1}]
    assert os.listdir(tmp_path) == ["m"]
    row_files.rewrite(path, [])
    assert row_files.read_metrics(path) == []


def test_a_log_leaves_other_files_alone(tmp_path):
    row_files.write_log(tmp_path, 2, {"a": np.arange(3)})
    row_files.write_log(tmp_path, 3, {"a": np.arange(4)})
    others = ("3-copy.npz", "notes.txt", "3².npz")
    for name in others:
        (tmp_path / name).write_text("another's")
    (tmp_path / "4.npz").mkdir()
    assert {step: list(arrays["a"]) for step, arrays in row_files.read_log(tmp_path).items()} == {
        2: [0, 1, 2],
        3: [0, 1, 2, 3],
    }
    row_files.drop_log_after(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["000002.npz", "4.npz", *others])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", None])
def test_a_damaged_log_is_named(tmp_path, content):
    row_files.write_log(tmp_path, 2, {"a": np.arange(100)})
    path = tmp_path / "000002.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + b"\0\0\0\0" + whole[64:] if content is None else content)
    with pytest.raises(ValueError, match=r"000002\.npz is damaged"):
        row_files.read_log(tmp_path)
