"""What a program runs on."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def versions() -> dict[str, str | None]:
    """Versions of volvox and of what decides its results and speed; None of a package that is not installed."""
    return {name: _version(name) for name in ("volvox", "jax", "envpool")}


def processor() -> str:
    """The processor's name."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from its sources, not installed
        return None
