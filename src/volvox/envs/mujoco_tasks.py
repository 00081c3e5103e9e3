"""MuJoCo locomotion and control: a preset of `envpool_task`."""

import re
from typing import Any

from envpool.registration import registry

from volvox._checks import nearest
from volvox.envs.envpool_group import envpool_task
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
    Actions out of bounds are refused with a ValueError where Python drives the environments; inside `jit`, which
    cannot raise, they are clipped. Extras: `elapsed_steps` (int32 `[B]`). `EnvSpec.name` and the `task` of the
    recipe's `config` say the version: results of different versions cannot be compared.

    Example:
      >>> env = volvox.envs.mujoco("HalfCheetah", num_envs=32, groups=2)  # the newest: env.spec.name is HalfCheetah-v5
      >>> old = volvox.envs.mujoco("HalfCheetah-v4", num_envs=32)

    Args:
      task: "HalfCheetah", "Ant", ... (the newest version), or one with its version: "HalfCheetah-v4".
      num_envs: environments in all groups together.
      groups: number of groups; a divisor of `num_envs`.
      max_episode_steps: timesteps after which an episode is truncated.
      threads: C++ threads that step a group; None takes every CPU this process may use.
      **config: further settings by envpool's names, such as `frame_skip` or `reset_noise_scale`.

    Returns:
      The recipe.

    Raises:
      ValueError: an unknown task or setting, or a number out of range.
    """
    tasks = _tasks()
    newest = {name.partition("-")[0]: name for name in tasks}  # sorted, so the last version stays
    names = tasks if "-" in str(task) else list(newest)
    found = {name.lower(): name for name in names}.get(str(task).lower())
    if found is None:
        raise ValueError(f"task {task!r} is not a MuJoCo task envpool knows{nearest(str(task), names)}")
    config["max_episode_steps"] = max_episode_steps
    return envpool_task(newest.get(found, found), num_envs=num_envs, groups=groups, threads=threads, **config)


def _tasks() -> list[str]:
    """Returns the names of envpool's Gymnasium MuJoCo tasks, such as "Ant-v5", sorted by version."""
    tasks = [name for name, (path, _, _) in registry.specs.items() if path == "envpool.mujoco.gym"]
    tasks = [name for name in tasks if re.fullmatch(r"\w+-v\d+", name)]
    return sorted(tasks, key=lambda name: int(name.rpartition("v")[2]))
