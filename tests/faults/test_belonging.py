"""A checkpoint belongs to its run and to its step."""

import json
import shutil

import jax
import pytest

from volvox import checkpoint
from volvox.checkpoint import DamagedCheckpointError


def folder(run_dir, step):
    return run_dir / "checkpoints" / f"{step:08d}"


def test_a_checkpoint_of_another_seed_is_refused(tmp_path, make, quietly):
    for seed in (0, 5):
        quietly(make("hill"), seed=seed, steps=2, run_dir=tmp_path / str(seed))
    shutil.rmtree(folder(tmp_path / "5", 2))
    shutil.copytree(folder(tmp_path / "0", 2), folder(tmp_path / "5", 2))
    with pytest.raises(ValueError, match=r"00000002 belongs to another run than .*config\.json"):
        quietly(make("hill"), seed=5, steps=3, run_dir=tmp_path / "5", resume=True)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path, make, quietly):
    other = make("hill")._replace(config={"algorithm": "hill", "size": 99})
    quietly(other, steps=2, run_dir=tmp_path / "other")
    quietly(make("hill"), steps=1, run_dir=tmp_path / "own")
    shutil.copytree(folder(tmp_path / "other", 2), folder(tmp_path / "own", 2))
    with pytest.raises(ValueError, match="belongs to another run"):
        quietly(make("hill"), steps=3, run_dir=tmp_path / "own", resume=True)


def test_a_renamed_step_is_noticed_and_the_one_before_taken(tmp_path, make, quietly):
    run = quietly(make("hill"), steps=3, run_dir=tmp_path / "a")
    shutil.rmtree(folder(tmp_path / "a", 3))
    shutil.copytree(folder(tmp_path / "a", 1), folder(tmp_path / "a", 3))
    with pytest.warns(UserWarning, match=r"00000003 is damaged: it was saved as that of step 1; going back to step 2"):
        again = quietly(make("hill"), steps=3, run_dir=tmp_path / "a", resume=True)
    assert (again.state["x"] == run.state["x"]).all()


@pytest.mark.parametrize(("one", "other"), [("a3c", "ga"), ("ga", "a3c"), ("hill", "ga")])
def test_another_algorithms_checkpoint_without_a_manifest_of_today_is_refused_by_its_structure(
    tmp_path, make, one, other
):
    algorithm = make(one)
    state = algorithm.init(jax.random.key(0))
    checkpoint.save(tmp_path, 1, state if algorithm.save is None else algorithm.save(state))
    with pytest.raises(ValueError, match="the checkpoint is of another state"):
        make(other).restore(checkpoint.restore(tmp_path, 1))


def as_written_before(run_dir):
    """Leaves in each manifest what earlier versions wrote: the sums of the files; config.json had no format then."""
    file = run_dir / "config.json"
    config = json.loads(file.read_text())
    del config["format"]
    file.write_text(json.dumps(config))
    for path in (run_dir / "checkpoints").glob("*/manifest.json"):
        path.write_text(json.dumps(json.loads(path.read_text())["files"], indent=1))


def test_checkpoints_of_earlier_versions_are_still_read(tmp_path, make, quietly):
    straight = quietly(make("hill"), steps=4)
    quietly(make("hill"), steps=2, run_dir=tmp_path / "a")
    config = (tmp_path / "a" / "config.json").read_text()
    as_written_before(tmp_path / "a")
    old = (tmp_path / "a" / "config.json").read_text()
    (tmp_path / "a" / "config.json").write_text(config)  # a run of today has no such checkpoints
    with pytest.raises(ValueError, match="belongs to another run"):
        quietly(make("hill"), steps=4, run_dir=tmp_path / "a", resume=True)
    (tmp_path / "a" / "config.json").write_text(old)
    run = quietly(make("hill"), steps=4, run_dir=tmp_path / "a", resume=True)
    assert (run.state["x"] == straight.state["x"]).all()


def test_a_flipped_byte_of_a_manifest_is_noticed(tmp_path):
    path = checkpoint.save(tmp_path, 1, {"a": 1}, about={"settings": "x"}) / "manifest.json"
    text = path.read_text()
    for place in range(0, len(text), 7):
        damaged = bytearray(text.encode())
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(DamagedCheckpointError):
            checkpoint.restore(tmp_path, 1)
    path.write_text(text)
    checkpoint.restore(tmp_path, 1)
