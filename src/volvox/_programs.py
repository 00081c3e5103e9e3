"""Compiled programs, kept between runs in the user's cache folder: JAX's persistent compilation cache.

JAX leaves three things open, which are done here: the folder is of this kind of processor alone, since programs are
compiled for its instructions; it has a bound; and an entry that a killed process left half-written, which JAX would
read in vain for ever, is removed.
"""

import contextlib
import hashlib
import os
import platform
import time
import warnings
import zlib
from pathlib import Path

import jax

VARIABLE = "VOLVOX_COMPILATION_CACHE"
_MOST_BYTES = 2**30
_ON, _OFF = ("", "1", "on", "yes", "true"), ("0", "off", "no", "false")


def keep_programs() -> Path | None:
    """Makes JAX keep compiled programs, and take those that are there, in this process from now on.

    They are in `~/.cache/volvox/programs`, or where `XDG_CACHE_HOME` says. The environment variable
    `VOLVOX_COMPILATION_CACHE` names another folder, or is "off". A cache that was set up for JAX itself
    (`JAX_COMPILATION_CACHE_DIR`) is left as it is.

    Returns:
      The folder; None if this changed nothing. Where they cannot be kept, or others may write to the folder, a warning
      says so.
    """
    given = os.environ.get(VARIABLE, "")
    if given.lower() in _OFF or jax.config.values["jax_compilation_cache_dir"] is not None:
        return None
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        root = Path(home, "volvox", "programs") if given.lower() in _ON else Path(given).expanduser()
        folder = root / _processor()
        root.parent.mkdir(parents=True, exist_ok=True)
        for made in (root, folder):  # one by one: of parents, the user's mask would decide who may write
            made.mkdir(mode=0o700, exist_ok=True)
        tidy(root)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        return _not_kept(f"{error}")
    if not os.access(folder, os.W_OK):
        return _not_kept(f"{folder} cannot be written")
    if any(path.stat().st_uid != os.getuid() for path in (root, folder)):
        return _not_kept(f"{folder} belongs to another user, who could run code here by it: set {VARIABLE} to a folder")
    if any(path.stat().st_mode & 0o022 for path in (root, folder)):
        return _not_kept(f"others may write to {folder}, and could run code here by it: chmod go-w it and {root}")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a start compiles a hundred small programs
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def _not_kept(reason: str) -> None:
    warnings.warn(f"compiled programs are not kept for the next start: {reason}", UserWarning, stacklevel=3)


def tidy(root: Path, *, most_bytes: int = _MOST_BYTES) -> None:
    """Removes entries that are not whole, and the oldest beyond a size; other processes may use the cache meanwhile.

    Args:
      root: Folder of the caches of all processors.
      most_bytes: What their entries may take together.
    """
    mark, began = root / ".tidied", time.time()
    # Whatever was written before has been looked at; a second for clocks that are coarse.
    since = mark.stat().st_mtime - 1 if mark.exists() else 0.0
    entries = []
    for path in root.glob(f"{'[0-9a-f]' * 16}/*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            about = path.stat()
            if about.st_mtime >= since and not _is_whole(path):
                path.unlink()
            else:
                entries.append((max(about.st_atime, about.st_mtime), about.st_size, path))
    size = sum(size for _, size, _ in entries)
    for _, entry_size, path in sorted(entries):
        if size <= most_bytes:
            break
        path.unlink(missing_ok=True)
        size -= entry_size
    mark.touch()
    os.utime(mark, (began, began))


def _is_whole(path: Path) -> bool:
    content = path.read_bytes()
    if content[:1] != b"\x78":  # not zlib's: with the package zstandard JAX takes that
        return bool(content)
    stream = zlib.decompressobj()
    try:
        stream.decompress(content)
    except zlib.error:
        return False
    return stream.eof


def _processor() -> str:
    """A name for processors with the same instructions."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = ("model name", "flags", "Features")
    about = [next((line for line in lines if line.startswith(name)), "") for name in names]
    return hashlib.sha256("\n".join([platform.machine(), *about]).encode()).hexdigest()[:16]
