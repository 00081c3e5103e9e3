"""A run writes where it began or stops, and takes nothing for a checkpoint that is none."""

import os
import shutil

import pytest

from volvox import checkpoint
from volvox.report import read_metrics
from volvox.training import train

GONE = "is no longer the directory in which this run began"


def removed(run_dir):
    shutil.rmtree(run_dir)


def moved(run_dir):
    run_dir.rename(run_dir.with_name("elsewhere"))


def replaced(run_dir):
    moved(run_dir)
    shutil.copytree(run_dir.with_name("elsewhere"), run_dir)


def without_its_lock(run_dir):
    (run_dir / ".lock").unlink()


def without_its_checkpoints(run_dir):
    shutil.rmtree(run_dir / "checkpoints")


def with_moved_checkpoints(run_dir):
    (run_dir / "checkpoints").rename(run_dir / "kept")
    shutil.copytree(run_dir / "kept", run_dir / "checkpoints")


def with_a_link_to_its_checkpoints(run_dir):
    (run_dir / "checkpoints").rename(run_dir / "kept")
    (run_dir / "checkpoints").symlink_to(run_dir / "kept")


@pytest.mark.parametrize(
    "loss", [without_its_checkpoints, with_moved_checkpoints, with_a_link_to_its_checkpoints], ids=lambda f: f.__name__
)
def test_a_run_whose_checkpoints_are_gone_stops_and_writes_nothing_more(tmp_path, make, loss):
    algorithm = make("hill", watch=lambda number: loss(tmp_path / "a") if number == 3 else None)
    with pytest.raises(OSError, match=GONE):
        train(algorithm, steps=5, run_dir=tmp_path / "a", progress=False)
    assert checkpoint.steps(tmp_path / "a" / "checkpoints") == ([] if loss is without_its_checkpoints else [0, 1, 2])
    assert len(read_metrics(tmp_path / "a" / "metrics.jsonl")) == 2


@pytest.mark.parametrize("loss", [removed, moved, replaced, without_its_lock], ids=lambda f: f.__name__)
def test_a_run_whose_directory_is_gone_stops_and_writes_nothing_more(tmp_path, make, loss):
    run_dir = tmp_path / "a"
    algorithm = make("hill", watch=lambda number: loss(run_dir) if number == 3 else None)
    with pytest.raises(OSError, match=GONE):
        train(algorithm, steps=5, run_dir=run_dir, progress=False)
    for left in (run_dir, tmp_path / "elsewhere"):
        if left.exists():
            assert checkpoint.steps(left / "checkpoints")[-1] == 2
    assert not (loss is removed and run_dir.exists())


def test_a_moved_run_goes_on_where_it_was_moved(tmp_path, make, quietly):
    run_dir = tmp_path / "a"
    algorithm = make("hill", watch=lambda number: moved(run_dir) if number == 3 else None)
    with pytest.raises(OSError, match=GONE):
        quietly(algorithm, steps=5, run_dir=run_dir)
    run = quietly(make("hill"), steps=5, run_dir=tmp_path / "elsewhere", resume=True)
    assert (run.state["x"] == quietly(make("hill"), steps=5).state["x"]).all()


def test_a_new_run_in_its_place_is_not_taken_over(tmp_path, make, quietly):
    def begin_another(number):
        if number == 3:
            removed(tmp_path / "a")
            quietly(make("hill"), seed=1, steps=1, run_dir=tmp_path / "a")

    with pytest.raises(OSError, match=GONE):
        quietly(make("hill", watch=begin_another), steps=5, run_dir=tmp_path / "a")
    run = quietly(make("hill"), seed=1, steps=2, run_dir=tmp_path / "a", resume=True)
    assert (run.state["x"] == quietly(make("hill"), seed=1, steps=2).state["x"]).all()


def link(folder):
    (folder / "00000009").symlink_to(folder / "00000002")


def dangling_link(folder):
    (folder / "00000009").symlink_to(folder / "nowhere")


def unpadded(folder):
    shutil.copytree(folder / "00000002", folder / "9")


def file(folder):
    (folder / "00000009").write_text("notes")


def other_folder(folder):
    (folder / "old").mkdir()


def pipe(folder):
    os.mkfifo(folder / "00000009")


@pytest.mark.parametrize("entry", [link, dangling_link, unpadded, file, other_folder, pipe], ids=lambda f: f.__name__)
def test_what_is_no_checkpoint_is_left_alone_and_said(tmp_path, make, quietly, entry):
    quietly(make("hill"), steps=2, run_dir=tmp_path / "a")
    folder = tmp_path / "a" / "checkpoints"
    before = set(os.listdir(folder))
    entry(folder)
    (foreign,) = set(os.listdir(folder)) - before
    assert checkpoint.steps(folder)[-1] == 2
    with pytest.warns(UserWarning, match=f"holds what is no checkpoint, and is left alone: {foreign}"):
        run = quietly(make("hill"), steps=4, run_dir=tmp_path / "a", resume=True)
    assert len(run.metrics) == 4
    assert foreign in os.listdir(folder)


@pytest.mark.parametrize("name", ["manifest.json", "tree/_METADATA"])
def test_a_pipe_within_a_checkpoint_is_damage_and_not_waited_for(tmp_path, name):
    folder = checkpoint.save(tmp_path, 1, {"a": 1})
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(checkpoint.DamagedCheckpointError, match=name):
        checkpoint.restore(tmp_path, 1)


def test_a_pipe_in_place_of_the_metrics_is_named(tmp_path, make, quietly):
    quietly(make("hill"), steps=1, run_dir=tmp_path / "a")
    (tmp_path / "a" / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "a" / "metrics.jsonl")
    with pytest.warns(UserWarning, match=r"metrics\.jsonl is no file; going back to step 0"):
        assert len(quietly(make("hill"), steps=2, run_dir=tmp_path / "a", resume=True).metrics) == 2


@pytest.mark.parametrize("step", [1, 3])
def test_a_pipe_or_link_in_the_place_of_a_checkpoint_gives_way(tmp_path, step):
    checkpoint.save(tmp_path, 2, {"a": 1})
    os.mkfifo(tmp_path / f"{step:08d}")
    (tmp_path / ".unfinished-00000007").symlink_to(tmp_path / "nowhere")
    checkpoint.save(tmp_path, step, {"a": 2})
    assert checkpoint.restore(tmp_path, step) == {"a": 2}
