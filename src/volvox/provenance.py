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
    """Versions of volvox and of packages that affect its results and speed; None if a package is not installed."""
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
    """The git commit of volvox, with "-dirty" where files were changed; None where it was not installed from git."""
    own = Path(__file__)
    git = partial(subprocess.run, capture_output=True, text=True, timeout=10, cwd=own.parent)
    try:
        # An installed copy may lie in somebody else's checkout.
        if git(["git", "ls-files", "--error-unmatch", own.name]).returncode:
            return None
        return git(["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):  # there is no git
        return None


def provenance() -> dict[str, Any]:
    """What `config.json` says of how a run was made; none of it is compared when the run is resumed."""
    words = [Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]]  # not where this machine has Python
    return {
        "revision": revision(),
        "hardware": {
            "processor": processor(),
            "cpus": len(os.sched_getaffinity(0)),
            "devices": [device.device_kind for device in jax.devices()],
        },
        "command": shlex.join(words).encode(errors="replace").decode(),  # of names that are no UTF-8 too
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
