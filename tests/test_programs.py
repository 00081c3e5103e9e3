"""The cache of compiled programs: where it is, what it removes, and that other processes use it."""

import os
import stat
import subprocess
import sys
import zlib
from pathlib import Path

import jax
import pytest

from volvox import _programs
from volvox._programs import tidy

PROGRAM = """
import jax
from volvox._programs import keep_programs
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
print(keep_programs())
print(jax.jit(lambda x: x * 3 + 1)(2))
print("/jax/compilation_cache/cache_hits" in found)
"""


def run(**environment):
    """(folder, result, whether the program was in the cache) of a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "VOLVOX_", "XDG_"))}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=inherited | environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.slow
def test_the_next_process_finds_what_was_compiled(tmp_path):
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    folder, result, found = run(**home)
    assert folder.startswith(f"{tmp_path}/volvox/programs/")
    assert (result, found) == ("7", "False")
    assert oct(os.stat(folder).st_mode)[-3:] == "700"
    assert run(**home) == [folder, "7", "True"]


@pytest.mark.slow
def test_it_is_off_elsewhere_or_jaxs_own(tmp_path):
    home = {"XDG_CACHE_HOME": str(tmp_path / "home")}
    assert run(**home, VOLVOX_COMPILATION_CACHE="off")[0] == "None"
    assert run(**home, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "jax"))[0] == "None"
    assert not (tmp_path / "home").exists()
    assert run(**home, VOLVOX_COMPILATION_CACHE="1")[0].startswith(f"{tmp_path}/home/volvox/programs/")
    assert run(**home, VOLVOX_COMPILATION_CACHE=str(tmp_path / "other"))[0].startswith(f"{tmp_path}/other/")


@pytest.fixture
def without_cache():
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.usefixtures("without_cache")
@pytest.mark.parametrize("name", ["file", "shared"])
def test_a_cache_that_cannot_be_kept_or_that_others_may_write_to_is_said_and_left(tmp_path, monkeypatch, name):
    (tmp_path / "file").touch()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    monkeypatch.setenv(_programs.VARIABLE, str(tmp_path / name))
    reason = {"file": "File exists", "shared": "others may write"}[name]
    with pytest.warns(UserWarning, match=f"compiled programs are not kept for the next start: .*{reason}"):
        assert _programs.keep_programs() is None


@pytest.mark.usefixtures("without_cache")
def test_a_user_without_a_home_gets_a_warning(monkeypatch):
    def no_home(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(_programs.VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.warns(UserWarning, match="Could not determine home directory"):
        assert _programs.keep_programs() is None


def entry(root, name, content, *, age=0.0):
    path = root / "0123456789abcdef" / f"{name}-cache"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    times = path.stat().st_mtime - age
    os.utime(path, (times, times))
    return path


def names(root):
    return sorted(path.name.removesuffix("-cache") for path in root.glob("*/*-cache"))


def test_half_written_entries_are_removed(tmp_path):
    whole = zlib.compress(bytes(1_000))
    contents = {"whole": whole, "cut": whole[:-3], "empty": b"", "wrong": whole[:5] + b"?" + whole[6:]}
    for name, content in contents.items():
        entry(tmp_path, name, content)
    entry(tmp_path, "zstandard", b"\x28\xb5\x2f\xfd and more")
    tidy(tmp_path)
    assert names(tmp_path) == ["whole", "zstandard"]


def test_entries_are_read_once(tmp_path, monkeypatch):
    entry(tmp_path, "old", zlib.compress(b"old"), age=100)
    tidy(tmp_path)
    looked = []
    monkeypatch.setattr(_programs, "_is_whole", lambda path: looked.append(path.name) or True)
    entry(tmp_path, "new", zlib.compress(b"new"))
    tidy(tmp_path)
    assert looked == ["new-cache"]


@pytest.mark.parametrize(("most_bytes", "left"), [(400, "abcd"), (399, "bcd"), (200, "cd"), (0, "")])
def test_the_oldest_go_first(tmp_path, monkeypatch, most_bytes, left):
    monkeypatch.setattr(_programs, "_is_whole", lambda path: True)
    for age, name in enumerate("dcba"):
        entry(tmp_path, name, bytes(100), age=10 * age)
    tidy(tmp_path, most_bytes=most_bytes)
    assert "".join(names(tmp_path)) == left


@pytest.mark.usefixtures("without_cache")
def test_a_umask_that_lets_the_group_write_makes_folders_of_ones_own(tmp_path, monkeypatch, recwarn):
    monkeypatch.setenv(_programs.VARIABLE, str(tmp_path / "programs"))
    before = os.umask(0o002)
    try:
        folder = _programs.keep_programs()
    finally:
        os.umask(before)
    assert folder.parent == tmp_path / "programs"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder)] == [0o700, 0o700]
    assert not recwarn.list


@pytest.mark.usefixtures("without_cache")
def test_the_folder_of_another_user_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv(_programs.VARIABLE, str(tmp_path / "programs"))
    monkeypatch.setattr(os, "getuid", lambda: 12_345_678)
    with pytest.warns(UserWarning, match="belongs to another user, who could run code here by it: set VOLVOX_COMP"):
        assert _programs.keep_programs() is None


def test_files_of_others_are_left(tmp_path):
    (tmp_path / "someone").mkdir()
    (tmp_path / "someone" / "empty-cache").touch()
    tidy(tmp_path, most_bytes=0)
    assert names(tmp_path) == ["empty"]
