"""MuJoCo locomotion and control: a preset of `pool`."""

import re
from typing import Any

from envpool.registration import registry

from volvox._checks import nearest
from volvox.envs.envpool_group import pool
from volvox.types import Env


def mujoco(
    task: str,
    *,
    num_envs: int,
    groups: int = 1,
    max_episode_steps: int = 1_000,
    threads: int | None = None,
    **config: Any,
) -> Env:
    """Makes a recipe for groups of one Gymnasium MuJoCo task.

    Observations are float32 `[B, features]`, actions float32 `[B, joints]`; the simulation itself runs in float64.
    Actions outside their bounds are refused with a ValueError where Python drives the environments; inside `jit`, which
    cannot raise, they are clipped. Extras: `elapsed_steps` (int32 `[B]`).

    Args:
        task: "HalfCheetah", "Ant", ... (the newest version), or one with its version: "HalfCheetah-v4".
        num_envs: Environments in all groups together.
        groups: Number of groups; a divisor of `num_envs`.
        max_episode_steps: Steps after which an episode is truncated.
        threads: C++ threads stepping a group; None takes every CPU this process may use.
        **config: Further settings by envpool's names, such as `frame_skip` or `reset_noise_scale`.

    Raises:
        ValueError: An unknown task or setting, or a number out of range.
    """
    known = _tasks()
    stem, _, version = str(task).partition("-")
    newest = {name.partition("-")[0].lower(): name for name in known}  # sorted: the last version wins
    found = newest.get(stem.lower()) if not version else {name.lower(): name for name in known}.get(str(task).lower())
    if found is None:
        names = known if version else [name.partition("-")[0] for name in newest.values()]
        raise ValueError(f"task {task!r} is not a MuJoCo task envpool knows{nearest(str(task), names)}")
    return pool(
        found,
        name=found.partition("-")[0],
        num_envs=num_envs,
        groups=groups,
        threads=threads,
        max_episode_steps=max_episode_steps,
        **config,
    )


def _tasks() -> list[str]:
    """Returns the names of envpool's Gymnasium MuJoCo tasks with their versions, sorted."""
    mine = [name for name, (path, _, _) in registry.specs.items() if path == "envpool.mujoco.gym"]
    return sorted(name for name in mine if re.fullmatch(r"\w+-v\d+", name))
