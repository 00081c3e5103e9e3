"""Compilation in tests: most tests compile without optimisation, and compiled programs are cached between runs.

Tests marked `optimized` compile as users do, because they compare bits, read compiled programs, or compute for long.
Where they are left out (`-m "not optimized"`), XLA uses its older code for fusions, which compiles twice as fast.
"""

import contextlib
import gc
import importlib.metadata
import io
import os
import runpy
import signal
import sys
from pathlib import Path

import pytest

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "volvox" / "tests" / "programs"
_COMPILED = pytest.StashKey[tuple[Path, bool]]()
_QUICK = "JAX_DISABLE_MOST_OPTIMIZATIONS"

# Set before JAX is imported. Worker processes and scripts that tests start inherit the environment.
os.environ.setdefault(_QUICK, "0" if os.environ.get("VOLVOX_EXACT") == "1" else "1")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # tracebacks in programs take time
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

gc.set_threshold(50_000, 20, 50)  # JAX keeps millions of objects; frequent collections would take a seventh of the time


def pytest_configure(config: pytest.Config) -> None:
    """Sets the flag of a process whose tests are not optimised; XLA reads flags once, and aborts at unknown ones."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make processes in the background ignore it
    if "not optimized" in config.option.markexpr and importlib.metadata.version("jaxlib").startswith("0.10."):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts optimised tests at the end, because the change drops compiled programs, and the longest tests first.

    Those are of documents and packaging, in the folder of all tests.
    """
    items.sort(key=lambda item: (item.get_closest_marker("optimized") is not None, item.path.parent.name != "tests"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Chooses how a test, its fixtures and its processes compile, and drops the programs of other files.

    JAX lowers programs more slowly the more of them a process holds: three times as slowly after all quick tests.
    """
    import jax

    quick = item.get_closest_marker("optimized") is None and os.environ.get("VOLVOX_EXACT") != "1"
    os.environ[_QUICK] = str(int(quick))
    if item.config.stash.get(_COMPILED, None) != (item.path, quick):
        item.config.stash[_COMPILED] = (item.path, quick)
        jax.config.update("jax_disable_most_optimizations", quick)
        jax.clear_caches()


@pytest.fixture(scope="session")
def run_script():
    """Runs a script in this process, which has imported JAX already, and checks its exit code.

    Returns (stdout, stderr).
    """

    def run(path, *words, code=0):
        out, err, exit_code = io.StringIO(), io.StringIO(), 0
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.setattr(sys, "argv", [str(path), *map(str, words)])
            patch.syspath_prepend(path.parent)
            try:
                runpy.run_path(str(path), run_name="__main__")
            except SystemExit as end:
                exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
                err.write(end.code if isinstance(end.code, str) else "")
        assert exit_code == code, err.getvalue()
        return out.getvalue(), err.getvalue()

    return run
