"""Processes that learn together: `jax.distributed` with the options that a run needs."""

import os
from typing import Any

import jax

_AUTOTUNING = "xla_gpu_shard_autotuning"


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    **options: Any,
) -> None:
    """Connects this process with the others of a run by `jax.distributed.initialize`; `volvox.learn` then uses all.

    Call it in every process before any JAX computation. Missing arguments are taken from JAX_COORDINATOR_ADDRESS,
    JAX_NUM_PROCESSES and JAX_PROCESS_ID, or from SLURM, Open MPI, or an indexed Kubernetes job. If none of these names
    several processes, nothing happens.

    If a process dies, JAX ends the others with an error, at the latest after `heartbeat_timeout_seconds`. Start all of
    them again with `resume=True` to continue from the last checkpoint. A process that ends waits up to
    `shutdown_timeout_seconds` for the others; then JAX ends them. If a process has more work after `volvox.train`, such
    as scoring, call `algorithm.max_over_processes(0)` at the end of every process.

    Example:
      >>> vx.distributed.initialize("10.0.0.1:1234", num_processes=2, process_id=0)  # process_id=1 in the other

    Args:
      coordinator_address: Host and port on which process 0 listens.
      num_processes: Number of processes.
      process_id: Index of this process.
      **options: Other arguments of `jax.distributed.initialize`, such as `local_device_ids`, `initialization_timeout`,
        `heartbeat_timeout_seconds` (default 100) and `shutdown_timeout_seconds` (default 300).

    Raises:
      ValueError: An argument is missing or out of range.
      RuntimeError: JAX has been used already, this was called before, or the processes do not find each other.
    """
    num_processes = _from_environment("JAX_NUM_PROCESSES", num_processes)
    process_id = _from_environment("JAX_PROCESS_ID", process_id)
    if num_processes == 1:
        return
    if (coordinator_address, num_processes, process_id) == (None, None, None) and not _has_launcher():
        return
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from `volvox.train`
    if _AUTOTUNING not in os.environ.get("XLA_FLAGS", ""):
        # Processes would wait for each other's autotuning results, but the names of their programs differ.
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{_AUTOTUNING}=false".strip()
    jax.distributed.initialize(coordinator_address, num_processes, process_id, **options)


def _from_environment(name: str, value: int | None) -> int | None:
    return int(os.environ[name]) if value is None and name in os.environ else value


def _has_launcher() -> bool:
    """Whether the environment variables are those of one of several processes."""
    names = os.environ
    if "JAX_COORDINATOR_ADDRESS" in names or "JOB_COMPLETION_INDEX" in names:
        return True
    num_slurm_tasks = names.get("SLURM_NTASKS", 1) if "SLURM_STEP_NODELIST" in names else 1
    return max(int(num_slurm_tasks), int(names.get("OMPI_COMM_WORLD_SIZE", 1))) > 1
