"""What a run needs of memory, disk and its directory, compared with what there is, before anything long begins."""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

LOCK = ".lock"
"""File of a run directory that its one writer locks."""


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
    device = jax.local_devices()[0]  # another process's tells nothing
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0) if "bytes_limit" in stats else None
    return host_memory()


def host_memory() -> int | None:
    """Returns the bytes that are free for this process in the machine's memory; None where nothing says so."""
    found = [_in_machine(), *(_in_group(group) for group in control_groups("memory"))]
    return min((size for size in found if size is not None), default=None)


def control_groups(controller: str) -> list[Path]:
    """Returns the folders of this process's control groups, such as a container's, each before the one around it.

    Args:
      controller: What the groups limit: "memory" or "cpu".
    """
    mounted, membership = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
    groups = []
    for line in membership.read_text().splitlines() if membership.exists() else []:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):  # version 2 has one tree for all controllers
            root = mounted / controller if controllers else mounted
            # Where a container sees its own group as the root, what it reads here may not be there.
            own = root / path.lstrip("/")
            groups += [group for group in (own, *own.parents) if group.is_relative_to(root) and group.is_dir()]
    return groups


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


def check_disk(directory: Path, first: Path, number: int, num_bytes: int) -> None:
    """Checks that the disk has room for a run's checkpoints.

    Args:
      directory: The run directory, for the message.
      first: The first checkpoint, which is there. It may be compressed to little, such as a replay that is still empty.
      number: Checkpoints that are there at once, this one counted.
      num_bytes: Bytes of a checkpoint's arrays.

    Raises:
      ValueError: It has not; the message has the figures.
    """
    there = sum(path.stat().st_blocks * 512 for path in first.rglob("*"))
    size, free = max(there, num_bytes), there + shutil.disk_usage(directory).free
    if size * number > free:
        raise ValueError(
            f"a checkpoint takes up to {shown(size)} of disk, {number} of them are kept or being written at once, and "
            f"{shown(free)} are free for {directory}; free some, keep fewer (keep_checkpoints), or give another run_dir"
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


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[Any]:
    """Holds a run directory's lock; the system drops it when the process ends, however it ends."""
    path, flags = directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:  # a link is not followed, and a pipe not waited for
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise ValueError(f"{path} is no file: remove it") from error
    with os.fdopen(descriptor, "r+b", buffering=0) as lock:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} is no file: remove it")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, f"another process is training in {directory}") from error
        except OSError as error:  # some network file systems have no locks, or are mounted without
            told = f"{directory} is on a file system without locks ({error}): let no other process train there"
            warnings.warn(told, UserWarning, stacklevel=2)
        yield lock


def _existing(path: Path) -> Path:
    """The path, or the nearest of its parents that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def _in_machine() -> int | None:
    """Bytes that programs may still take without swapping."""
    information = Path("/proc/meminfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def _in_group(group: Path) -> int | None:
    """Bytes that a control group leaves; what files take of them is given back if needed."""
    names = ("memory.max", "memory.current")
    if not (group / names[0]).exists():  # version 1
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    try:
        most, used = ((group / name).read_text().strip() for name in names)
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if most == "max":
        return None
    # In version 1 those of groups inside are in the totals alone.
    files = [statistics.get(f"total_{name}", statistics.get(name, 0)) for name in ("inactive_file", "active_file")]
    return int(most) - int(used) + sum(map(int, files))
