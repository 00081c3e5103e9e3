"""Every file of a run is covered: what was changed is noticed and named, and the checkpoint before is taken."""

import json
import warnings

import jax
import numpy as np
import pytest

from volvox import _manifest as manifest
from volvox import checkpoint, cli, population
from volvox.checkpoint import DamagedCheckpointError
from volvox.report import read_metrics
from volvox.report.rows import read_until_damage


def flipped(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def reads_the_same(path, rows):
    """Whether a file has these rows, although a byte is another: the last digit of a number may be beyond a float."""
    return read_until_damage(path) == (rows, "")


def test_no_flipped_byte_of_the_metrics_is_taken_for_a_row(tmp_path, make, quietly):
    """Each byte of the last row, one after the other: the checkpoint before is taken, and the row is made anew."""
    run_dir = tmp_path / "a"
    run = quietly(make("hill"), steps=2, run_dir=run_dir)
    file = run_dir / "metrics.jsonl"
    text = file.read_bytes()
    first = text.index(b"\n") + 1
    rows, places, noticed = run.metrics, 0, 0
    for place in range(first, len(text), 9):
        flipped(file, place)
        places += 1
        if reads_the_same(file, rows):
            file.write_bytes(text)
            continue
        noticed += 1
        with pytest.warns(UserWarning, match=r"metrics\.jsonl.*going back to step 1"):
            again = quietly(make("hill"), steps=2, run_dir=run_dir, resume=True)
        assert [row["training_best"] for row in again.metrics] == [row["training_best"] for row in run.metrics]
        text, rows = file.read_bytes(), again.metrics  # its times are others
        if place >= len(text) - 9:
            break
    assert noticed > places // 2


def test_no_flipped_byte_of_the_metrics_is_plotted_or_compared(tmp_path, make, quietly, capsys):
    run_dir = tmp_path / "a"
    rows = quietly(make("hill"), steps=2, run_dir=run_dir).metrics
    file = run_dir / "metrics.jsonl"
    assert read_metrics(file) == rows
    text = file.read_bytes()
    noticed = 0
    for place in range(0, len(text), 7):
        flipped(file, place)
        if not reads_the_same(file, rows):
            noticed += 1
            with pytest.raises(ValueError, match=r"metrics\.jsonl"):
                read_metrics(file)
        file.write_bytes(text)
    assert noticed > len(text) // 14
    file.write_bytes(text.replace(b'"generation": 2', b'"generation": 3'))
    for command in (["plot"], ["report"], ["info"], ["compare"]):
        assert cli.main([*command, str(run_dir)]) == 2
        assert "metrics.jsonl is damaged: its rows are not those that were saved" in capsys.readouterr().err
    file.write_bytes(text + text.splitlines(keepends=True)[-1])  # rows may come after the newest checkpoint
    assert len(read_metrics(file)) == 3


def test_a_damaged_row_without_a_checkpoint_before_is_an_error_that_names_the_file(tmp_path, make, quietly):
    quietly(make("hill"), steps=5, run_dir=tmp_path / "a")
    flipped(tmp_path / "a" / "metrics.jsonl", 20)
    with pytest.raises(DamagedCheckpointError, match=r"nothing can be restored:\n.*metrics\.jsonl"):
        quietly(make("hill"), steps=6, run_dir=tmp_path / "a", resume=True)


@pytest.mark.slow_except("abc")
@pytest.mark.parametrize("seconds", ["abc", None, [1], {}])
def test_times_that_are_no_numbers_are_damage(tmp_path, make, quietly, seconds):
    """In a run of an earlier version too, whose checkpoints do not know their rows."""
    quietly(make("hill"), steps=2, run_dir=tmp_path / "a")
    config = tmp_path / "a" / "config.json"
    config.write_text(config.read_text().replace('"format": 3,', ""))
    for path in (tmp_path / "a" / "checkpoints").glob("*/manifest.json"):
        path.write_text(json.dumps(json.loads(path.read_text())["files"]))
    file = tmp_path / "a" / "metrics.jsonl"
    first, last = map(json.loads, file.read_text().splitlines())
    file.write_text("".join(json.dumps(row) + "\n" for row in (first, {**last, "seconds": seconds})))
    with pytest.warns(UserWarning, match=r"metrics\.jsonl.*going back to step 1"):
        assert len(quietly(make("hill"), steps=3, run_dir=tmp_path / "a", resume=True).metrics) == 3


def test_no_flipped_byte_of_an_elite_gives_another_lineage(tmp_path, make, quietly):
    quietly(make("hill"), steps=2, run_dir=tmp_path / "a")
    file = tmp_path / "a" / "elite.json"
    text, genome = file.read_bytes(), population.load(file)
    for place in range(len(text)):
        flipped(file, place)
        with pytest.raises(ValueError, match=r"elite\.json"):  # a UnicodeDecodeError is a ValueError, too
            population.load(file)
        file.write_bytes(text)
    assert population.load(file) == genome


def test_an_elite_of_the_checkpoint_before_is_not_taken_for_the_newest_and_resuming_writes_it(tmp_path, make, quietly):
    quietly(make("hill"), steps=1, run_dir=tmp_path / "a")
    file = tmp_path / "a" / "elite.json"
    old = file.read_text()
    quietly(make("hill"), steps=2, run_dir=tmp_path / "a", resume=True)
    newest = file.read_text()
    file.write_text(old)  # as a kill between the checkpoint and its elite leaves it
    with pytest.raises(ValueError, match="resume the run"):
        population.load(file)
    quietly(make("hill"), steps=2, run_dir=tmp_path / "a", resume=True)
    assert file.read_text() == newest


CONFIGS = ["", "[]", "3", "null", "{", '{"algorithm": 3, "key": {}}', '{"key": {}}', "[" * 100_000, "\0"]


@pytest.mark.parametrize("text", CONFIGS, ids=range(len(CONFIGS)))
def test_a_config_of_another_shape_is_named(tmp_path, make, quietly, text):
    quietly(make("hill"), steps=1, run_dir=tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json is (not JSON|not the configuration of a run)"):
        quietly(make("hill"), steps=2, run_dir=tmp_path / "a", resume=True)


# ---- structures that no version wrote, with sums that are right ----


def rewrite_manifest(folder, **changes):
    said = json.loads((folder / "manifest.json").read_text())
    manifest.write(folder, step=said["step"], num_bytes=said["bytes"], about=said["about"])
    if changes:
        said = json.loads((folder / "manifest.json").read_text()) | changes
        (folder / "manifest.json").write_text(json.dumps(said | {"sha256": manifest.digest(said)}))


MANIFESTS = [[], 3, None, "files", {"files": 3}, {"files": {}, "about": [], "bytes": 0, "step": 1, "sha256": ""}]


@pytest.mark.parametrize("content", MANIFESTS, ids=range(len(MANIFESTS)))
def test_a_manifest_of_another_shape_is_damage(tmp_path, content):
    folder = checkpoint.save(tmp_path, 1, {"a": 1})
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(DamagedCheckpointError):
        checkpoint.restore(tmp_path, 1)


def test_a_manifest_nested_without_end_is_damage(tmp_path):
    folder = checkpoint.save(tmp_path, 1, {"a": 1})
    (folder / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(DamagedCheckpointError):
        checkpoint.restore(tmp_path, 1)


TREES = ["", "{}", "[]", "3", '{"tree_metadata": {}}', '{"tree_metadata": 3}', "[" * 50_000]


@pytest.mark.parametrize("text", TREES, ids=range(len(TREES)))
def test_a_tree_that_orbax_did_not_write_is_damage(tmp_path, text):
    folder = checkpoint.save(tmp_path, 1, {"a": np.arange(3)})
    (folder / "tree" / "_METADATA").write_text(text)
    rewrite_manifest(folder)
    with pytest.raises(DamagedCheckpointError):
        checkpoint.restore(tmp_path, 1)


@pytest.mark.parametrize(
    "leaf",
    ["\0long abc", "\0empty float32", "\0empty nothing [0]", "\0empty float32 {}", {"\0key": "x", "data": np.zeros(2)}],
    ids=range(5),
)
def test_marks_that_mean_nothing_are_damage(tmp_path, leaf):
    checkpoint.save(tmp_path, 1, {"a": leaf, "b": np.ones(2)})
    with pytest.raises(DamagedCheckpointError, match="cannot be read"):
        checkpoint.restore(tmp_path, 1)


STATES = [
    {},
    [],
    3,
    "x",
    {"generation": "x", "key": np.zeros(2, np.uint32)},
    {"generation": [3], "key": 4},
    {"generation": 2, "key": np.zeros(2, np.uint32), "lineage": 3},
    {"generation": 2, "key": np.zeros(2, np.uint32), "strategy": {"bases": "x"}},
    {"acting": 3, "learning": [], "key": "x", "place": {"envs": 3}},
]


@pytest.mark.slow_except("ga", "a3c")
@pytest.mark.parametrize("name", ["ga", "es", "a3c", "td3", "hill"])
def test_states_of_another_shape_end_in_our_errors(tmp_path, make, quietly, name):
    """Checkpoints whose sums and owner are right, and whose tree is no state."""
    algorithm, run_dir = make(name), tmp_path / "a"
    first = make(name)._replace(step=None)
    record = _begun(first, run_dir)
    for tree in STATES:
        checkpoint.save(run_dir / "checkpoints", 0, tree, about=record)
        with pytest.raises((DamagedCheckpointError, ValueError)):
            quietly(algorithm, steps=1, run_dir=run_dir, resume=True)
    algorithm.close()


def _begun(algorithm, run_dir):
    """Begins a run without a step; what its checkpoint says of itself."""
    from contextlib import ExitStack

    from volvox._record import Record

    key = jax.random.key(0)
    record = Record(algorithm, run_dir, keep=3, log=False)
    with ExitStack() as stack:
        record.open(stack, key, resume=False, about=None)
        record.begin(stack, algorithm.init(key), loggers=())
    return dict(checkpoint.about_latest(run_dir / "checkpoints"))


# ---- memory ----


def test_little_data_that_would_become_large_arrays_is_refused_before_it_is_read(tmp_path, monkeypatch):
    small = checkpoint.save(tmp_path / "small", 1, {"a": np.zeros(10)})
    large = checkpoint.save(tmp_path / "large", 1, {"a": np.zeros(10_000_000)})
    assert sum(path.stat().st_size for path in large.rglob("*")) < 1_000_000
    said = json.loads((small / "manifest.json").read_text())
    manifest.write(large, step=1, num_bytes=said["bytes"], about={})
    monkeypatch.setattr(checkpoint, "_checkpointer", None)
    with pytest.raises(DamagedCheckpointError, match="80000000 bytes of arrays, of 80"):
        checkpoint.restore(tmp_path / "large", 1)


def test_a_small_array_in_large_pieces_is_refused_before_it_is_read(tmp_path, monkeypatch):
    import tensorstore

    folder = checkpoint.save(tmp_path, 1, {"a": np.zeros(10)})
    said = json.loads((folder / "manifest.json").read_text())
    kvstore = {"driver": "ocdbt", "base": f"file://{folder}/tree/", "path": "tree.a/"}
    pieces = {"shape": [10], "chunks": [10_000_000], "dtype": "<f8"}
    spec = {"driver": "zarr", "kvstore": kvstore, "metadata": pieces}
    tensorstore.open(spec, create=True, delete_existing=True).result().write(np.zeros(10)).result()
    manifest.write(folder, step=1, num_bytes=said["bytes"], about={})
    monkeypatch.setattr(checkpoint, "_checkpointer", None)
    with pytest.raises(DamagedCheckpointError, match=r"a piece of tree\.a is larger than it"):
        checkpoint.restore(tmp_path, 1)


def test_more_than_the_memory_there_is_is_refused_before_it_is_read(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, {"a": np.zeros(100)})
    monkeypatch.setattr(checkpoint, "host_memory", lambda: 799)
    with pytest.raises(MemoryError, match=r"takes 800 bytes of memory, and 799 bytes are free"):
        checkpoint.restore(tmp_path, 1)


@pytest.mark.slow
def test_whole_files_are_no_cause_for_a_warning(tmp_path, make, quietly):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for steps in (1, 2, 3):
            quietly(make("ga"), steps=steps, run_dir=tmp_path / "a", resume=True)
        elite = population.load(tmp_path / "a" / "elite.json")
    assert population.lineage.to_json(elite) == json.loads((tmp_path / "a" / "elite.json").read_text())
    assert checkpoint.steps(tmp_path / "a" / "checkpoints") == [1, 2, 3]
