"""Where a result comes from: versions, revision, hardware, command line, date."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax


def versions() -> dict[str, str | None]:
    """Versions of volvox and of packages that affect its results; None for a package that is not installed."""
    installed = {name: importlib.metadata.distributions(name=name) for name in ("volvox", "jax", "envpool", "optax")}
    found = {name: next((copy.version for copy in copies), None) for name, copies in installed.items()}
    return {"python": platform.python_version(), **found}


def processor() -> str:
    """The processor's name."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def revision() -> str | None:
    """The git commit of volvox, with "-dirty" if files were changed; None if it was not installed from git."""
    file = Path(__file__)
    git = partial(subprocess.run, capture_output=True, text=True, timeout=10, cwd=file.parent)
    try:
        if git(["git", "ls-files", "--error-unmatch", file.name]).returncode:  # it may be in someone else's checkout
            return None
        return git(["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):  # git is not installed
        return None


def provenance() -> dict[str, Any]:
    """How and where this process was started, for `config.json`."""
    words = [Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]]
    return {
        "revision": revision(),
        "hardware": {
            "processor": processor(),
            "cpus": len(os.sched_getaffinity(0)),
            "devices": [device.device_kind for device in jax.devices()],
        },
        "command": shlex.join(words).encode(errors="replace").decode(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
