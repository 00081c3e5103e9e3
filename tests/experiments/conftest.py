"""Experiment scripts as a user runs them, with their flags."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from volvox.report.files import read_metrics

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="session")
def start():
    """Starts a script in a process of its own."""

    def process(name, *words):
        command = [sys.executable, str(EXPERIMENTS / name), *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return process


@pytest.fixture(scope="session")
def script(run_script):
    """Runs a script by its name."""
    return lambda name, *words, **options: run_script(EXPERIMENTS / name, *words, **options)


@pytest.fixture
def load(monkeypatch):
    """Imports a script, which finds the files beside it."""

    def script_module(name):
        monkeypatch.syspath_prepend(EXPERIMENTS)
        spec = importlib.util.spec_from_file_location(name, EXPERIMENTS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return script_module


@pytest.fixture
def module(load, request):
    """The script that the test file is named after."""
    return load(request.path.stem.removeprefix("test_"))


@pytest.fixture
def read(load):
    """Reads flags, of which the first is a preset, as a script does."""

    def settings(module, words):
        import launch  # beside the scripts

        return launch.read(module.PRESETS, module.__doc__, [str(word) for word in words])

    return settings


@pytest.fixture(scope="session")
def rows():
    """A run directory's metrics."""
    return lambda run_dir: read_metrics(run_dir / "metrics.jsonl")
