"""Where a result comes from: versions, revision, hardware, command line, date."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
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
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def revision() -> str | None:
    """The git commit of volvox, with "-dirty" if files were changed; None if it was not installed from git."""
    describe = "git ls-files --error-unmatch -- {0} && git describe --always --abbrev=12 --dirty --exclude='*'"
    file = Path(__file__)
    command = describe.format(file.name)  # fails in a checkout of another project, in which volvox is installed
    found = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=file.parent)
    return (found.stdout.split()[-1]) if found.returncode == 0 else None


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
