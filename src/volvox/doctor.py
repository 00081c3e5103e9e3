"""Whether this machine can train: one line for each thing that training needs, and what to do where one is missing.

volvox doctor
"""

import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from volvox import envs
from volvox._resources import control_groups, host_memory
from volvox.provenance import versions

_GB = 1e9
_LEAST_MEMORY, _LEAST_DISK = 4 * _GB, 2 * _GB


class Finding(NamedTuple):
    """What one check found.

    Attributes:
      name: What was checked.
      found: What there is.
      advice: What is wrong and what to do about it; empty where nothing is.
    """

    name: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{'problem' if self.advice else 'ok':<8} {self.name:<8} {': '.join(filter(None, self[1:]))}"


def doctor() -> int:
    """Checks this machine and prints a line for each finding.

    Returns:
      The exit code: 0 if nothing is wrong, otherwise 1.
    """
    problems = 0
    for name, check in CHECKS.items():
        finding = checked(name, check)
        print(finding, flush=True)
        problems += bool(finding.advice)
    print(f"{problems} problem{'s' * (problems != 1)}" if problems else "nothing is wrong")
    return 1 if problems else 0


def checked(name: str, check: Callable[[], tuple[str, str]]) -> Finding:
    """Runs one check; what it raises is a problem."""
    try:
        return Finding(name, *check())
    except Exception as error:  # whatever a broken installation raises
        return Finding(name, f"{type(error).__name__}: {' '.join(str(error).split())}", _ADVICE[name])


def _jax() -> tuple[str, str]:
    """JAX, its devices, and one computation on the default device."""
    total = float(jnp.arange(10.0).sum())
    if total != 45.0:
        return f"0 + 1 + ... + 9 = {total:g}", _ADVICE["jax"]
    devices = [str(device) for device in jax.devices()]
    found = f"volvox {versions()['volvox']}, jax {jax.__version__}, {', '.join(devices)}"
    unused = Path("/proc/driver/nvidia/version").exists() and jax.default_backend() == "cpu"
    advice = 'there is an NVIDIA GPU that JAX does not use; install JAX for it: pip install "jax[cuda13]"'
    if chosen := os.environ.get("JAX_PLATFORMS"):
        advice = f"there is an NVIDIA GPU that JAX does not use, because JAX_PLATFORMS={chosen!r} says so"
    return found, advice if unused else ""


def _envpool() -> tuple[str, str]:
    """One timestep of one Atari game."""
    (group,) = envs.atari("Pong", num_envs=1, groups=1).make(0, host=True)
    try:
        state, timestep = group.recv(group.init())
        group.recv(group.send(state, np.zeros(1, np.int32)))
    finally:
        group.close()
    return f"envpool {versions()['envpool']}, one timestep of Pong: {list(np.shape(timestep.observation))}", ""


def _cores() -> tuple[str, str]:
    usable, all_ = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = _cpu_quota()
    found = f"{usable} of {all_}" + (f", limited to the time of {quota:g}" if quota < usable else "")
    advice = "emulators and networks take turns on one core; training is about twice as fast with two"
    return found, advice if min(usable, quota) < 2 else ""


def _memory() -> tuple[str, str]:
    free = host_memory()
    if free is None:
        raise OSError("neither the system nor a control group says")
    advice = "large populations and replay need more; stop other programs, or take fewer environments (num_envs)"
    return f"{free / _GB:.1f} GB free", advice if free < _LEAST_MEMORY else ""


def _ffmpeg() -> tuple[str, str]:
    from imageio_ffmpeg import get_ffmpeg_exe  # raises where there is none

    version = subprocess.run([get_ffmpeg_exe(), "-version"], capture_output=True, text=True, check=True, timeout=30)
    return " ".join(version.stdout.split()[:3]), ""


def _disk() -> tuple[str, str]:
    with tempfile.TemporaryFile(dir="."):  # raises where runs cannot be written
        free = shutil.disk_usage(".").free
    advice = "checkpoints may not fit; free some room, or give another run directory"
    return f"{free / _GB:.1f} GB free in {Path.cwd()}", advice if free < _LEAST_DISK else ""


CHECKS: dict[str, Callable[[], tuple[str, str]]] = {
    "jax": _jax,
    "envpool": _envpool,
    "cores": _cores,
    "memory": _memory,
    "ffmpeg": _ffmpeg,
    "disk": _disk,
}
"""Name -> a check, which returns (what there is, advice or nothing) or raises."""
_ADVICE = {
    "jax": "JAX does not compute; install it anew, for a GPU as its documentation says: pip install --upgrade jax",
    "envpool": "Atari and MuJoCo cannot be played; pure-JAX environments can: pip install --upgrade envpool",
    "cores": "the number of cores cannot be read",
    "memory": "the free memory cannot be read",
    "ffmpeg": "no video can be written: pip install --upgrade imageio-ffmpeg",
    "disk": "runs cannot be written here; change to a directory of your own",
}


def _cpu_quota() -> float:
    """Cores whose time this process's control group may use; infinite without a limit."""
    return min(map(_quota_of, control_groups("cpu")), default=math.inf)


def _quota_of(group: Path) -> float:
    """Cores whose time one control group may use."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:  # version 1
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf
