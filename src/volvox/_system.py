"""The machine and its files: versions, processors, and files that are written whole."""

import importlib.metadata
import os
import platform
import threading
from pathlib import Path


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a whole file atomically and to disk: a reader, or a kill at any moment, finds the old one or the new.

    Args:
      path: of the file; its directory exists.
      content: text (written as UTF-8) or bytes.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}-{os.getpid()}-{threading.get_ident()}")
    try:
        with unfinished.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def versions() -> dict[str, str | None]:
    """Versions of volvox and of what decides its results and speed; None of a package that is not installed."""
    installed = {name: importlib.metadata.distributions(name=name) for name in ("volvox", "jax", "envpool")}
    return {name: next((found.version for found in copies), None) for name, copies in installed.items()}


def processor() -> str:
    """The processor's name."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))
