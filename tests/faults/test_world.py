"""What the machine does to a run is one clear line, and what was saved before is whole."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from volvox import checkpoint
from volvox.training import train

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_a_full_disk_is_one_clear_error(tmp_path, make, quietly, monkeypatch):
    """At each file that a step writes."""
    for number in range(3):
        run_dir, calls = tmp_path / str(number), []

        def full(descriptor, sync=os.fsync, calls=calls, number=number):
            calls.append(descriptor)
            if len(calls) > 60 + 7 * number:
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(descriptor)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(
                OSError, match=r"cannot be written: .*No space left on device.*resumed from there"
            ) as error:
                train(make("hill"), steps=50, run_dir=run_dir, progress=False)
        assert error.value.errno == errno.ENOSPC
        run = quietly(make("hill"), steps=8, run_dir=run_dir, resume=True)
        assert (run.state["x"] == quietly(make("hill"), steps=8).state["x"]).all()


FILES_OF_A_LIMITED_SIZE = """
import resource, sys
sys.path.insert(0, {experiments!r})
import numpy as np
from launch import exit_code
from volvox import checkpoint

def main():
    checkpoint.save({folder!r}, 1, {{"a": np.zeros(3)}})
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    checkpoint.save({folder!r}, 2, {{f"a{{i}}": np.random.default_rng(i).random(100_000) for i in range(40)}})

sys.exit(exit_code(main))
"""


def test_a_checkpoint_that_the_system_cuts_off_is_one_line_and_the_one_before_stays(tmp_path):
    """Orbax's own errors of such a moment speak of handles and event loops; of many arrays, in many tracebacks."""
    code = FILES_OF_A_LIMITED_SIZE.format(experiments=str(EXPERIMENTS), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert "00000002 could not be written" in done.stderr
    assert os.listdir(tmp_path) == ["00000001"]
    assert checkpoint.restore(tmp_path, 1)["a"].tolist() == [0, 0, 0]


def test_a_directory_that_cannot_be_written_is_refused_before_the_first_step(tmp_path, make, quietly):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file/a' cannot be written .*file is no directory"):
        quietly(
            make("hill", watch=lambda number: pytest.fail("a step was made")), steps=1, run_dir=tmp_path / "file" / "a"
        )


def test_an_error_inside_a_step_keeps_its_traceback(script):
    def main():
        error = ValueError("shapes (3,) and (4,)")
        error.add_note("This was raised inside generation 7.")
        raise error

    with pytest.raises(ValueError, match="shapes"):
        script("launch").exit_code(main)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("settings"), 2),
        (FileExistsError("holds a run"), 2),
        (BlockingIOError("another process"), 2),
        (checkpoint.DamagedCheckpointError("damaged"), 2),
        (OSError(errno.EROFS, "Read-only file system"), 1),
        (PermissionError(errno.EACCES, "Permission denied"), 1),
        (FloatingPointError("not finite"), 1),
        (MemoryError("takes 10 bytes"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scripts_answer_with_one_line_and_an_exit_code(script, capsys, error, code):
    def main():
        raise error

    assert script("launch").exit_code(main) == code
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert str(error) in printed


def test_a_script_that_is_stopped_at_once_ends_at_once(script, capsys, monkeypatch):
    def main():
        raise KeyboardInterrupt

    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    script("launch").exit_code(main)
    assert codes == [130]
    assert capsys.readouterr().err == "stopped at once; what was saved before, if anything, is whole\n"


@pytest.mark.parametrize("name", sorted(path.stem for path in EXPERIMENTS.glob("*.py")))
def test_every_script_that_trains_ends_through_these_lines(name):
    text = (EXPERIMENTS / f"{name}.py").read_text()
    if '__name__ == "__main__"' in text and ("vx.train(" in text or "PRESETS" in text):
        assert "sys.exit(exit_code(main))" in text or "sys.exit(launch(" in text
