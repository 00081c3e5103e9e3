"""What a run needs of memory and disk, compared with what there is, before anything long begins."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np


def size_of(tree: Any) -> int:
    """Returns the bytes of a tree's arrays, or of arrays of such shapes (`jax.ShapeDtypeStruct`)."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
    return sum(int(np.prod(leaf.shape, dtype=object)) * leaf.dtype.itemsize for leaf in leaves)


def shown(size: int) -> str:
    """Writes a number of bytes: 16.2 GB."""
    units = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (1, "bytes"))
    unit, name = next(((unit, name) for unit, name in units if size >= unit), units[-1])
    return f"{size / unit:,.0f} {name}" if unit == 1 or size >= 1000 * unit else f"{size / unit:.3g} {name}"


def available_memory() -> int | None:
    """Returns the bytes that are free where arrays live: on the accelerator, or in this process's share of the machine.

    None where nothing says so.
    """
    device = jax.devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0) if "bytes_limit" in stats else None
    return host_memory()


def host_memory() -> int | None:
    """Returns the bytes that are free for this process in the machine's memory; None where nothing says so."""
    found = [_in_machine(), _in_group("memory.max", "memory.current"), _in_group(*_OLD_GROUP)]
    return min((size for size in found if size is not None), default=None)


_OLD_GROUP = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")


def check_memory(parts: Mapping[str, int], remedy: str) -> None:
    """Checks that arrays fit into the memory that is free.

    Args:
      parts: Bytes by the name of what needs them; no more than will be needed for sure.
      remedy: What to change.

    Raises:
      ValueError: They do not fit; the message has the figures.
    """
    needed, free = sum(parts.values()), available_memory()
    if free is not None and needed > free:
        listed = ", ".join(f"{name} {shown(size)}" for name, size in parts.items() if size)
        raise ValueError(
            f"this needs at least {shown(needed)} of memory ({listed}), and {shown(free)} are free; {remedy}"
        )


def check_disk(directory: Path, first: Path) -> None:
    """Checks that the disk has room for a second checkpoint beside the first, which is as large as on the disk.

    Raises:
      ValueError: It has not; the message has the figures.
    """
    free = shutil.disk_usage(directory).free
    size = sum(path.stat().st_blocks * 512 for path in first.rglob("*"))
    if size > free:
        raise ValueError(
            f"a checkpoint takes {shown(size)} of disk, and beside the first one {shown(free)} are free for "
            f"{directory}; free some, or give another run_dir"
        )


def check_writable(directory: str | os.PathLike[str]) -> None:
    """Checks that a folder can be written to, or made.

    Raises:
      ValueError: It cannot; the message says why.
    """
    path = Path(directory)
    existing = _existing(path)
    try:
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is no directory")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"run_dir={os.fspath(directory)!r} cannot be written ({reason}); give another") from error


def _existing(path: Path) -> Path:
    """The path, or the nearest of its parents that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def _in_machine() -> int | None:
    """Bytes that programs may still take without swapping."""
    information = Path("/proc/meminfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def _in_group(limit: str, usage: str) -> int | None:
    """Bytes that the control group, such as a container, leaves; what files take of them is given back if needed."""
    group = Path("/sys/fs/cgroup")
    try:
        most, used = ((group / name).read_text().strip() for name in (limit, usage))
        statistics = dict(line.split() for line in (group / limit).with_name("memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if most == "max":
        return None
    return int(most) - int(used) + int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0))
