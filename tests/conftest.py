"""How the tests compile: quickly, and what was compiled before not again.

Most of the suite's time is compilation. Tests therefore compile without most of XLA's optimisation, except those marked
`optimized`, which compare bits, read compiled programs, or compute for long. All share a cache of compiled programs in
the user's cache folder, which stays from run to run; a program's optimisation and JAX's version are parts of its name.
"""

import gc
import os
from pathlib import Path

import pytest

_CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
_QUICK = "JAX_DISABLE_MOST_OPTIMIZATIONS"


def _keep_programs() -> None:
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    folder = home / "volvox" / "tests" / "programs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": str(folder), **_CACHE}
    from volvox._programs import tidy

    tidy(folder.parent)


# Now, before the conftest.py of a folder imports JAX; workers, and the scripts that tests start, find what is set here.
os.environ.setdefault(_QUICK, "0" if os.environ.get("VOLVOX_EXACT") == "1" else "1")
_keep_programs()


# A worker keeps millions of objects of JAX, and looking at them again and again for garbage took a seventh of its time.
gc.set_threshold(50_000, 20, 50)


_TIMED_EVERY = 10
"""Steps of which one has a stopwatch, which is a program of its own, in tests marked `stopwatch`; no other has one."""


_unknown: dict[str, set[str]] = {}
"""Cases that `slow_except` names and that were not collected, by test."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks cases of a test as slow that `slow_except` does not name."""
    if (quick := item.get_closest_marker("slow_except")) is not None:
        test, _, case = item.nodeid.partition("[")
        _unknown.setdefault(test, set(quick.args)).discard(case.removesuffix("]"))
        if case.removesuffix("]") not in quick.args:
            item.add_marker(pytest.mark.slow)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts tests that are compiled otherwise at the end: what was traced before is lost in between."""
    items.sort(key=lambda item: item.get_closest_marker("optimized") is not None)
    unknown = {test: sorted(cases) for test, cases in _unknown.items() if cases}
    if unknown and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"slow_except names cases that do not exist: {unknown}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Compiles a test, its fixtures and its processes as its mark says, and leaves the stopwatch out, or in."""
    import jax

    from volvox.rollout import driver

    driver.TIMED_EVERY = _TIMED_EVERY if item.get_closest_marker("stopwatch") else 1
    quick = item.get_closest_marker("optimized") is None and os.environ.get("VOLVOX_EXACT") != "1"
    os.environ[_QUICK] = str(int(quick))
    if jax.config.read("jax_disable_most_optimizations") != quick:
        jax.config.update("jax_disable_most_optimizations", quick)
        jax.clear_caches()  # functions that the tests before compiled otherwise
