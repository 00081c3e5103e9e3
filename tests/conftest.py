"""One cache of compiled programs for all tests of a run, their worker processes and the scripts they start.

Half of the suite's time is compilation, and many tests compile the same programs. The cache begins empty and goes with
the run: no test sees what an earlier run compiled.
"""

import os
import shutil
import tempfile

import pytest

_DIRECTORY = "JAX_COMPILATION_CACHE_DIR"
_EVERYTHING = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def pytest_configure(config: pytest.Config) -> None:
    if _DIRECTORY not in os.environ:  # workers find that of the process that started them
        config.stash[_MADE] = directory = tempfile.mkdtemp(prefix="volvox-tests-")
        os.environ |= {_DIRECTORY: directory, **_EVERYTHING}


def pytest_unconfigure(config: pytest.Config) -> None:
    if _MADE in config.stash:
        shutil.rmtree(config.stash[_MADE], ignore_errors=True)


_MADE = pytest.StashKey[str]()
