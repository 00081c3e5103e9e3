"""What is said of a whole machine, and of one where something is missing."""

import sys

import pytest

from volvox import doctor


def lines(capsys):
    return {line.split()[1]: line for line in capsys.readouterr().out.splitlines()[:-1]}


def test_a_whole_machine(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_LEAST_MEMORY", 0)  # other work may fill the machine
    monkeypatch.setattr(doctor, "_LEAST_DISK", 0)
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: {0, 1})
    assert doctor.doctor() == 0
    found = lines(capsys)
    assert list(found) == ["jax", "envpool", "cores", "memory", "ffmpeg", "disk"]
    assert all(line.startswith("ok ") for line in found.values())
    assert "one timestep of Pong: [1, 84, 84, 4]" in found["envpool"]
    assert "ffmpeg version" in found["ffmpeg"]


def test_what_is_missing_is_a_problem_with_advice(capsys, monkeypatch, tmp_path):
    def broken(*args, **kwargs):
        raise ImportError("libGL.so.1:\ncannot open")

    monkeypatch.setattr(doctor.envs, "atari", broken)
    monkeypatch.setattr(doctor, "_LEAST_DISK", 10**18)
    monkeypatch.setattr(doctor, "_LEAST_MEMORY", 10**18)
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert doctor.doctor() == 1
    found = lines(capsys)
    assert {name for name, line in found.items() if line.startswith("problem ")} == set(found) - {"jax"}
    assert "ImportError: libGL.so.1: cannot open: Atari and MuJoCo cannot be played" in found["envpool"]
    assert "pip install --upgrade imageio-ffmpeg" in found["ffmpeg"]
    assert "free some room" in found["disk"]


def test_a_folder_that_cannot_be_written_is_a_problem(monkeypatch):
    def refused(**kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refused)
    finding = doctor.checked("disk", doctor.CHECKS["disk"])
    assert finding.advice.startswith("runs cannot be written here")


@pytest.mark.parametrize(("content", "cores"), [("max 100000\n", float("inf")), ("150000 100000\n", 1.5)])
def test_the_quota_of_a_control_group_counts(monkeypatch, tmp_path, content, cores):
    (tmp_path / "cpu.max").write_text(content)
    monkeypatch.setattr(doctor, "control_groups", lambda controller: [tmp_path, tmp_path / "missing"])
    assert doctor._cpu_quota() == cores
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: {0, 1})
    found, advice = doctor.CHECKS["cores"]()
    assert ("limited to the time of 1.5" in found) == bool(advice) == (cores < 2)
