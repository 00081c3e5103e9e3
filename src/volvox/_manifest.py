"""The manifest of a checkpoint: what it says of itself, and SHA-256 of each of its files.

manifest.write(folder, step=12, num_bytes=4096, about={"settings": "5f1c..."})
manifest.verified(folder, step=12)["about"]
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NAME = "manifest.json"


class DamagedCheckpointError(Exception):
    """A checkpoint is not what was written: a file is missing, truncated, changed or superfluous."""


def write(folder: Path, *, step: int, num_bytes: int, about: Mapping[str, Any]) -> None:
    """Writes the manifest of a folder in which everything else is written."""
    manifest = {"step": step, "bytes": num_bytes, "about": dict(about), "files": _sums(folder)}
    (folder / _NAME).write_text(json.dumps(manifest | {"sha256": digest(manifest)}, indent=1))


def verified(folder: Path, step: int) -> dict[str, Any]:
    """Returns the manifest of a checkpoint that is what was written; "bytes" is None in one of an earlier version.

    Raises:
      DamagedCheckpointError: It is not; the message says what differs.
    """
    # Checked by our own sums: orbax may read a damaged file without noticing.
    manifest = read(folder)
    try:
        found = _sums(folder)
    except FileNotFoundError as error:  # the run in progress is removing it
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: {error.filename} is gone") from error
    if manifest.get("step", step) != step:
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: it was saved as that of step {manifest['step']}")
    if found != manifest["files"] or "" in found.values():
        sums = {name: sum_ for name, sum_ in manifest["files"].items() if sum_}
        names = sorted(name for name in {*found, *sums} if found.get(name) != sums.get(name))
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: missing, changed or unknown: {', '.join(names)}")
    return manifest


def read(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a checkpoint, whose files are not looked at; see `verified`."""
    path = folder / _NAME
    try:
        read = json.loads(path.read_text() if stat.S_ISREG(path.lstat().st_mode) else "")
        if "files" not in read:
            # One of an earlier version has the sums of the files alone.
            return {"bytes": None, "about": {}, "files": dict(read)}
        known = type(read["files"]) is type(read["about"]) is dict and type(read["bytes"]) is type(read["step"]) is int
        if known and digest(read) == read["sha256"]:
            return read
    except (FileNotFoundError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise DamagedCheckpointError(f"checkpoint {folder} is damaged: no readable {_NAME}") from error
    raise DamagedCheckpointError(f"checkpoint {folder} is damaged: {_NAME} is not what was written")


def is_folder(path: Path) -> bool:
    """Whether a path is a folder itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def sync(path: Path) -> None:
    """Returns when a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unwritten(folder: Path, error: BaseException) -> OSError | None:
    """Returns an OSError that names the checkpoint if the system refused to write it; None for other errors."""
    reason: BaseException | None = error
    while reason is not None:
        # Orbax's storage has errors of its own, which name the system's by number.
        named = re.search(r"os_error_code='(\d+)'", str(reason))
        code = reason.errno if isinstance(reason, OSError) else int(named[1]) if named else None
        if code is not None:
            raised = OSError(f"checkpoint {folder} could not be written: {os.strerror(code)}")
            raised.errno = code
            return raised
        reason = reason.__cause__ or reason.__context__
    return None


def _sums(folder: Path) -> dict[str, str]:
    """{relative path: SHA-256} of every file in the folder but the manifest itself; what is no file has no sum."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if not is_folder(p) and p != folder / _NAME):
        sum_ = ""
        if stat.S_ISREG(path.lstat().st_mode):  # a pipe would be waited for, and a link leads out of the folder
            with path.open("rb") as file:
                sum_ = hashlib.file_digest(file, "sha256").hexdigest()
        found[path.relative_to(folder).as_posix()] = sum_
    return found


def digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest without its own sum."""
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
